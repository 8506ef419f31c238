"""Queries in processes of their own: the same answers as `grouptrail sql`, and what happens at each limit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from grouptrail.config import Config
from grouptrail.errors import GrouptrailError
from grouptrail.query import process
from grouptrail.query.process import AbandonedError, BusyError, LimitError, Limits, QueryProcesses, QueryResult
from grouptrail.query.sql import run_query
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.result_rows import rows
from support.deadlines import scaled
from support.from_config import SAMPLE_SECONDS, sql_context

LIMITS = Limits(max_rows=1000, max_result_bytes=1_000_000, max_memory_bytes=1_000_000_000, timeout_seconds=60)
ENDLESS = (
    "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b WHERE a.value < b.value"
)


def run(config: Config, text: str, **limits: Any) -> QueryResult:
    return QueryProcesses(replace(LIMITS, **limits), 1).run(warehouse_of(config), text, sample_seconds=SAMPLE_SECONDS)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT * FROM rebalances ORDER BY at",
        "SELECT * FROM owners_at('billing', '2026-03-04T12:01:30Z') ORDER BY topic, partition",
        "SELECT 1.5::DECIMAL(10, 2), [1, 2] l, {'a': 'ä'}, X'00ff', INTERVAL '1 day', NULL, DATE '2026-03-04'",
        "SELECT a.group_id, b.group_id FROM rebalances a JOIN rebalances b ON a.at = b.at ORDER BY a.at",
        "SELECT * FROM consumer_lag WHERE false",
    ],
)
def test_result_is_that_of_grouptrail_sql(example: Config, text: str) -> None:
    schema, batches = run_query(sql_context(example), text)
    result = run(example, text)
    assert result.schema.names == schema.names
    assert list(rows(result.batches())) == list(rows(batches))
    assert not result.is_cut


@pytest.mark.parametrize(
    "text",
    [
        "SELEC 1",
        "SELECT * FROM rebalancs",
        "SELECT nothing FROM rebalances",
        "SELECT * FROM owners_at('billin', now())",
    ],
)
def test_wrong_query_gets_the_line_of_grouptrail_sql(example: Config, text: str) -> None:
    messages = []
    for answer in (lambda: list(run_query(sql_context(example), text)[1]), lambda: run(example, text)):
        with pytest.raises(GrouptrailError) as caught:
            answer()
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
    assert "\n" not in messages[0]


def test_result_of_a_view_says_how_old_its_data_are(example: Config) -> None:
    assert str(run(example, "SELECT * FROM current_lag").note).startswith("as of 2026-03-04 12:02:06 UTC (")
    assert run(example, "SELECT * FROM consumer_lag").note is None


def test_rows_beyond_the_limit_are_left_out(example: Config) -> None:
    text = "SELECT value FROM generate_series(1, 50000)"
    result = run(example, text, max_rows=10_000)
    assert (result.table.num_rows, result.is_cut) == (10_000, True)
    exact = run(example, "SELECT value FROM generate_series(1, 1000)")
    assert (exact.table.num_rows, exact.is_cut) == (1000, False)


@pytest.mark.parametrize(
    ("text", "some"),
    [
        ("SELECT repeat('x', 10000) AS wide FROM generate_series(1, 500)", range(25, 100)),
        ("SELECT repeat('x', 50000000) AS huge", range(1)),
    ],
)
def test_bytes_beyond_the_limit_are_left_out(example: Config, text: str, some: range) -> None:
    result = run(example, text, max_result_bytes=1_000_000)
    assert result.is_cut
    assert result.table.num_rows in some
    assert result.table.nbytes <= 1_000_000


def test_query_that_takes_too_long_is_stopped(example: Config) -> None:
    with pytest.raises(LimitError, match=r"longer than 1\.5 s and was stopped: read less"):
        run(example, ENDLESS, timeout_seconds=1.5)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT array_agg(value || repeat('x', 100)) FROM generate_series(1, 100000000)",
        "SELECT value, count(*) FROM generate_series(1, 100000000) GROUP BY value ORDER BY 2",
    ],
)
def test_query_that_needs_too_much_memory_is_stopped(example: Config, text: str) -> None:
    with pytest.raises(LimitError, match="needs more than 400 MB of memory and was stopped: read fewer"):
        run(example, text, max_memory_bytes=400_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "COPY (SELECT 1) TO '{folder}/out.csv'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
        "DESCRIBE ANALYZE COPY (SELECT 1) TO '{folder}/out.csv'",
        "EXPLAIN FORMAT COPY (SELECT 1) TO '{folder}/out.csv'",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{folder}/secret.csv'",
        "SET datafusion.execution.batch_size = 1",
        "INSERT INTO rebalances SELECT * FROM rebalances",
        "WITH a AS (SELECT 1) INSERT INTO rebalances SELECT * FROM rebalances",
        "DESCRIBE ANALYZE INSERT INTO rebalances SELECT * FROM rebalances",
        "DELETE FROM rebalances",
        "DROP TABLE rebalances",
        "SELECT 1; COPY (SELECT 1) TO '{folder}/out.csv'",
        "SELECT * FROM '{folder}/secret.csv'",
        'SELECT * FROM "{folder}/secret.csv"',
        'SELECT * FROM "file://{folder}/secret.csv"',
        "SELECT * FROM 'https://example.com/secret.csv'",
        "SELECT * FROM read_csv('{folder}/secret.csv')",
        "SELECT * FROM read_parquet('{folder}/secret.csv')",
    ],
)
def test_only_tables_and_views_are_read_and_nothing_is_written(example: Config, tmp_path: Path, text: str) -> None:
    (tmp_path / "secret.csv").write_text("password\nhunter2\n")
    with pytest.raises(GrouptrailError) as caught:
        list(run_query(sql_context(example), text.format(folder=tmp_path))[1])
    assert "hunter2" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_process_cannot_write_files_whatever_the_engine_does(example: Config, tmp_path: Path) -> None:
    code = "import re\nfrom grouptrail.query import process, sql\nsql._QUERY = re.compile('')\nprocess.main()\n"
    request = process._request(
        warehouse_of(example), f"COPY (SELECT 1) TO '{tmp_path}/out.csv'", SAMPLE_SECONDS, LIMITS
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], input=request, capture_output=True, check=True, timeout=scaled(60)
    )
    assert "finalizing writes" in json.loads(ran.stdout.partition(b"\n")[0])["problem"]
    assert [path for path in tmp_path.iterdir() if path.stat().st_size] == []


def test_secrets_are_on_no_command_line_and_in_no_variable(example: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = example.model_copy(update={"storage": {"aws_secret_access_key": "hunter2"}})
    started: list[tuple[Any, dict[str, Any]]] = []
    real = subprocess.Popen

    def popen(command: Any, **options: Any) -> Any:
        started.append((command, options))
        return real(command, **options)

    monkeypatch.setattr(process.subprocess, "Popen", popen)
    assert run(config, "SELECT 1 AS one").table.to_pylist() == [{"one": 1}]
    assert b"hunter2" in process._request(warehouse_of(config), "", SAMPLE_SECONDS, LIMITS)
    [(command, options)] = started
    assert "hunter2" not in str(command)
    assert "hunter2" not in str(options)


def test_process_whose_caller_is_gone_ends(example: Config) -> None:
    """The caller never kills it here, as if it had been killed itself."""
    limits = replace(LIMITS, timeout_seconds=0.5)
    command = [sys.executable, "-P", "-m", "grouptrail.query.process"]
    ran = subprocess.run(
        command,
        input=process._request(warehouse_of(example), ENDLESS, SAMPLE_SECONDS, limits),
        capture_output=True,
        check=False,
        timeout=scaled(60),
    )
    assert ran.returncode == -signal.SIGALRM


def test_query_whose_client_is_gone_is_stopped_and_leaves_its_place(
    example: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(command: Any, **options: Any) -> Any:
        processes.append(real(command, **options))
        return processes[-1]

    monkeypatch.setattr(process.subprocess, "Popen", popen)
    queries = QueryProcesses(LIMITS, 1)
    arguments: dict[str, Any] = {"sample_seconds": SAMPLE_SECONDS}
    with pytest.raises(AbandonedError, match="so its query was stopped: keep it open"):
        queries.run(warehouse_of(example), ENDLESS, **arguments, is_abandoned=lambda: bool(processes))
    assert processes[0].returncode == -signal.SIGKILL
    with pytest.raises(AbandonedError):
        queries.run(warehouse_of(example), ENDLESS, **arguments, is_abandoned=lambda: True)
    assert len(processes) == 1, "it was not started any more"
    result = queries.run(warehouse_of(example), "SELECT 1", **arguments, is_abandoned=lambda: False)
    assert result.table.num_rows == 1


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An interpreter that fails."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\ncat > /dev/null\necho 'thread panicked' >&2\nexit 101\n")
    path.chmod(0o755)
    monkeypatch.setattr(process.sys, "executable", str(path))
    return path


def test_process_that_ends_without_an_answer_is_reported_in_one_line(example: Config, broken: Path) -> None:
    with pytest.raises(GrouptrailError, match=r"^the query's process ended without an answer \(thread panicked\)"):
        run(example, "SELECT 1")


def test_queries_beyond_the_number_at_a_time_are_refused(example: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_WAIT_SECONDS", 0.01)
    queries = QueryProcesses(replace(LIMITS, timeout_seconds=3), 1)
    outcomes: list[str] = []

    def endless() -> None:
        try:
            queries.run(warehouse_of(example), ENDLESS, sample_seconds=SAMPLE_SECONDS)
        except GrouptrailError as error:
            outcomes.append(str(error))

    first = threading.Thread(target=endless)
    first.start()
    while queries._free is None or queries._free._value:
        pass
    with pytest.raises(BusyError, match="1 query runs already, which is the limit: try again"):
        queries.run(warehouse_of(example), "SELECT 1", sample_seconds=SAMPLE_SECONDS)
    first.join()
    assert "longer than 3 s" in outcomes[0]
    assert queries.run(warehouse_of(example), "SELECT 1", sample_seconds=SAMPLE_SECONDS).table.num_rows == 1


def test_no_queries_at_a_time_disable_sql(example: Config) -> None:
    with pytest.raises(
        GrouptrailError, match=r"SQL is disabled here: use `grouptrail sql`, or set web\.sql_max_queries"
    ):
        QueryProcesses(LIMITS, 0).run(warehouse_of(example), "SELECT 1", sample_seconds=SAMPLE_SECONDS)


def test_process_leaves_the_processor_and_memory_to_others() -> None:
    code = (
        "import os, resource\n"
        "from grouptrail.query.process import Limits, _limit_this_process\n"
        "_limit_this_process(Limits(1, 1, 300_000_000, 9))\n"
        "print(os.nice(0), resource.getrlimit(resource.RLIMIT_DATA)[0], open('/proc/self/oom_score_adj').read())\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=scaled(60))
    nice, data, adjusted = map(int, ran.stdout.split())
    assert nice >= min(os.nice(0) + 10, 19)
    assert (data, adjusted) == (300_000_000, 1000)


def test_views_of_strings_are_cut_with_their_bytes() -> None:
    """A slice of a column of views refers to the bytes of all its rows."""
    views = pa.RecordBatch.from_pydict({"v": pa.array(["y" * 1000] * 100).cast(pa.string_view())})
    is_cut, stream = process._answer(views.schema, iter([views]), replace(LIMITS, max_rows=2))
    assert is_cut
    assert len(stream) < 4000
