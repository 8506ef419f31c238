"""`grouptrail timeline` and `grouptrail report`, up to the JSON that the browser draws."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from grouptrail import cli, contracts
from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.report.cluster_rows import read_cluster
from grouptrail.report.group_rows import TABLES, GroupRows, read_group
from grouptrail.report.layout import (
    CAUSES,
    HUES,
    ROLLOUT_COLUMNS,
    Member,
    arrange,
    arranged_rollouts,
    colour_slots,
    lane_name,
    visible,
)
from grouptrail.report.page import embedded
from grouptrail.report.report import arrange_report, command
from grouptrail.report.timeline import timeline_page, timeline_rows
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.storage.sql_snapshot import SqlSnapshot
from support.from_config import SAMPLE_SECONDS
from support.sample_groups import KNOWN_UNTIL, billing, deployed, memberless, shared
from support.small_tables import at, lay
from support.streams_tables import lay_streams_group


def rows_of(config: Config, group: str, *, since: datetime | None, until: datetime | None) -> GroupRows:
    return read_group(SqlSnapshot(warehouse_of(config), TABLES), group, since=since, until=until)


def drawn(config: Config, group: str = "billing", **between: datetime) -> dict[str, Any]:
    """Return the data that the browser gets for a group."""
    group_rows = read_group(
        SqlSnapshot(warehouse_of(config), TABLES), group, since=between.get("since"), until=between.get("until")
    )
    return arrange(group_rows)


def table(columnar: dict[str, Any]) -> list[dict[str, Any]]:
    """Return rows by column, as the browser reads them."""
    return [dict(zip(columnar["columns"], row, strict=True)) for row in columnar["rows"]]


def moment(data: dict[str, Any], ms: int) -> datetime:
    """Return a time of the page as a datetime."""
    return datetime.fromtimestamp((data["start"] + ms) / 1000, UTC)


def owners(data: dict[str, Any], topic: str, partition: int) -> list[tuple[datetime, str]]:
    """Return (start, member) of each interval of a partition."""
    [lanes] = [one["lanes"] for one in data["topics"] if one["topic"] == topic]
    [spans] = [lane["spans"] for lane in lanes if lane["partition"] == partition]
    since, starts = 0, []
    for member, _, gap, _, _, _ in zip(*[iter(spans)] * 6, strict=True):
        since += gap
        starts.append((moment(data, since), data["members"][member]["label"]))
    return starts


def test_timeline_lanes_show_partition_owners_over_time(simulated: Config) -> None:
    """From the first assignment on; after a crash the other members own the partitions until the member is back."""
    data = drawn(simulated)
    assert [(one["topic"], len(one["lanes"])) for one in data["topics"]] == [("orders", 8), ("payments", 3)]
    assert owners(data, "orders", 5) == [
        (at(0), "billing-anna"),
        (at(1), "billing-boris"),
        (at(22), "billing-anna"),
        (at(24), "billing-boris"),
    ]
    assert [since for since, _ in owners(data, "orders", 7)] == [at(75)]


def test_timeline_rebalances_have_cause_and_members(simulated: Config) -> None:
    """They match the table's rows, with members by index."""
    data = drawn(simulated)
    rebalances = table(data["rebalances"])
    assert len(rebalances) == 24
    [crash] = [row for row in rebalances if row["cause"] == "member_left_or_expired"]
    assert moment(data, crash["at"]) == at(22)
    assert (crash["sort"], crash["certainty"], crash["skipped"]) == ("lost", "ambiguous", 1)
    assert [data["members"][number]["id"] for number in crash["members_left"]] == ["billing-boris"]


def test_timeline_returning_member_keeps_its_row_and_colour(simulated: Config) -> None:
    """Members of one static instance, or of one client on one host, share a row."""
    data = drawn(simulated)
    rows = [[data["members"][life["member"]] for life in lives] for lives in data["people"]]
    assert [sorted({member["label"] for member in row}) for row in rows] == [
        ["billing-anna"],
        ["billing-boris"],
        ["billing-chloe"],
        ["billing-dora"],
        ["edge-1"],
    ]
    assert [len(row) for row in rows] == [1, 2, 1, 8, 2]
    assert all(len({member["slot"] for member in row}) == 1 for row in rows)
    assert len({row[0]["slot"] for row in rows}) == 5


