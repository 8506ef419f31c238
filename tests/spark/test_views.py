"""Every shipped view on Spark: the same rows as delta-rs gives, of the same tables."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from grouptrail.config import Config
from grouptrail.contracts import View, views
from grouptrail.query.errors import QueryError
from grouptrail.query.spark.engine import SparkEngine
from grouptrail.query.sql import DeltaRs, Engine, run_sql
from support.sample_history import ASKED
from support.small_tables import at, lay

pytestmark = pytest.mark.spark
each_view = pytest.mark.parametrize("view", views().values(), ids=lambda view: view.name)


@pytest.fixture
def engine(spark: SparkSession, shop: Config) -> SparkEngine:
    return SparkEngine(spark, shop)


def rows(config: Config, text: str, engine: Engine) -> list[dict[str, Any]]:
    out = io.StringIO()
    run_sql(config, text, format="json", out=out, engine=engine)
    return [json.loads(line) for line in out.getvalue().splitlines()]


@each_view
def test_view_gives_the_same_rows_on_both_engines(
    shop: Config, engine: SparkEngine, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a query that finds something, and of the example as it stands, asked at one time."""
    monkeypatch.setattr("grouptrail.query.views.utc_now", lambda: at(60 * 24 * 365))
    query, wanted = ASKED[view.name]
    assert rows(shop, query, engine) == [pytest.approx(row) for row in wanted]
    assert sorted(map(str, rows(shop, view.example, engine))) == sorted(
        map(str, rows(shop, view.example, DeltaRs(shop)))
    )


def test_view_group_name_with_special_characters_is_matched_literally(spark: SparkSession, tmp_path: Path) -> None:
    """Whatever Spark reads into quotes and dollars elsewhere."""
    config = Config(warehouse=str(tmp_path))
    name = "it's -- ${env:HOME} :time `x`"
    lay(config, "generations", {"group_id": name, "started_at": at(0)})
    lay(config, "memberships", {"group_id": name, "member_id": "m", "joined_at": at(0)})
    quoted = name.replace("'", "''")
    for engine in (DeltaRs(config), SparkEngine(spark, config)):
        assert rows(config, f"SELECT member_id FROM members_at('{quoted}', now())", engine) == [{"member_id": "m"}]


def test_view_argument_with_backslash_raises_query_error_on_spark(shop: Config, engine: SparkEngine) -> None:
    """Spark reads them in its own way in a query; a value keeps them as they are."""
    with pytest.raises(QueryError, match="group is a string in quotes"):
        rows(shop, r"SELECT * FROM members_at('a\b', now())", engine)
    value = "\\' \\u0041 ${env:HOME}"
    assert [row[0] for row in engine.spark.sql(f"SELECT {engine.dialect.literal(value)}").collect()] == [value]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("SELECT * FROM offset_commit", "there is no table offset_commit: did you mean offset_commits?"),
        ("SELECT * FROM topic_names", "nothing has landed in topic_names"),
        ("SELECT * FROM owner_at('billing', now())", "did you mean owners_at(group, time)?"),
        ("SELECT grop_id FROM offset_commits", "`group_id`"),
        ("SELECT (1 FROM offset_commits", "Syntax error"),
        ("SELECT committed_offset / 0 FROM offset_commits", "Division by zero"),
        ("SELECT * FROM members_at('nobody', now())", "no history of a group 'nobody'"),
        ("DELETE FROM offset_commits", "only queries are answered"),
        ("WITH x AS (SELECT 1) INSERT INTO offset_commits (committed_offset) SELECT * FROM x", "only queries"),
    ],
)
def test_spark_engine_invalid_query_raises_a_one_line_error(
    shop: Config, engine: SparkEngine, text: str, told: str
) -> None:
    """As on the other engine; and nothing is written."""
    with pytest.raises(QueryError) as caught:
        rows(shop, text, engine)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)
