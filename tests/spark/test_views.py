"""Every shipped view on Spark: the same rows as delta-rs gives, of the same tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from grouptrail.config import Config
from grouptrail.contracts import View, views
from grouptrail.query.errors import QueryError
from grouptrail.query.spark.engine import SparkEngine
from grouptrail.query.sql import DeltaRs
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.sql import spark_literal
from grouptrail.storage.upkeep import register
from support.queries import asked
from support.sample_history import ASKED
from support.small_tables import at, lay

EXAMPLES_IN_EACH_RUN = {"owners_at", "worst_groups"}

each_view = pytest.mark.parametrize("view", views().values(), ids=lambda view: view.name)


@pytest.fixture
def engine(spark: SparkSession, example: Config) -> SparkEngine:
    return SparkEngine(warehouse_of(example, spark))


@each_view
def test_view_on_spark_gives_its_rows(
    example: Config, engine: SparkEngine, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the rows that delta-rs gives, by `tests/unit/test_sample_history.py`."""
    monkeypatch.setattr("grouptrail.query.views.utc_now", lambda: at(60 * 24 * 365))
    query, wanted = ASKED[view.name]
    assert asked(example, query, engine) == [pytest.approx(row) for row in wanted]


@pytest.mark.parametrize(
    "view",
    [
        pytest.param(view, id=view.name, marks=[] if view.name in EXAMPLES_IN_EACH_RUN else pytest.mark.full)
        for view in views().values()
    ],
)
def test_view_example_gives_the_same_rows_on_both_engines(
    example: Config, engine: SparkEngine, view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grouptrail.query.views.utc_now", lambda: at(60 * 24 * 365))
    assert sorted(map(str, asked(example, view.example, engine))) == sorted(
        map(str, asked(example, view.example, DeltaRs(warehouse_of(example))))
    )


def test_view_group_name_with_special_characters_is_matched_literally(spark: SparkSession, tmp_path: Path) -> None:
    """Quotes and dollar signs have a special meaning in Spark SQL."""
    config = Config(warehouse=str(tmp_path))
    name = "it's -- ${env:HOME} :time `x`"
    lay(config, "generations", {"group_id": name, "started_at": at(0)})
    lay(config, "memberships", {"group_id": name, "member_id": "m", "joined_at": at(0)})
    quoted = name.replace("'", "''")
    for engine in (DeltaRs(warehouse_of(config)), SparkEngine(warehouse_of(config, spark))):
        assert asked(config, f"SELECT member_id FROM members_at('{quoted}', now())", engine) == [{"member_id": "m"}]


def test_register_table_of_that_name_elsewhere_is_returned(spark: SparkSession, tmp_path: Path) -> None:
    """A table that is registered already is known however its location is spelled."""
    lay(Config(warehouse=str(tmp_path)), "topics", {"topic": "orders"})
    name = "default.topics_of_a_test"
    try:
        for spelling in (str(tmp_path), f"file://{tmp_path}"):
            table = warehouse_of(Config(warehouse=spelling), spark).table("topics")
            assert register(table, name) is None
        lay(Config(warehouse=str(tmp_path / "another")), "topics", {"topic": "orders"})
        another = warehouse_of(Config(warehouse=str(tmp_path / "another")), spark).table("topics")
        assert register(another, name) == f"file:{tmp_path}/topics"
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {name}")


def test_view_argument_with_backslash_raises_query_error_on_spark(example: Config, engine: SparkEngine) -> None:
    """A session setting decides what a backslash means to Spark."""
    with pytest.raises(QueryError, match="group is a string in quotes"):
        asked(example, r"SELECT * FROM members_at('a\b', now())", engine)


@settings(max_examples=5, deadline=None)
@given(texts=st.lists(st.text(), min_size=20, max_size=100))
def test_spark_literal_of_any_text_is_read_back_unchanged(spark: SparkSession, texts: list[str]) -> None:
    """Backslashes, quotes and variables are plain text."""
    texts += ["'", "\\", "\\'", "''", "\\u0041", "${env:HOME}", "--", "/*", "\n\r\x00"]
    [row] = spark.sql(f"SELECT array({', '.join(map(spark_literal, texts))})").collect()
    assert row[0] == texts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM offset_commit", "there is no table offset_commit: did you mean offset_commits?"),
        ("SELECT * FROM tombstone_checks", "nothing has landed in tombstone_checks"),
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
    example: Config, engine: SparkEngine, text: str, message: str
) -> None:
    """Errors are the same as on the other engine; nothing is written."""
    with pytest.raises(QueryError) as caught:
        asked(example, text, engine)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "SQLSTATE" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WITH a AS (SELECT 1 x) -- \\\n(\nDELETE FROM delta.`{path}`", "DeleteFromTable"),
        ("-- \rINSERT OVERWRITE DIRECTORY '{folder}/out' USING csv --\nSELECT 1", "InsertIntoDir"),
        ("WITH a AS (SELECT 1) FROM a INSERT INTO memberships SELECT *", "InsertIntoStatement"),
        ("SELECT TRANSFORM(1) USING 'sh -c \"touch {folder}/out\"'", "ScriptTransformation"),
        ("EXPLAIN SELECT TRANSFORM(1) USING 'cat'", "ScriptTransformation"),
        ("SELECT java_method('java.lang.System', 'getenv')", "java_method"),
        ("SELECT reflect('java.lang.System', 'getenv')", "reflect"),
        ("SELECT system.builtin.try_reflect('java.lang.System', 'getenv')", "try_reflect"),
        ("SELECT IDENTIFIER('java' || '_method')('java.lang.System', 'getenv')", "java_method"),
        ("SELECT * FROM text.`/etc/passwd`", "no table text./etc/passwd"),
        ("SELECT (SELECT max(value) FROM text.`/etc/passwd`)", "no table text./etc/passwd"),
        ("WITH a AS (SELECT * FROM text.`/etc/passwd`) SELECT * FROM a", "no table text./etc/passwd"),
        ("SELECT * FROM IDENTIFIER('text' || '.`/etc/passwd`')", "PlanWithUnresolvedIdentifier"),
        ("WITH `text./etc/passwd` AS (SELECT 1) SELECT * FROM text.`/etc/passwd`", "no table text./etc/passwd"),
        ("SELECT * FROM range((SELECT count(*) FROM text.`/etc/passwd`))", "no table text./etc/passwd"),
        ("SELECT from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '/etc/passwd'))", "from_xml"),
        ("DESCRIBE text.`/etc/passwd`", "no table text./etc/passwd"),
        ("DESCRIBE QUERY SELECT * FROM text.`/etc/passwd`", "no table text./etc/passwd"),
        ("SELECT * FROM delta.`{path}`", "no table delta."),
        ("SELECT * FROM table_changes_by_path('{path}', 0)", "no table table_changes_by_path"),
        ("SELECT * FROM spark_catalog.default.memberships", "no table spark_catalog.default.memberships"),
        ("SELECT * FROM other, (WITH other AS (SELECT 1) SELECT * FROM other)", "no table other"),
        ("SELECT * FROM memberships WITH (path = '/etc')", "UnresolvedRelation"),
        ("SHOW CREATE TABLE memberships", "ShowCreateTable"),
    ],
)
def test_spark_engine_refuses_all_but_queries_over_its_tables(
    example: Config, engine: SparkEngine, tmp_path: Path, text: str, message: str
) -> None:
    """However the statement is disguised, nothing is written, executed or read from elsewhere."""
    path = warehouse_of(example).table("memberships").path
    version = DeltaTable(path).version()
    with pytest.raises(QueryError, match=re.escape(message)):
        asked(example, text.format(path=path, folder=tmp_path), engine)
    assert not list(tmp_path.iterdir())
    assert DeltaTable(path).version() == version


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("SELECT '${env:PATH}' AS p, a.* FROM VALUES (1), (2) AS a(x) WHERE x IN (SELECT 1)", 1),
        ("WITH RECURSIVE r(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT * FROM r", 5),
        ("SELECT /*+ BROADCAST(m) */ e.c FROM Memberships m LATERAL VIEW explode(array(1, 2)) e AS c LIMIT 3", 3),
        ("SELECT * FROM (SELECT * FROM range(9)) TABLESAMPLE (3 ROWS)", 3),
        ("SELECT row_number() OVER w FROM range(2) WINDOW w AS (ORDER BY id)", 2),
        ("DESCRIBE memberships member_id", None),
        ("SHOW TABLES", None),
        ("EXPLAIN SELECT * FROM memberships", 1),
    ],
)
def test_spark_engine_answers_every_form_of_query(
    example: Config, engine: SparkEngine, text: str, count: int | None
) -> None:
    """Spark's own syntax is allowed; environment variables are not substituted."""
    answered = asked(example, text, engine)
    assert answered
    assert count in (None, len(answered))
    assert "/bin" not in str(answered)
