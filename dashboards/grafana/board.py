"""What all dashboards share: their variables, the links between them, time range and refresh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import table

from grafana.house import DATA_SOURCE, Panel
from grafana.promql import CLUSTER

TAG = "grouptrail"


@dataclass(frozen=True)
class Section:
    """A row of a dashboard, and the panels below it."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Mark:
    """What every panel marks at its time: when `expr` has values, called by `title`."""

    name: str
    color: str
    expr: str
    title: str


def board(
    name: str,
    title: str,
    about: str,
    variables: Sequence[Builder[models.VariableModel]],
    sections: Sequence[Section],
    *,
    marks: Sequence[Mark] = (),
) -> models.Dashboard:
    """The dashboard `grouptrail-<name>`."""
    frame = (
        builders.Dashboard(f"grouptrail · {title}")
        .uid(uid(name))
        .description(about)
        .tags([TAG, "kafka"])
        .timezone("browser")
        .time("now-3h", "now")
        .refresh("30s")
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .link(_links())
        .variables([_data_source(), *variables])
        .annotations([_annotation(mark) for mark in marks])
    )
    for section in sections:
        frame.with_row(builders.Row(section.title))
        for panel in section.panels:
            frame.with_panel(panel)
    return _tidied(frame.build())


def _tidied(whole: models.Dashboard) -> models.Dashboard:
    """With panels numbered, and without what the SDK sets though nobody asked for it."""
    for number, panel in enumerate(whole.panels or (), 1):
        panel.id_val = number
        if isinstance(panel, models.Panel) and isinstance(panel.options, table.Options):
            panel.options.footer = None
    for variable in (whole.templating and whole.templating.list_val) or ():
        variable.auto = variable.auto_min = variable.auto_count = None
    for link in whole.links or ():
        # Would hide the links in a menu.
        link.placement = None  # type: ignore[assignment]
    return whole


def uid(name: str) -> str:
    """By which other dashboards find this one."""
    return f"grouptrail-{name}"


def to(name: str, **fields: str) -> str:
    """The address of a dashboard, where it shows the row that was clicked: variable to the row's heading."""
    chosen = "".join(
        f'&var-{variable}=${{__data.fields["{heading}"]:percentencode}}' for variable, heading in fields.items()
    )
    return f"/d/{uid(name)}?${{__url_time_range}}&${{datasource:queryparam}}{chosen}"


def choice(name: str, label: str, metric: str, *, of_all: bool = True) -> builders.QueryVariable:
    """A variable with the values that the label `name` of a metric has; one or several, or with `of_all` all."""
    variable = (
        builders.QueryVariable(name)
        .label(label)
        .datasource(DATA_SOURCE)
        .query({"qryType": 1, "query": f"label_values({metric}, {name})", "refId": name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC)
        .multi(True)
    )
    if not of_all:
        return variable
    # .* also takes series without the label, as a coarser granularity leaves them.
    everything = models.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.include_all(True).all_value(".*").current(everything)


def choice_of_groups(*, of_all: bool) -> builders.QueryVariable:
    """Groups that have members or have committed."""
    groups = f'{{__name__=~"kafka_consumer_group_(members|sum_lag)", {CLUSTER}}}'
    return choice("group", "Group", groups, of_all=of_all)


def alerts(*matchers: str, of: str) -> Mark:
    """When alerts whose names begin with `of` were firing."""
    expr = f'ALERTS{{{", ".join(matchers)}, alertname=~"{of}.+", alertstate="firing"}}'
    return Mark("Alerts", "red", expr, "{{alertname}}")


def _annotation(mark: Mark) -> builders.AnnotationQuery:
    query = builders.AnnotationQuery().name(mark.name).datasource(DATA_SOURCE).enable(True).icon_color(mark.color)
    return query.expr(mark.expr).title_format(mark.title)


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