def test_timeline_lag_points_peak_in_the_storm_and_mark_lower_bounds(simulated: Config) -> None:
    """Lag of all partitions by time slot; it rises during the storm."""
    data = drawn(simulated)
    points = table(data["lag"])
    assert {point["partitions"] for point in points} == {9, 11}
    storm = max(points, key=lambda point: point["seconds"])
    assert at(40) < moment(data, storm["at"]) < at(49)
    assert storm["seconds_are_least"]
    assert not storm["lag_is_least"]
    assert not points[0]["seconds_are_least"]
    words = {
        data["words"][word] for one in data["topics"] for lane in one["lanes"] for word in lane["verdicts"][2::5]
    }
    assert words == {"WARN", "STALL"}


def test_timeline_interval_includes_rows_that_overlap_it(simulated: Config) -> None:
    """They keep their true start, even if it is before the interval."""
    data = drawn(simulated, since=at(30), until=at(35))
    assert moment(data, 0) == at(30)
    assert moment(data, data["until"]) == at(35)
    assert table(data["rebalances"]) == []
    assert owners(data, "orders", 5) == [(at(24), "billing-boris")]
    assert [row["generation"] for row in table(data["generations"])] == [6]


def test_timeline_of_a_group_without_members_shows_its_commits(config: Config) -> None:
    """Adjacent slots with commits are one run; the pause between them is none."""
    shared(config)
    memberless(config)
    data = drawn(config, "standalone", since=at(0), until=at(20))
    [topic] = data["topics"]
    assert [lane["name"] for lane in topic["lanes"]] == ["orders-0", "orders-1", "orders-2"]
    assert {tuple(lane["spans"]) for lane in topic["lanes"]} == {()}
    commits = topic["lanes"][0]["commits"]
    assert sum(commits[2::3]) == 8
    assert all(moment(data, begun) < at(2) or moment(data, begun) > at(17) for begun in commits[::3])
    assert (data["members"], data["rebalances"]["rows"], data["kind"]) == ([], [], None)
    whole = drawn(config, "standalone")
    assert moment(whole, whole["first"]) == at(0)
    assert sum(whole["topics"][0]["lanes"][0]["commits"][2::3]) == 8


def test_timeline_of_a_group_with_members_reads_no_commits(simulated: Config) -> None:
    """They would only make its page larger."""
    assert all(lane["commits"] == [] for topic in drawn(simulated)["topics"] for lane in topic["lanes"])


def test_timeline_without_lag_shows_the_history(simulated: Config, tmp_path: Path) -> None:
    """The lag table may be missing or have no rows of the group."""
    assert drawn(simulated, "audit")["lag"]["rows"] == []
    own = Config(warehouse=str(tmp_path))
    shared(own)
    data = drawn(own, "notifications")
    assert (data["kind"], data["lag"]["rows"], data["rebalances"]["rows"]) == ("share", [], [])


def test_timeline_share_group_owners_are_on_separate_tracks(simulated: Config) -> None:
    """A partition of a share group has several owners at a time."""
    data = drawn(simulated, "notifications")
    [topic] = data["topics"]
    assert [lane["tracks"] for lane in topic["lanes"]] == [3, 3]
    assert topic["lanes"][0]["spans"][1::6] == [0, 1, 2]


def test_timeline_open_rows_are_known_until_the_last_data_read(simulated: Config) -> None:
    """Until the last sample or the last batch that landed; ended rows until their end."""
    data = drawn(simulated)
    assert moment(data, data["known"]) == KNOWN_UNTIL
    assert data["until"] > data["known"]


def test_timeline_dead_group_ends_when_it_died(config: Config) -> None:
    """Later samples of other groups do not extend it."""
    group = billing(config, group_id="over")
    lay(config, "group_states", {"group_id": "over", "state": "Dead", "started_at": at(100), "record_offset": 999})
    lay(config, "ingest_progress", {"landed_at": at(500)})
    data = drawn(config, "over")
    assert moment(data, data["known"]) == at(100)
    assert group.generation == 25


@pytest.mark.parametrize(("since", "until"), [(at(-9), at(-3)), (at(200), at(300)), (at(200), None)])
def test_read_group_interval_outside_the_history_raises(
    simulated: Config, since: datetime, until: datetime | None
) -> None:
    """The error names the interval that has data."""
    with pytest.raises(
        QueryError, match=r"nothing is known of 'billing' .*: its history goes from 2026-03-04T12:00:00Z"
    ):
        rows_of(simulated, "billing", since=since, until=until)


