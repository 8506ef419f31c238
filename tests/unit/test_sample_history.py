"""Every shipped view on a warehouse of literal rows: its result, and that its columns are the documented ones."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from grouptrail.config import Config
from grouptrail.contracts import View, tables, views
from grouptrail.query.sql import run_query
from grouptrail.query.views import expand
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.datafusion import DataFusion
from grouptrail.storage.schema import arrow_type
from support.from_config import sql_context
from support.queries import asked
from support.sample_history import ASKED

each_view = pytest.mark.parametrize("view", views().values(), ids=lambda view: view.name)


@each_view
def test_view_returns_the_expected_rows(example: Config, view: View) -> None:
    """Rows of the other cluster are not among them."""
    query, wanted = ASKED[view.name]
    assert wanted
    assert asked(example, query) == [pytest.approx(row) for row in wanted]


@each_view
def test_view_can_be_queried_on_a_machine_with_one_core(example: Config, view: View) -> None:
    """With one partition the engine plans sorts in another way."""
    stored = warehouse_of(example).tables(list(view.tables))
    opened = {table.name: found for table in stored if (found := table.open()) is not None}
    engine = DataFusion(opened, settings={"datafusion.execution.target_partitions": "1"})
    engine.rows(expand(ASKED[view.name][0], example.cluster).text).read_all()


@each_view
def test_view_example_columns_match_the_contract(example: Config, view: View) -> None:
    """Names and types in order, also for the documented example, which is executed as it is."""
    schema, _ = run_query(sql_context(example), view.example)
    assert schema.names == [column.name for column in view.columns]
    types = [_plain(field.type) for field in pa.schema(schema)]
    assert types == [arrow_type(column.type) for column in view.columns]


def _plain(type_: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_string_view(type_) or pa.types.is_large_string(type_) else type_


@each_view
def test_view_contract_matches_its_sql(view: View) -> None:
    """Its description is a sentence, placeholders are its parameters, and it reads the tables it names, of one
    cluster."""
    assert view.about.rstrip().endswith(".")
    named = {"cluster", "now", "seconds"} | {parameter.name for parameter in view.parameters}
    assert set(re.findall(r":(\w+)", view.sql)) <= named
    assert {parameter.name for parameter in view.parameters} <= set(re.findall(r":(\w+)", view.sql))
    assert re.search(rf"(FROM|JOIN) {view.name}\b", view.example)
    assert view.name not in tables()
    assert set(view.tables) <= set(tables())
    assert ":cluster" in view.sql or "()" in view.sql


@each_view
def test_nested_views_take_no_parameters_and_no_current_time(view: View) -> None:
    """They are inlined unchanged, also into functions that are installed permanently."""
    for name in re.findall(r"FROM (\w+)\(\)", view.sql):
        assert not views()[name].parameters
        assert ":now" not in views()[name].sql


def test_expected_rows_cover_every_view() -> None:
    assert set(ASKED) == set(views())
