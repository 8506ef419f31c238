"""The lag job's processing without Spark: what it reads from the tables, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from grouptrail.config import Config
from grouptrail.decode.schema import row_schema
from grouptrail.lag import job, positions, state
from grouptrail.lag.index import ints, moment
from grouptrail.lag.job import LagHere, LagWriter, summary
from grouptrail.lag.seconds import kept_times
from grouptrail.lag.state import PUBLISHED, LagState, split_samples
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.schema import table_schema
from grouptrail.storage.table import Table
from support import lag_samples, small_tables
from support.contexts import lag_inputs
from support.lag_cluster import empty_tables
from support.lag_samples import LOGS, at

COMMITTED = table_schema("committed_offsets")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return empty_tables(tmp_path)


def commit(config: Config, seconds: float, offset: int | None, **more: Any) -> None:
    row = {"topic": "orders", "partition": 0, "record_offset": round(seconds * 10) + 10_000, "record_at": at(seconds)}
    row |= {"committed_offset": offset, "commit_at": at(seconds), "is_tombstone": offset is None}
    small_tables.lay(config, "offset_commits", row | more)


def live(seconds: float, offset: int | None) -> pa.Table:
    """Return a commit as the decoder makes it."""
    row = {"group_id": "billing", "topic": "orders", "partition": 0, "record_partition": 9}
    row |= {"record_offset": round(seconds * 10) + 10_000, "record_at": at(seconds)}
    row |= {"committed_offset": offset, "is_tombstone": offset is None}
    return pa.Table.from_pylist([row], row_schema("offset_commits"))


def log(seconds: float, end: int, partition: int = 0) -> dict[str, Any]:
    return lag_samples.log(seconds, end, partition=partition, cluster="default")


def new_state(config: Config) -> LagState:
    return LagState(lag_inputs(config), lambda _: None)


def lag_of(lag: LagState, config: Config, *logs: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of a batch of these samples, and store both as the jobs do."""
    rows = pa.Table.from_pylist(list(logs), LOGS)
    write_deltalake(warehouse_of(config).table("log_offsets").path, rows, mode="append")
    computed = lag.lag(rows)
    write_deltalake(warehouse_of(config).table("consumer_lag").path, computed, mode="append")
    return [dict(row) for row in computed.to_pylist()]


def store_committed(config: Config, **row: Any) -> None:
    where = {"cluster": "default", "group_id": "billing", "topic": "orders", "partition": 0, "record_partition": 9}
    rows = pa.Table.from_pylist([where | row], COMMITTED)
    write_deltalake(warehouse_of(config).table("committed_offsets").path, rows, mode="append")


def test_lag_batch_uses_own_clusters_commits_and_group_states(config: Config) -> None:
    """Commits of another cluster do not count."""
    commit(config, -5, 100)
    commit(config, -4, 7, cluster="another")
    small_tables.lay(
        config, "group_states", {"state": "Stable", "started_at": at(-60), "is_open": True, "open_bucket": 1}
    )
    [row] = lag_of(new_state(config), config, log(0, 150))
    assert (row["group_id"], row["lag"], row["group_state"]) == ("billing", 50, "Stable")


def test_lag_commit_that_the_coordinator_no_longer_has_is_gone_also_after_a_restart_until_a_later_one(
    config: Config,
) -> None:
    """The answer of the coordinator is about what had been read before it was asked."""
    commit(config, -5, 100, record_offset=400)
    about = {"topic": "orders", "partition": 0, "is_gone": True, "checked_at": at(5), "record_offset": 500}
    small_tables.lay(config, "tombstone_checks", {**about, "record_offset": 0, "partition": 1})
    lag = new_state(config)
    assert [row["lag"] for row in lag_of(lag, config, log(0, 150))] == [50]
    small_tables.lay(config, "tombstone_checks", about)
    assert lag_of(lag, config, log(10, 150)) == []
    assert (len(lag.commits()[0]), lag.has_new_commits) == (0, False)
    assert lag_of(new_state(config), config, log(20, 150)) == []
    commit(config, 25, 140)
    for running in (lag, new_state(config)):
        assert [row["lag"] for row in lag_of(running, config, log(30, 150))] == [10]


def test_lag_batch_of_several_samples_uses_the_commits_of_each_time(config: Config) -> None:
    """Such a batch follows a stop of the job."""
    commit(config, -5, 100)
    commit(config, 15, 140)
    rows = lag_of(new_state(config), config, log(0, 150), log(20, 160), log(10, 150))
    assert [(row["sampled_at"], row["lag"]) for row in rows] == [(at(0), 50), (at(10), 50), (at(20), 20)]