def test_read_group_too_many_ownership_intervals_raises(simulated: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """No browser could draw them."""
    monkeypatch.setattr("grouptrail.report.group_rows.MOST_SPANS", 10)
    with pytest.raises(QueryError, match=r"'billing' has more than 10 intervals of ownership .*: give a shorter one"):
        rows_of(simulated, "billing", since=None, until=None)
    assert len(rows_of(simulated, "billing", since=at(30), until=at(31)).spans) == 9


def test_timeline_and_report_commands_write_html_files(simulated: Config, tmp_path: Path) -> None:
    """They print the file's path."""
    out = tmp_path / "picture.html"
    arguments = [
        "timeline",
        "billing",
        "--warehouse",
        simulated.warehouse,
        "--from",
        "2026-03-04 12:10",
        "-o",
        str(out),
    ]
    result = CliRunner().invoke(cli.app, arguments)
    assert (result.exit_code, result.stdout) == (0, f"{out}: open it in a browser\n")
    assert "<title>billing – grouptrail</title>" in out.read_text("utf-8")
    assert result.stderr == ""
    result = CliRunner().invoke(cli.app, [*arguments[:4], "--from", "2026-03-01", "-o", str(out)])
    assert re.fullmatch(r"its history begins at 2026-03-04 12:0\d:\d\d UTC\n", result.stderr)
    result = CliRunner().invoke(cli.app, ["report", "--warehouse", simulated.warehouse, "--out", str(out)])
    assert result.exit_code == 0
    assert "<title>default – grouptrail</title>" in out.read_text("utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["timeline", "biling"], "did you mean billing?"),
        (["timeline", "billing", "--from", "noon"], "'noon' is not a time: use"),
        (["timeline", "billing", "--from", "2026-03-05", "--to", "2026-03-04"], "'2026-03-04' is not after --from"),
        (["timeline", "billing", "--out", "/nowhere/at/all.html"], "/nowhere/at/all.html cannot be written"),
        (["report", "--cluster", "other"], 'has no cluster "other": it has "default"'),
    ],
)
def test_timeline_and_report_commands_invalid_input_exits_with_message(
    simulated: Config, arguments: list[str], message: str
) -> None:
    """The message is on stderr and says what to do."""
    result = CliRunner().invoke(cli.app, [*arguments, "--warehouse", simulated.warehouse])
    assert result.exit_code in (1, 2)
    assert message in result.stderr


def test_timeline_page_loads_no_external_resources(simulated: Config) -> None:
    """No scripts, styles, images or fonts."""
    text = timeline_page(timeline_rows(warehouse_of(simulated), "billing", since=None, until=None))
    assert re.findall(r"""(?:src|href)\s*=|@import|url\(""", text) == []
    assert set(re.findall(r"https?://[^\s\"'<]+", text)) == {"http://www.w3.org/2000/svg"}


def test_embedded_json_escapes_html_and_parses_back() -> None:
    """Any content is parsed back unchanged."""
    data = {"name": "</script><!--<script>&\u2028\u2029", "é": "群"}
    text = embedded(data)
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == data


@pytest.mark.parametrize(
    ("name", "shown"),
    [("orders", "orders"), ("a\x1b[31mb", "a\\u001b[31mb"), ("x\u202ey\u200b", "x\\u202ey\\u200b"), ("群 é", "群 é")],
)
def test_visible_escapes_invisible_characters(name: str, shown: str) -> None:
    """Also those that change the direction of text."""
    assert visible(name) == shown


def test_timeline_members_with_the_same_client_id_have_different_labels(config: Config) -> None:
    """A member that returns on its host has one label, with the end of its last member id."""
    shared(config)
    life = {"group_id": "notifications", "client_id": "app", "began": "joined"}
    hosts = [("app-11a", "/10.0.0.1", 10, 20), ("app-22b", "/10.0.0.2", 12, 30), ("app-33c", "/10.0.0.1", 25, 30)]
    for name, host, joined, left in hosts:
        row = {**life, "member_id": name, "client_host": host, "joined_at": at(joined), "left_at": at(left)}
        lay(config, "memberships", row)
    labels = {one["id"]: one["label"] for one in drawn(config, "notifications")["members"]}
    assert [labels[name] for name, *_ in hosts] == ["app …-33c", "app …-22b", "app …-33c"]
    assert labels["share-0"] == "share-0"


