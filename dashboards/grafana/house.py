"""How every panel looks: the data source is a variable, units and descriptions are required, legends are on.

A panel whose queries may rightly answer nothing says in `nothing` what that means; Grafana shows that text in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from grafana.words import Name, Thresholds

DATA_SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = Builder[models.Panel]
_AnyPanel = TypeVar("_AnyPanel", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel)


@dataclass(frozen=True)
class Query:
    """A PromQL expression, and what its series are called: `{{label}}` is a label's value."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Column:
    """A column of a table: a query's value, with its unit; `thresholds` and `names` colour it."""

    title: str
    expr: str
    unit: str
    thresholds: Thresholds = ()
    names: Sequence[Name] = ()


def lines(
    title: str,
    about: str,
    *queries: Query,
    unit: str,
    nothing: str = "",
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    from_zero: bool = True,
    colors: Mapping[str, str] | None = None,
    thresholds: Thresholds = (),
) -> timeseries.Panel:
    """Values over time. `colors` gives a series of that name its own, `thresholds` draws lines."""
    panel = _dressed(timeseries.Panel(), title, about, unit, nothing).span(width).height(height)
    panel.targets([_target(query, number) for number, query in enumerate(queries)])
    panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.TABLE)
        .placement(common.LegendPlacement.BOTTOM)
        .calcs(["lastNotNull", "max"])
    )
    panel.tooltip(
        common_builders.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    )
    panel.line_width(1).fill_opacity(30 if stacked else 8)
    if from_zero:
        panel.min(0)
    panel.color_scheme(builders.FieldColor().mode(models.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    if stacked:
        panel.stacking(common_builders.StackingConfig().mode(common.StackingMode.NORMAL))
    for name, color in (colors or {}).items():
        panel.override_by_name(name, [_fixed_color(color)])
    if thresholds:
        panel.thresholds(_steps(thresholds))
        panel.thresholds_style(
            common_builders.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        )
    return panel


def figure(
    title: str,
    about: str,
    query: Query,
    *,
    unit: str,
    nothing: str = "",
    width: int = 4,
    thresholds: Thresholds = (),
    names: Sequence[Name] = (),
) -> stat.Panel:
    """The newest value, large; coloured where thresholds or names give a colour a meaning."""
    panel = _dressed(stat.Panel(), title, about, unit, nothing).span(width).height(4)
    panel.with_target(_target(query, 0, instant=True))
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(common.BigValueGraphMode.NONE)
    panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME if query.legend else common.BigValueTextMode.VALUE)
    panel.color_mode(common.BigValueColorMode.BACKGROUND if thresholds or names else common.BigValueColorMode.NONE)
    panel.thresholds(_steps(thresholds))
    if names:
        panel.mappings([_mapping(names)])
    return panel


def listing(
    title: str,
    about: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    sort_by: str,
    nothing: str = "",
    width: int = 24,
    height: int = 9,
    links: Mapping[str, str] | None = None,
) -> table.Panel:
    """A row for each set of `labels` (label: heading), a column for each query. `links`: heading to address."""
    panel = _dressed(table.Panel(), title, about, "none", nothing).span(width).height(height)
    for number, column in enumerate(columns):
        panel.with_target(_target(Query(column.expr), number, instant=True).format(PromQueryFormat.TABLE))
        panel.override_by_name(column.title, _look(column))
    values = {_value_field(number, len(columns)): column.title for number, column in enumerate(columns)}
    order = [*labels, *values]
    panel.transformations(
        [
            models.DataTransformerConfig(id_val="merge", options={}),
            models.DataTransformerConfig(
                id_val="organize",
                options={
                    "excludeByName": {"Time": True},
                    "indexByName": {name: place for place, name in enumerate(order)},
                    "renameByName": {**labels, **values},
                },
            ),
        ]
    )
    for heading, address in (links or {}).items():
        link = {"title": "Open", "url": address, "targetBlank": False}
        panel.override_by_name(heading, [models.DynamicConfigValue(id_val="links", value=[link])])
    panel.sort_by([common_builders.TableSortByFieldState().display_name(sort_by).desc(True)])
    return panel.filterable(True).cell_options(common.TableAutoCellOptions())


def bands(
    title: str,
    about: str,
    query: Query,
    names: Sequence[Name],
    *,
    nothing: str = "",
    width: int = 24,
    height: int = 6,
) -> statetimeline.Panel:
    """What something was when, as coloured bands; the query's values are those of `names`."""
    panel = _dressed(statetimeline.Panel(), title, about, "none", nothing).span(width).height(height)
    panel.with_target(_target(query, 0))
    panel.mappings([_mapping(names)]).merge_values(True).show_value(common.VisibilityMode.AUTO)
    panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )
    return panel.fill_opacity(80).line_width(0)


def _dressed(panel: _AnyPanel, title: str, about: str, unit: str, nothing: str) -> _AnyPanel:
    panel.title(title).description(about).datasource(DATA_SOURCE).unit(unit)
    return panel.no_value(nothing) if nothing else panel


def _target(query: Query, number: int, *, instant: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(DATA_SOURCE)
    target.legend_format(query.legend or "__auto")
    return target.instant() if instant else target.range()


def _value_field(number: int, count: int) -> str:
    """What Grafana calls a query's value when the answers of several are merged."""
    return "Value" if count == 1 else f"Value #{chr(ord('A') + number)}"


def _look(column: Column) -> list[models.DynamicConfigValue]:
    look = [models.DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.thresholds:
        look.append(models.DynamicConfigValue(id_val="thresholds", value=_steps(column.thresholds).build()))
    if column.names:
        look.append(models.DynamicConfigValue(id_val="mappings", value=[_mapping(column.names)]))
    if column.thresholds or column.names:
        look.append(models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    return look


def _steps(thresholds: Thresholds) -> builders.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green" if thresholds else "text")]
    steps += [models.Threshold(value=value, color=color) for value, color in thresholds]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _mapping(names: Sequence[Name]) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(name.value): models.ValueMappingResult(text=name.text, color=name.color, index=place)
            for place, name in enumerate(names)
        }
    )


def _fixed_color(color: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