def test_lag_job_after_restart_gives_the_same_rows(config: Config) -> None:
    """Whether or not the commits were stored before it: lag, seconds, rates and statuses."""
    steady, commits = new_state(config), 0
    for number in range(40):
        commits = 100 + 2 * (number // 8)
        commit(config, number * 10 - 1, commits)
        lag_of(steady, config, log(number * 10, 150 + 3 * number))
    for stored in (False, True):
        if stored:
            store_committed(config, record_offset=10_000 + 10 * 349, committed_offset=106, record_at=at(349))
        again = new_state(config)
        rows = pa.Table.from_pylist([log(400, 280)], LOGS)
        expected = steady.lag(rows).to_pylist()
        assert again.lag(rows).to_pylist() == expected
    [row] = expected
    assert (row["lag"], row["lag_seconds_method"], row["status"]) == (172, "bounded", "WARN")
    assert None not in (row["consume_rate"], row["produce_rate"])


@pytest.mark.parametrize("days", [0.5, 3, 6.5])
def test_lag_job_after_restart_knows_how_old_a_commit_of_the_last_week_is(config: Config, days: float) -> None:
    """From nine days of hourly samples, of which a tenth of the age apart is kept, and samples that failed."""
    hours, day = 9 * 24, 24 * 3600
    logs = [log(hour * 3600, 1000 * hour) for hour in range(hours)]
    failed = [row | {"log_end_offset": None, "error": "timed out"} for row in logs[1::2]]
    write_deltalake(
        warehouse_of(config).table("log_offsets").path, pa.Table.from_pylist(logs[::2] + failed, LOGS), mode="append"
    )
    commit(config, -1, round((9 - days) * 24 * 1000) + 1)
    [row] = lag_of(new_state(config), config, log(hours * 3600, 1000 * hours))
    assert row["lag_seconds"] == pytest.approx(days * day, rel=0.12)


def test_lag_job_after_restart_opens_only_files_of_samples_that_it_keeps(config: Config) -> None:
    """Without OPTIMIZE each file has a sample, and a day thousands of files."""
    hours = 100
    for hour in range(hours):
        rows = pa.Table.from_pylist([log(hour * 3600 + hour / 1000, 1000 * hour)], LOGS)
        write_deltalake(warehouse_of(config).table("log_offsets").path, rows, mode="append")
    micros = ints(pa.array([at(hour * 3600 + hour / 1000) for hour in range(hours)]))
    now = log(hours * 3600, 1000 * hours)
    kept = {moment(first) for first, _ in kept_times(micros, int(ints(pa.array([now["sampled_at"]]))[0]), 5)}
    files = pa.table(
        DeltaTable(warehouse_of(config).table("log_offsets").path).get_add_actions(flatten=True)
    ).to_pylist()
    unneeded = [file["path"] for file in files if file["min.sampled_at"] and file["min.sampled_at"] not in kept]
    assert len(unneeded) > hours / 2
    commit(config, -1, 50_001)
    prepared = new_state(config)
    prepared.prepare()  # which looks whether there is a sample
    for path in unneeded:
        (Path(warehouse_of(config).table("log_offsets").path) / path).unlink()
    [row] = lag_of(prepared, config, now)
    assert row["lag_seconds"] == pytest.approx(50 * 3600, rel=0.12)


def test_lag_job_stores_the_newest_commits_only_if_there_are_new_ones(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []
    monkeypatch.setattr(job, "_STORE_COMMITTED_EVERY_SECONDS", 0)
    monkeypatch.setattr(Table, "append", lambda *_given: None)
    monkeypatch.setattr(Table, "replace", lambda *_: stored.append(batch))
    writer = LagWriter(LagHere(warehouse_of(config), new_state(config)), app=lambda: "app", log=lambda _: None)
    commit(config, -1, 100)
    for batch in (0, 1, 2):
        if batch == 2:
            commit(config, 19, 110)
        rows = pa.Table.from_pylist([log(10 * batch, 150)], LOGS)
        writer.process(rows, batch)
    assert stored == [0, 2]


def test_lag_job_prepared_before_the_first_sample_computes_the_same_without_reading_commits_again(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(config, -1, 100)
    expected = lag_of(new_state(config), config, log(0, 150))
    read: list[str] = []
    read_rows = Table.read

    def recording(table: Table, *rest: Any) -> Any:
        read.append(table.name)
        return read_rows(table, *rest)

    monkeypatch.setattr(Table, "read", recording)
    prepared = new_state(config)
    prepared.prepare()
    prepared.prepare()
    assert read == [positions.TABLE]
    assert prepared.fresh_rows() is None  # there is no sample yet
    assert prepared.lag(pa.Table.from_pylist([log(0, 150)], LOGS)).to_pylist() == expected
    assert read.count(positions.TABLE) == 1


def test_lag_job_reads_what_is_committed_while_it_waits_for_its_first_sample(config: Config) -> None:
    prepared = new_state(config)
    prepared.prepare()
    commit(config, -1, 100)
    prepared.prepare()
    assert prepared._prepared is not None
    assert prepared._prepared.positions.latest()["committed_offset"].to_pylist() == [100]


def test_lag_batch_retried_ignores_rows_of_its_first_attempt(config: Config) -> None:
    """Rows that the first attempt stored are no earlier samples."""
    commit(config, -1, 100)
    first = lag_of(new_state(config), config, log(0, 90), log(10, 150))
    assert [row["lag_seconds_method"] for row in first] == ["observed", "observed"]
    again = new_state(config).lag(pa.Table.from_pylist([log(0, 90), log(10, 150)], LOGS))
    assert again.to_pylist() == first


def test_lag_job_after_restart_keeps_only_commits_apart_that_a_sample_may_not_see(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where all are read, those from before the samples of a batch that may come again are merged meanwhile."""
    monkeypatch.setattr(positions, "_MANY", 1)
    for number in range(1, 50):
        commit(config, -number * 100, 5000 - number)
    lag_of(new_state(config), config, log(0, 6000))
    again = new_state(config)
    again.prepare()
    assert again._prepared is not None
    waiting = pa.concat_tables(again._prepared.positions._due._waiting)
    kept = state.MOST_SAMPLES_A_BATCH * config.log_offsets.interval_seconds + state.CLOCKS_APART.total_seconds()
    assert sorted(waiting["committed_offset"].to_pylist()) == list(range(5001 - int(kept // 100), 5000))
    late = [log(number * 10 - 190, 6000) for number in range(20)]
    rows = again.lag(pa.Table.from_pylist(late, LOGS)).to_pylist()
    assert [row["committed_offset"] for row in rows] == [4998] * 9 + [4999] * 11


def test_commits_after_the_stored_ones_of_their_partition_are_added() -> None:
    """All of a partition of which none is stored."""
    rows = [(0, 5), (2, 7), (2, 8), (4, 0), (1, 0)]
    commits = pa.table(
        dict(zip(("record_partition", "record_offset"), map(list, zip(*rows, strict=True)), strict=True))
    )
    stored = {"record_partition": 2, "record_offset": 7}
    newest = positions.from_stored(pa.Table.from_pylist([stored, stored | {"record_offset": 3}], COMMITTED))[1]
    assert positions.after(commits, newest)["record_offset"].to_pylist() == [5, 8, 0, 0]
    assert positions.after(commits.slice(0, 0), newest).num_rows == 0


def test_lag_job_after_restart_knows_by_its_own_stored_lag_which_samples_are_over(config: Config) -> None:
    """Where the newest file has another cluster's rows too, it does not know."""
    commit(config, -1, 100)
    lag_of(new_state(config), config, log(0, 150))
    kept = state.MOST_SAMPLES_A_BATCH * config.log_offsets.interval_seconds + state.CLOCKS_APART.total_seconds()
    until = new_state(config)._first_until()
    assert until is not None
    assert moment(until) == at(-kept)
    path = warehouse_of(config).table("consumer_lag").path
    rows = DeltaTable(path).to_pyarrow_table()
    days_later = {"cluster": "another", "sampled_at": at(864_000)}
    others = pa.Table.from_pylist([row | days_later for row in rows.to_pylist()], rows.schema)
    write_deltalake(path, pa.concat_tables([rows, others]), mode="overwrite")
    assert new_state(config)._first_until() is None


def test_lag_job_after_restart_keeps_deleted_offsets_deleted(config: Config) -> None:
    """Their tombstones came after the commits were stored."""
    store_committed(config, record_offset=10_000, committed_offset=100, record_at=at(0))
    commit(config, 0, 100)
    commit(config, 5, None)
    assert lag_of(new_state(config), config, log(10, 150)) == []


def test_lag_job_started_after_an_admin_reset_judges_the_group_by_its_commits(config: Config) -> None:
    """An administrator's commit and that of a consumer without membership are alike."""
    gone = {"started_at": at(-600), "is_open": True, "open_bucket": 1}
    small_tables.lay(config, "group_states", gone | {"state": "Empty"})
    small_tables.lay(config, "memberships", {"member_id": "a", "left_at": at(-600), "ended": "left"})
    commit(config, -603, 100)
    commit(config, -400, 90)
    store_committed(config, record_offset=10_000 - 4_000, committed_offset=90, record_at=at(-400))
    rows = lag_of(new_state(config), config, *(log(second, 150) for second in range(0, 320, 10)))
    assert (rows[0]["status"], rows[-1]["status"]) == ("OK", "STOP")


def test_lag_job_after_optimize_of_commits_uses_the_newest_commit(config: Config) -> None:
    lag = new_state(config)
    for number in range(3):
        commit(config, number * 10 - 1, 100 + number)
        lag_of(lag, config, log(number * 10, 150))
    DeltaTable(warehouse_of(config).table("offset_commits").path).optimize.compact()
    [row] = lag_of(lag, config, log(30, 150))
    assert (row["committed_offset"], row["lag"]) == (102, 48)


def test_lag_between_samples_uses_new_commits_and_the_last_log_end(config: Config) -> None:
    """These rows are published between samples."""
    lag = new_state(config)
    commit(config, -5, 100)
    assert lag.fresh_rows() is None  # there is no sample yet
    computed = lag_of(lag, config, log(0, 150))
    fresh = lag.fresh_rows()
    assert fresh is not None
    assert fresh.to_pylist() == [{name: row[name] for name in PUBLISHED} for row in computed]
    assert lag.fresh_rows() is None
    commit(config, 4, 130)
    fresh = lag.fresh_rows()
    assert fresh is not None
    [row] = fresh.to_pylist()
    assert lag.fresh_rows() is None
    assert (row["sampled_at"], row["committed_offset"], row["lag"]) == (at(0), 130, 20)


def test_lag_by_live_commits_is_published_but_neither_stored_nor_seen_by_samples(config: Config) -> None:
    lag = new_state(config)
    lag.add_live(live(4, 130))
    assert lag.fresh_rows() is None  # there is no sample yet
    commit(config, -5, 100)
    lag_of(lag, config, log(0, 150))
    lag.add_live(live(4, 130).slice(0, 0))
    lag.fresh_rows()
    assert lag.fresh_rows() is None
    lag.add_live(live(4, 130))
    fresh = lag.fresh_rows()
    assert fresh is not None
    assert [(row["committed_offset"], row["lag"]) for row in fresh.to_pylist()] == [(130, 20)]
    assert lag.commits()[0]["committed_offset"].to_pylist() == [100]
    [row] = lag_of(lag, config, log(10, 150))
    assert row["committed_offset"] == 100
    commit(config, 4, 130)
    [row] = lag_of(lag, config, log(20, 150))
    assert row["committed_offset"] == 130


def test_lag_by_a_live_deletion_is_no_longer_published(config: Config) -> None:
    lag = new_state(config)
    commit(config, -5, 100)
    lag_of(lag, config, log(0, 150))
    lag.add_live(live(4, None))
    fresh = lag.fresh_rows()
    assert fresh is not None
    assert not len(fresh)


def test_lag_exact_groups_unreachable_brokers_are_logged(config: Config) -> None:
    """The ages come from the samples then."""
    lines: list[str] = []
    config = config.model_copy(update={"lag": config.lag.model_copy(update={"exact_groups": ("*",)})})
    commit(config, -5, 100)
    lag = LagState(lag_inputs(config), lines.append)
    [row] = lag_of(lag, config, log(0, 150))
    assert (row["lag"], row["lag_seconds_method"]) == (50, "bounded")
    assert len(lines) == 1
    assert lines[0].startswith("lag: the records of lag.exact_groups cannot be fetched: no Kafka broker answers at")


def test_split_samples_rows_within_half_the_interval_form_one_sample() -> None:
    rows = pa.Table.from_pylist([log(0, 1), log(0.8, 1, 1), log(10, 2), log(10.2, 2, 1)], LOGS)
    times = ints(rows["sampled_at"])
    assert [len(sample) for sample in split_samples(rows, times, 5)] == [2, 2]
    assert split_samples(rows.slice(0, 0), times[:0], 5) == []


def test_summary_counts_positions_by_status_in_one_line() -> None:

    assert summary(7, {"STOP": 2, "OK": 1200}, 0.31) == "lag batch 7: 1,202 positions (1,200 OK, 2 STOP) in 0.3 s"
    assert summary(0, {}, 0.31) == "lag batch 0: 0 positions (nothing) in 0.3 s"
