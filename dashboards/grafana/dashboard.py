"""The parts that all dashboards share: variables, links between dashboards, time range and refresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import table

from grafana.panels import DATA_SOURCE, Panel
from grafana.promql import CLUSTER

TAG = "grouptrail"


@dataclass(frozen=True)
class Section:
    """A row of a dashboard with its panels."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Annotation:
    """A marker on all panels at the times at which `expr` has values; `title` is its text."""

    name: str
    color: str
    expr: str
    title: str


def grouptrail_dashboard(
    name: str,
    title: str,
    description: str,
    variables: Sequence[Builder[models.VariableModel]],
    sections: Sequence[Section],
    *,
    annotations: Sequence[Annotation] = (),
) -> models.Dashboard:
    """Build the dashboard `grouptrail-<name>`."""
    dashboard = (
        builders.Dashboard(f"grouptrail · {title}")
        .uid(uid(name))
        .description(description)
        .tags([TAG, "kafka"])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_links())
        .variables([_data_source(), *variables])
        .annotations([_annotation(annotation) for annotation in annotations])
    )
    for section in sections:
        dashboard.with_row(builders.Row(section.title))
        for panel in section.panels:
            dashboard.with_panel(panel)
    return _normalized(dashboard.build())


def _normalized(dashboard: models.Dashboard) -> models.Dashboard:
    """Number the panels, and remove defaults that the SDK adds."""
    for number, panel in enumerate(dashboard.panels or (), 1):
        panel.id_val = number
        if isinstance(panel, models.Panel) and isinstance(panel.options, table.Options):
            panel.options.footer = None
    for variable in (dashboard.templating and dashboard.templating.list_val) or ():
        variable.auto = variable.auto_min = variable.auto_count = None
    for link in dashboard.links or ():
        # The default would move the links into a menu.
        link.placement = None  # type: ignore[assignment]
    return dashboard


def uid(name: str) -> str:
    """Return the identifier that links between dashboards use."""
    return f"grouptrail-{name}"


def link_to(name: str, **fields: str) -> str:
    """Return a link to a dashboard that shows the clicked row: `fields` maps its variables to column headings."""
    selection = "".join(
        f'&var-{variable}=${{__data.fields["{heading}"]:percentencode}}' for variable, heading in fields.items()
    )
    return f"/d/{uid(name)}?${{__url_time_range}}&${{datasource:queryparam}}{selection}"


def query_variable(name: str, label: str, metric: str, *, include_all: bool = True) -> builders.QueryVariable:
    """Return a multi-value variable with the values of the label `name` of a metric; `include_all` adds "All"."""
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATA_SOURCE)
        .query({"qryType": 1, "query": f"label_values({metric}, {name})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(True)
    )
    if not include_all:
        return variable
    # .* also matches series without the label, which a coarser granularity produces.
    all_option = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.include_all(True).all_value(".*").current(all_option)


def group_variable(*, include_all: bool) -> builders.QueryVariable:
    """Return a variable with the groups that have members or committed offsets."""
    groups = f'{{__name__=~"kafka_consumer_group_(members|sum_lag)", {CLUSTER}}}'
    return query_variable("group", "Group", groups, include_all=include_all)


def firing_alerts(*matchers: str, prefix: str) -> Annotation:
    """Return the times at which alerts were firing whose names begin with `prefix`."""
    expr = f'ALERTS{{{", ".join(matchers)}, alertname=~"{prefix}.+", alertstate="firing"}}'
    return Annotation("Alerts", "red", expr, "{{alertname}}")


def _annotation(annotation: Annotation) -> builders.AnnotationQuery:
    query = (
        builders.AnnotationQuery()
        .name(annotation.name)
        .datasource(DATA_SOURCE)
        .enable(True)
        .icon_color(annotation.color)
    )
    return query.datasource(DATA_SOURCE).enable(True).expr(annotation.expr).title_format(annotation.title)


def _data_source() -> builders.DatasourceVariable:
    return builders.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _links() -> builders.DashboardLink:
    return (
        builders.DashboardLink("grouptrail")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .include_vars(True)
        .keep_time(True)
        .as_dropdown(False)
    )