def test_timeline_of_a_streams_group_has_lanes_of_tasks_and_of_partitions(tmp_path: Path) -> None:
    """A task is named as Kafka names it; partitions have verdicts and no owner."""
    config = Config(warehouse=str(tmp_path))
    lay_streams_group(config)
    warned = {"group_id": "app", "topic": "0", "partition": 0, "sampled_at": at(1), "status": "WARN"}
    lay(config, "consumer_lag", {**warned, "status_reason": "it grows"})
    sections = [
        (one["topic"], one["lane_is"], [(lane["name"], bool(lane["spans"])) for lane in one["lanes"]])
        for one in drawn(config, "app", until=at(2))["topics"]
    ]
    assert sections == [
        ("subtopology 0", "task", [("0_0", True)]),
        ("0", "partition", [("0-0", False)]),
    ]


def test_lane_name_connector_has_no_number_but_task_has() -> None:
    assert [lane_name("sink", number) for number in (-1, 0)] == ["sink", "sink-0"]


@pytest.mark.parametrize(
    ("group", "typed"),
    [
        ("billing", "grouptrail timeline billing"),
        ("a b; rm -rf ~", "grouptrail timeline 'a b; rm -rf ~'"),
        ("--help", "grouptrail timeline -- --help"),
        ("it's\n$(x)", "grouptrail timeline $'it\\'s\\x0a$(x)'"),
        ("é", "grouptrail timeline $'\\xc3\\xa9'"),
    ],
)
def test_command_quotes_the_group_name_for_the_shell(group: str, typed: str) -> None:
    """The shell reads the name as one word and executes nothing."""
    assert command(group) == typed


def test_causes_are_exactly_those_of_the_contract() -> None:
    [about] = [column.about for column in contracts.tables()["rebalances"].columns if column.name == "cause"]
    sorted_causes = [cause for causes in CAUSES.values() for cause in causes]
    assert sorted(sorted_causes) == sorted(about.replace(" or ", ", ").split(", "))


def member(number: int, *, began: int = 0, ended: int | None = None) -> Member:
    """Return a member with a row of its own."""
    return Member(number, f"m{number}", None, None, None, began, ended, seat=f"seat {number}")


@pytest.mark.parametrize(("count", "apart"), [(2, 4), (3, 2), (6, 1), (12, 1)])
def test_colour_slots_few_members_are_vivid_and_apart(count: int, apart: int) -> None:
    """Any two of the twelve hues in use are at least this many steps apart."""
    slots = sorted(colour_slots(member(number) for number in range(count)).values())
    assert max(slots) < HUES
    gaps = [(after - before) % HUES or HUES for before, after in zip(slots, [*slots[1:], slots[0]], strict=True)]
    assert min(gaps) >= apart


def test_colour_slots_many_members_reuses_those_of_departed_members() -> None:
    gone = [member(number, began=0, ended=5) for number in range(24)]
    present = [member(number, began=9) for number in range(24, 48)]
    slots = colour_slots([*gone, *present])
    assert len({slots[one.seat] for one in present}) == 24
    assert slots == colour_slots([*gone, *present])


def test_report_lists_every_group_with_status_and_state(simulated: Config) -> None:
    """Also one that only commits; the status is that of the worst partition."""
    data = arrange_report(read_cluster(warehouse_of(simulated), sample_seconds=SAMPLE_SECONDS))
    groups = {row["group_id"]: row for row in table(data["groups"])}
    assert sorted(groups) == ["audit", "billing", "campaign-2025", "ledger", "mirror", "notifications"]
    assert {name: row["status"] for name, row in groups.items() if row["status"]} == {
        "billing": "OK",
        "ledger": "STOP",
    }
    ledger = groups["ledger"]
    assert (ledger["worst"], ledger["lag"], ledger["seconds"], ledger["is_bounded"]) == (
        "orders-1",
        2401,
        5401.0,
        True,
    )
    states = {name: row["state"] for name, row in groups.items()}
    assert (states["campaign-2025"], states["billing"], states["mirror"]) == ("Empty", "Stable", None)
    assert groups["mirror"]["command"] is None
    assert groups["billing"]["rebalances_day"] == 24


