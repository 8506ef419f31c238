"""Panel builders with shared options: data source variable, required unit and description, visible legends.

If a panel's queries may return no data, `no_value` is the text that Grafana shows in that case.
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

from grafana.descriptions import Thresholds, ValueName

DATA_SOURCE = common.DataSourceRef(type_val="prometheus", uid="${datasource}")

Panel = Builder[models.Panel]
_AnyPanel = TypeVar("_AnyPanel", timeseries.Panel, stat.Panel, table.Panel, statetimeline.Panel)


@dataclass(frozen=True)
class Query:
    """A PromQL expression and the legend of its series: `{{label}}` is the value of a label."""

    expr: str
    legend: str = ""


@dataclass(frozen=True)
class Column:
    """A table column with the value of a query and its unit; `thresholds` or `names` set its colour."""

    title: str
    expr: str
    unit: str
    thresholds: Thresholds = ()
    names: Sequence[ValueName] = ()


def time_series(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    no_value: str = "",
    width: int = 12,
    height: int = 8,
    stacked: bool = False,
    from_zero: bool = True,
    colors: Mapping[str, str] | None = None,
    thresholds: Thresholds = (),
) -> timeseries.Panel:
    """Return a graph over time. `colors` maps series names to colours; `thresholds` are drawn as dashed lines."""
    panel = _with_common_options(timeseries.Panel(), title, description, unit, no_value).span(width).height(height)
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


def stat_panel(
    title: str,
    description: str,
    query: Query,
    *,
    unit: str,
    no_value: str = "",
    width: int = 4,
    thresholds: Thresholds = (),
    names: Sequence[ValueName] = (),
) -> stat.Panel:
    """Return a panel with the latest value, coloured by `thresholds` or `names`."""
    panel = _with_common_options(stat.Panel(), title, description, unit, no_value).span(width).height(4)
    panel.with_target(_target(query, 0, instant=True))
    panel.reduce_options(common_builders.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.graph_mode(common.BigValueGraphMode.NONE)
    panel.text_mode(common.BigValueTextMode.VALUE_AND_NAME if query.legend else common.BigValueTextMode.VALUE)
    panel.color_mode(common.BigValueColorMode.BACKGROUND if thresholds or names else common.BigValueColorMode.NONE)
    panel.thresholds(_steps(thresholds))
    if names:
        panel.mappings([_mapping(names)])
    return panel


def table_panel(
    title: str,
    description: str,
    labels: Mapping[str, str],
    columns: Sequence[Column],
    *,
    sort_by: str,
    no_value: str = "",
    width: int = 24,
    height: int = 9,
    links: Mapping[str, str] | None = None,
) -> table.Panel:
    """Return a table: a row per set of `labels` (label: heading), a column per query. `links`: heading to URL."""
    panel = _with_common_options(table.Panel(), title, description, "none", no_value).span(width).height(height)
    for number, column in enumerate(columns):
        panel.with_target(_target(Query(column.expr), number, instant=True).format(PromQueryFormat.TABLE))
        panel.override_by_name(column.title, _column_overrides(column))
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


def state_timeline(
    title: str,
    description: str,
    query: Query,
    names: Sequence[ValueName],
    *,
    no_value: str = "",
    width: int = 24,
    height: int = 6,
) -> statetimeline.Panel:
    """Return coloured bands over time; the query's values are the numbers in `names`."""
    panel = (
        _with_common_options(statetimeline.Panel(), title, description, "none", no_value).span(width).height(height)
    )
    panel.with_target(_target(query, 0))
    panel.mappings([_mapping(names)]).merge_values(True).show_value(common.VisibilityMode.AUTO)
    panel.legend(
        common_builders.VizLegendOptions()
        .show_legend(True)
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
    )
    return panel.fill_opacity(80).line_width(0)


def _with_common_options(panel: _AnyPanel, title: str, description: str, unit: str, no_value: str) -> _AnyPanel:
    panel.title(title).description(description).datasource(DATA_SOURCE).unit(unit)
    return panel.no_value(no_value) if no_value else panel


def _target(query: Query, number: int, *, instant: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number)).datasource(DATA_SOURCE)
    target.legend_format(query.legend or "__auto")
    return target.instant() if instant else target.range()


def _value_field(number: int, count: int) -> str:
    """Return Grafana's name for a query's value field after the results of several queries are merged."""
    return "Value" if count == 1 else f"Value #{chr(ord('A') + number)}"


def _column_overrides(column: Column) -> list[models.DynamicConfigValue]:
    overrides = [models.DynamicConfigValue(id_val="unit", value=column.unit)]
    if column.thresholds:
        overrides.append(models.DynamicConfigValue(id_val="thresholds", value=_steps(column.thresholds).build()))
    if column.names:
        overrides.append(models.DynamicConfigValue(id_val="mappings", value=[_mapping(column.names)]))
    if column.thresholds or column.names:
        overrides.append(models.DynamicConfigValue(id_val="custom.cellOptions", value={"type": "color-text"}))
    return overrides


def _steps(thresholds: Thresholds) -> builders.ThresholdsConfig:
    steps = [models.Threshold(value=None, color="green" if thresholds else "text")]
    steps += [models.Threshold(value=value, color=color) for value, color in thresholds]
    return builders.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(steps)


def _mapping(names: Sequence[ValueName]) -> models.ValueMap:
    return models.ValueMap(
        options={
            str(name.value): models.ValueMappingResult(text=name.text, color=name.color, index=place)
            for place, name in enumerate(names)
        }
    )


def _fixed_color(color: str) -> models.DynamicConfigValue:
    return models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": color})
