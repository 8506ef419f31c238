"""`grouptrail show lag`: a line a group, the worst first, and a line a partition where some are named."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.query.show_lag import show_lag
from grouptrail.runtime.warehouses import warehouse_of
from support import small_tables
from support.deadlines import scaled
from support.from_config import SAMPLE_SECONDS
from support.terminal import on_terminal

NOTE = re.compile(
    r"as of 2026-03-04 12:01:00 UTC \(\d+ d \d+ h ago\): nothing has been recorded since, "
    "see whether `grouptrail run` runs"
)
NEVER = {"lag": None, "lag_seconds": None, "lag_seconds_method": None, "lag_seconds_error": None}


def row(group: str, partition: int, lag: int, seconds: float, status: str = "OK", **more: Any) -> dict[str, Any]:
    """Return a lag row, sampled a minute after the earlier ones."""
    where = {"group_id": group, "topic": "orders", "partition": partition, "sampled_at": small_tables.at(1)}
    offsets = {"committed_offset": 1000, "log_start_offset": 0, "log_end_offset": 1000 + lag, "lag": lag}
    verdict = {
        "lag_seconds": seconds,
        "lag_seconds_method": "observed",
        "status": status,
        "status_reason": "a reason",
    }
    rates = {"consume_rate": 10.0, "produce_rate": 5.0, "catch_up_seconds": lag / 5, "group_state": "Stable"}
    return where | offsets | verdict | rates | more


def lay_states(config: Config, *dead: tuple[str, float]) -> None:
    """Write the states of groups that were deleted at these minutes; without any, of one that lives."""
    states = [{"group_id": group, "state": "Dead", "started_at": small_tables.at(minute)} for group, minute in dead]
    alive = {"group_id": "billing", "state": "Stable", "started_at": small_tables.at(0)}
    small_tables.lay(config, "group_states", *(states or [alive]))


@pytest.fixture
def config(config: Config) -> Config:
    small_tables.lay(
        config,
        "consumer_lag",
        row("gone", 0, 9, 9) | {"sampled_at": small_tables.at(0)},
        row("billing", 0, 0, 0) | {"sampled_at": small_tables.at(0)},
        row("billing", 0, 1200, 95, "STOP", status_reason="no commit for 300 s"),
        row("billing", 1, 30, 7322, "WARN", lag_seconds_method="bounded", catch_up_seconds=None),
        row("shipping", 0, 0, 0),
        row("shipping", 1, 5, 0.4, lag_seconds_method="exact"),
        row("fraud", 0, 0, 0, "UNKNOWN", problem="topic deleted", consume_rate=None, produce_rate=None) | NEVER,
        row("nightly", 0, 5_000, 200_000, "EMPTY", group_state="Empty"),
        row("hostile\x1b[2J", 0, 1, 1),
    )
    lay_states(config)
    return config


def shown(config: Config, *groups: str, topics: tuple[str, ...] = ()) -> list[list[str]]:
    """Return the cells of each line: first the header, last the time of the sample."""
    out = StringIO()
    show_lag(
        warehouse_of(config), sample_seconds=SAMPLE_SECONDS, groups=groups, topics=topics, format="table", out=out
    )
    return [
        [word for word in line.strip().split("  ") if word] for line in out.getvalue().splitlines() if "─" not in line
    ]


def test_show_lag_prints_one_line_per_group_worst_first(config: Config) -> None:
    """Sums of known lag, the longest age, and the worst status with its reason; deleted groups are omitted."""
    head, *lines, last = shown(config)
    assert [word.strip() for word in head[:5]] == ["group", "status", "partitions", "lag", "behind"]
    assert [[word.strip() for word in line[:5]] for line in lines] == [
        ["billing", "STOP", "2", "1,230", "≥ 2 h 2 min"],
        ["fraud", "UNKNOWN", "1", "-", "-"],
        ["nightly", "EMPTY", "1", "5,000", "2 d 7 h"],
        ["shipping", "OK", "2", "5", "= 0.4 s"],
        ["hostile\\x1b[2J", "OK", "1", "1", "1 s"],
    ]
    assert lines[0][-1].strip() == "no commit for 300 s"
    assert "20.0/s" in " ".join(lines[0])
    assert lines[1][-1].strip() == "topic deleted"
    assert "in 1 s" in " ".join(lines[3])
    assert "2026-03-04 12:01:00 UTC" in " ".join(last)


def test_show_lag_marks_lag_of_a_polled_share_group_that_is_a_bound(config: Config) -> None:
    small_tables.lay(config, "consumer_lag", row("queue", 0, 40, 1, lag_error=3), row("queue", 1, 1, 1, lag_error=0))
    of_group = next(line for line in shown(config) if line[0] == "queue")
    of_partitions = shown(config, "queue")[1:-1]
    assert [of_group[3].strip(), *(line[6].strip() for line in of_partitions)] == ["≤ 41", "≤ 40", "1"]


def test_show_lag_named_groups_or_topics_prints_one_line_per_partition(config: Config) -> None:
    """Each line has the method of its lag."""
    head, *lines, _ = shown(config, "bill*")
    assert [word.strip() for word in head[:8]] == [
        *("group", "topic", "partition", "status", "committed", "end", "lag", "behind")
    ]
    assert [[word.strip() for word in line[:8]] for line in lines] == [
        ["billing", "orders", "0", "STOP", "1,000", "2,200", "1,200", "1 min 35 s"],
        ["billing", "orders", "1", "WARN", "1,000", "1,030", "30", "≥ 2 h 2 min"],
    ]
    assert len(shown(config, topics=("ord*",))) == 2 + 7


def test_show_lag_json_prints_one_object_per_partition(config: Config) -> None:
    """One line per partition, with the values of the table."""
    out = StringIO()
    show_lag(
        warehouse_of(config), sample_seconds=SAMPLE_SECONDS, groups=("billing",), topics=(), format="json", out=out
    )
    first, second = map(json.loads, out.getvalue().splitlines())
    assert (first["status"], first["lag"], first["lag_seconds"]) == ("STOP", 1200, 95.0)
    assert (second["partition"], second["catch_up_seconds"]) == (1, None)


def test_show_lag_unknown_group_cluster_or_missing_table_raises(config: Config, tmp_path: Path) -> None:
    """A group that does not exist, a cluster without lag, a warehouse without the table."""
    with pytest.raises(
        QueryError, match="there is no lag of group bilinng in cluster default: `grouptrail show lag`"
    ):
        shown(config, "bilinng")
    with pytest.raises(QueryError, match="no lag of cluster other has landed yet: run `grouptrail run`"):
        shown(config.model_copy(update={"cluster": "other"}))
    with pytest.raises(QueryError, match="nothing has landed in consumer_lag under"):
        shown(Config(warehouse=str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("format", "where"), [("table", "out"), ("markdown", "out"), ("json", "err"), ("csv", "err")]
)
def test_show_lag_old_samples_are_called_old_in_every_format(
    config: Config, format: Any, where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """On stderr where only programs read the output."""
    out = StringIO()
    show_lag(warehouse_of(config), sample_seconds=SAMPLE_SECONDS, groups=(), topics=(), format=format, out=out)
    printed = {"out": out.getvalue(), "err": capsys.readouterr().err}
    assert NOTE.fullmatch(printed[where].splitlines()[-1].replace("\\", ""))


def test_show_lag_new_samples_have_their_age(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path))
    small_tables.lay(config, "consumer_lag", row("billing", 0, 0, 0, sampled_at=datetime.now(UTC)))
    lay_states(config)
    *_, last = shown(config)
    assert re.fullmatch(r"as of \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d+\.?\d* s ago\)", " ".join(last))


def groups_shown(config: Config) -> list[str]:
    _, *lines, _ = shown(config)
    return [line[0] for line in lines]


def test_show_lag_group_missing_from_the_newest_round_is_omitted(tmp_path: Path) -> None:
    """Rounds are ten seconds apart, and the brokers of a round do not answer at the same time."""
    config = Config(warehouse=str(tmp_path))
    lay_states(config)
    for group, seconds in (("kept", (0, 10, 20)), ("slow", (2, 12, 22)), ("deleted", (0, 10)), ("new", (20,))):
        samples = (row(group, 0, 1, 1, sampled_at=small_tables.at(second / 60)) for second in seconds)
        small_tables.lay(config, "consumer_lag", *samples)
    assert sorted(groups_shown(config)) == ["kept", "new", "slow"]


def test_show_lag_group_deleted_after_the_newest_round_is_omitted(config: Config) -> None:
    """One that was created again after its deletion is shown."""
    lay_states(config, ("shipping", 1.1), ("nightly", 0.5))
    assert "shipping" not in groups_shown(config)
    assert "nightly" in groups_shown(config)


LARGE = {"lag_seconds": 99_000.0, "consume_rate": 123_456.7, "produce_rate": 234_567.8, "catch_up_seconds": 45_000.0}
NAME = "payments-settlement-service-production-europe-west-" + "x" * 100 + "-blue"


@pytest.fixture
def wide(tmp_path: Path) -> Config:
    """Groups with long names and large numbers."""
    config = Config(warehouse=str(tmp_path))
    lay_states(config)
    names = (NAME, NAME.replace("-blue", "-green"))
    rows = (row(name, 0, 1_234_567_890, 0, "UNSUBSCRIBED", topic=f"{NAME}-topic", **LARGE) for name in names)
    small_tables.lay(config, "consumer_lag", *rows)
    return config


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
@pytest.mark.parametrize("named", [(), ("--group", "*")], ids=["groups", "partitions"])
def test_show_lag_on_a_terminal_keeps_every_number_and_shortens_names(
    wide: Config, columns: int, named: tuple[str, ...]
) -> None:
    command = ["show", "lag", *named, "--warehouse", wide.warehouse]
    status, printed = on_terminal(*command, columns=columns)
    assert status == 0, printed
    assert max(len(line) for line in printed.splitlines()) <= columns
    text = " ".join(printed.split())
    for number in ("1,234,567,890", "1 d 3 h", "123,456.7/s", "234,567.8/s", "in 12 h 30 min"):
        assert text.count(number) == 2, printed
    if columns >= 80 and not named:
        assert "blue" in printed
        assert "green" in printed


def test_show_lag_watch_on_a_terminal_ends_with_ctrl_c(config: Config) -> None:
    command = ["show", "lag", "--watch", "--every", "0.2", "--warehouse", config.warehouse]
    status, printed = on_terminal(*command, until=lambda printed: printed.count("billing") >= 2)
    assert status == 130
    assert "1,230" in printed


@pytest.mark.parametrize("format", ["table", "json", "csv", "markdown"])
def test_show_lag_watch_into_a_pipe_flushes_every_round(config: Config, format: str) -> None:
    command = ["show", "lag", "--watch", "--every", "0.2", "--warehouse", config.warehouse, "--format", format]
    with subprocess.Popen(
        [sys.executable, "-m", "grouptrail", *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        watchdog = threading.Timer(scaled(60), process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        rounds = 0
        for line in process.stdout:
            rounds += "shipping" in line
            if rounds >= 4:  # the JSON of a round has two lines of the group
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=scaled(60)) == 130
        notes = process.stderr.read().splitlines()
        assert all(NOTE.fullmatch(note) for note in notes)
        assert bool(notes) == (format in ("json", "csv"))
        watchdog.cancel()


def loss(group: str, partition: int, least: float | None, most: float | None, **more: Any) -> dict[str, Any]:
    """Return a lag row of a group with a time to loss."""
    figures = {"time_to_loss_seconds": least, "time_to_loss_most_seconds": most}
    return row(
        group, partition, 50, 79_200, "STOP", **figures, **{"time_to_loss_reason": "retention.ms=86400000"} | more
    )


def lines_of(config: Config, *groups: str) -> list[str]:
    """Return what stands between the table and the time of the sample."""
    out = StringIO()
    show_lag(warehouse_of(config), sample_seconds=SAMPLE_SECONDS, groups=groups, topics=(), format="table", out=out)
    return [" ".join(line.split()) for line in out.getvalue().splitlines() if "orders-" in line or "more" in line]


def test_show_lag_names_partitions_whose_unread_records_will_be_deleted(config: Config) -> None:
    """The interval, the setting and the age of the record; without upper limit or time left, so it says."""
    small_tables.lay(
        config,
        "consumer_lag",
        loss("losing", 0, 7200.0, 10_800.0),
        loss("losing", 1, 7300.0, None),
        loss("losing", 2, 0.0, 60.0, time_to_loss_reason="retention.bytes=1000000"),
        loss("losing", 3, None, None, time_to_loss_reason="retention.ms and retention.bytes have no limit"),
        loss("patient", 0, 500_000.0, None),
    )
    assert lines_of(config, "losing") == [
        "losing orders-2: may lose data at any time, in 1 min at the latest "
        "(retention.bytes 1,000,000; oldest unread record 22 h old)",
        "losing orders-0: will lose data in 2 h to 3 h (retention.ms 1 d; oldest unread record 22 h old)",
        "losing orders-1: will lose data in 2 h 1 min at the earliest "
        "(retention.ms 1 d; oldest unread record 22 h old)",
    ]
    # Of all groups, the first partition of each that has less than a day left.
    assert [line.partition(":")[0] for line in lines_of(config)] == ["losing orders-2"]
    assert len(lines_of(config, "patient")) == 1


def test_show_lag_names_what_was_deleted_unread_within_a_day(config: Config) -> None:
    """Between which samples, of partitions that still have lost records."""
    now = datetime.now(UTC).replace(microsecond=0)
    earlier, later = (now - timedelta(seconds=seconds) for seconds in (70, 10))
    small_tables.lay(
        config,
        "consumer_lag",
        loss("lost", 0, 1.0, None) | {"sampled_at": earlier, "lost_records": 0},
        loss("lost", 0, None, None) | {"sampled_at": later, "log_start_offset": 2234, "lost_records": 1234},
    )
    [line] = lines_of(config, "lost")
    assert line.startswith(f"lost orders-0: lost 1,234 records between {earlier:%Y-%m-%d %H:%M:%S} and ")
    assert line.endswith(" UTC")