def test_report_last_commit_is_each_groups_own_newest(config: Config) -> None:
    """Those since `committed_offsets` was rewritten are only in `offset_commits`."""
    lay(config, "ingest_progress", {"landed_at": at(3)})
    commits = {name: {"group_id": name, "topic": "orders", "partition": 0} for name in ("billing", "quiet", "new")}
    lay(
        config,
        "committed_offsets",
        {**commits["billing"], "record_at": at(1), "commit_at": at(0.9)},
        {**commits["quiet"], "record_at": at(0), "commit_at": None},
    )
    lay(
        config,
        "offset_commits",
        {**commits["billing"], "record_at": at(2), "commit_at": at(1.9), "is_tombstone": False},
        {**commits["quiet"], "record_at": at(2), "is_tombstone": True},
        {**commits["new"], "record_at": at(1.5), "commit_at": at(1.5), "is_tombstone": False},
    )
    data = arrange_report(read_cluster(warehouse_of(config), sample_seconds=SAMPLE_SECONDS))
    assert {row["group_id"]: moment(data, row["last_commit"]) for row in table(data["groups"])} == {
        "billing": at(1.9),
        "quiet": at(0),
        "new": at(1.5),
    }


def test_report_deleted_group_is_dead_and_has_no_verdict(config: Config) -> None:
    """Until it commits again, which writes no state."""
    deleted = [{"group_id": name, "state": "Dead", "started_at": at(1)} for name in ("gone", "again")]
    lay(config, "group_states", *deleted)
    samples = [{"group_id": name, "sampled_at": at(0.9), "status": "OK", "lag": 8} for name in ("gone", "again")]
    lay(config, "consumer_lag", *samples, {**samples[1], "sampled_at": at(1.1)})
    groups = {
        row["group_id"]: row
        for row in table(arrange_report(read_cluster(warehouse_of(config), sample_seconds=SAMPLE_SECONDS))["groups"])
    }
    assert {name: (row["state"], row["status"], row["lag"]) for name, row in groups.items()} == {
        "gone": ("Dead", None, None),
        "again": (None, "OK", 8),
    }


def test_report_of_a_pipeline_that_stopped_says_when(simulated: Config) -> None:
    data = arrange_report(read_cluster(warehouse_of(simulated), sample_seconds=SAMPLE_SECONDS))
    assert data["stale"].startswith("written 20")
    assert " ago): nothing has been recorded since" in data["stale"]
    assert data["staleLag"].startswith("as of 2026-03-04 ")


def test_report_lists_storms_causes_and_worst_groups(simulated: Config) -> None:
    """Each storm has the command that draws its interval."""
    data = arrange_report(read_cluster(warehouse_of(simulated), sample_seconds=SAMPLE_SECONDS))
    [storm] = table(data["storms"])
    assert (storm["group_id"], storm["rebalances"]) == ("billing", 17)
    assert storm["command"] == "grouptrail timeline --from 2026-03-04T12:30:00Z --to 2026-03-04T13:05:00Z billing"
    causes = {(moment(data, row["day"]).day, row["cause"]): row["rebalances"] for row in table(data["causes"])}
    assert causes[4, "member_left"] == 8
    assert moment(data, data["days"][-1]) < KNOWN_UNTIL
    assert len(data["days"]) == 14
    assert table(data["worst"])[0]["group_id"] == "ledger"


def test_timeline_file_has_the_rollouts_and_the_page_leaves_them_to_a_request(tmp_path: Path) -> None:
    config = Config(warehouse=str(tmp_path))
    deployed(config)
    lay(config, "ingest_progress", {"landed_at": KNOWN_UNTIL})
    tables = SqlSnapshot(warehouse_of(config), TABLES)
    [rollout] = table(arrange(read_group(tables, "deployed", since=None, until=None, has_rollouts=True))["rollouts"])
    start = drawn(config, "deployed")["start"]
    noon = int(at(0).timestamp() * 1000) - start
    assert (rollout["began"] - noon, rollout["until"] - noon) == (30 * 60_000, 33.5 * 60_000)
    assert (rollout["way"], rollout["members"], rollout["of_members"]) == ("rolling", 4, 4)
    assert table(drawn(config, "deployed")["rollouts"]) == []


def test_rollout_that_may_go_on_has_no_end_in_the_timeline() -> None:
    row = dict.fromkeys(("way", *ROLLOUT_COLUMNS)) | {"started_at": "2026-03-04T12:00:00Z", "ended_at": None}
    [shown] = table(arranged_rollouts([row]))
    assert (shown["began"], shown["until"], shown["way"]) == (int(at(0).timestamp() * 1000), None, "")
