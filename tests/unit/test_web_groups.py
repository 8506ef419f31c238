"""The page of all groups, and its JSON: filters, order, pages, and what it says where figures are missing."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from grouptrail.snapshot.state import NO_SNAPSHOT_YET, ClusterState, JobState
from support.exporter_tables import OPEN, STRANGE, configured, lag_row, lay_everything, now, progress
from support.from_config import snapshot_reader
from support.small_tables import lay
from support.web_client import Site, state_of


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Groups with several verdicts, one of them without lag."""
    config = configured(tmp_path_factory.mktemp("several"))
    # Trends have a point for each even minute.
    slot = datetime.fromtimestamp(now().timestamp() // 120 * 120, UTC) + timedelta(seconds=5)
    lay_everything(
        config,
        lag_row(2, group_id="payments", status="STOP", lag_seconds=900.0),
        lag_row(0, group_id="audit"),
        *(
            lag_row(2, group_id="payments", lag=number, sampled_at=slot - number * timedelta(minutes=2))
            for number in range(1, 25)
        ),
    )
    lay(config, "group_states", {**OPEN, "group_id": "idle", "state": "Empty", "started_at": now()})
    return Site(config)


def listed(site: Site, query: str = "") -> dict[str, Any]:
    return dict(json.loads(site.get(f"/api/v1/groups{query}")))


def names(site: Site, query: str = "") -> list[str]:
    return [group["group_id"] for group in listed(site, query)["groups"]]


def test_groups_without_parameters_are_sorted_worst_first(several: Site) -> None:
    assert names(several) == ["payments", "billing", STRANGE, "audit", "idle"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("?status=STOP", ["payments"]),
        ("?status=STOP,WARN", ["payments", "billing"]),
        ("?status=STOP&status=WARN", ["payments", "billing"]),
        ("?status=NONE", ["idle"]),
        ("?group=bill*", ["billing"]),
        ("?group=ILL", ["billing", STRANGE]),
        ("?group=b?lling", ["billing"]),
        ("?group=lling*", []),
        ("?state=Empty", ["idle"]),
        ("?sort=-lag_seconds", ["payments", "billing", "audit", "idle", STRANGE]),
        ("?sort=group_id", ["audit", "billing", "idle", "payments", STRANGE]),
        ("?sort=-group_id&per_page=2&page=2", ["idle", "billing"]),
        ("?per_page=2&page=99", ["idle"]),
        ("?cluster=elsewhere", []),
    ],
)
def test_groups_with_parameters_are_selected_and_sorted(several: Site, query: str, expected: list[str]) -> None:
    assert names(several, query) == expected


def test_groups_counts_of_verdicts_do_not_depend_on_the_selected_one(several: Site) -> None:
    expected = {"STOP": 1, "WARN": 1, "UNKNOWN": 1, "OK": 1, "NONE": 1}
    assert listed(several, "?status=STOP")["statuses"] == expected
    assert listed(several, "?group=audit")["statuses"] == {"OK": 1}


def test_group_row_sums_lag_and_takes_the_worst_seconds(several: Site) -> None:
    [billing] = listed(several, "?group=billing&status=WARN")["groups"]
    figures = {name: billing[name] for name in ("lag", "lag_seconds", "partitions", "state", "member_count")}
    assert figures == {"lag": 15, "lag_seconds": 3.0, "partitions": 3, "state": "Stable", "member_count": 2}
    assert billing["rebalances_last_hour"] == 2


def test_group_trend_has_a_value_for_each_two_minutes_of_the_last_hour(several: Site) -> None:
    [payments] = listed(several, "?group=payments")["groups"]
    trend = payments["trend"]
    assert len(trend) == 30
    oldest = trend.index(24)
    assert trend[oldest : oldest + 24] == list(range(24, 0, -1))


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("?status=BAD", "BAD is none of REWIND, STALL"),
        ("?sort=password", "password is none of status"),
        ("?page=zero", "parameter page"),
        ("?page=0", "parameter page"),
        ("?per_page=100000", "parameter per_page"),
        ("?frm=1", "there is no parameter frm: status, group"),
    ],
)
def test_wrong_parameter_is_refused_with_one_line(several: Site, query: str, complaint: str) -> None:
    problem = json.loads(several.get(f"/api/v1/groups{query}", status=400))
    assert (problem["status"], problem["title"]) == (400, "Bad Request")
    assert complaint in problem["detail"]
    assert "\n" not in problem["detail"]
    assert "Bad Request" in several.get(f"/{query}", status=400)


def test_page_links_every_group_and_escapes_its_name(several: Site) -> None:
    text = several.get("/")
    assert '<a href="/groups/we%22ird%0A%5C%7Bgroup%3D%22billing%22%7D%201">we&#34;ird\\u000a\\{group=' in text
    assert STRANGE not in text


def test_page_keeps_other_parameters_in_its_links(several: Site) -> None:
    text = several.get("/?group=i&per_page=1&page=2&sort=lag")
    assert 'href="?group=i&amp;per_page=1&amp;sort=lag&amp;page=3"' in text
    assert 'href="?group=i&amp;per_page=1&amp;sort=lag&amp;page=1"' in text


def site_saying(config: Config, state: ClusterState | None = None) -> str:
    return Site(config, default=state or state_of(config)).get("/")


def test_page_before_the_first_snapshot_says_that_tables_are_read(tmp_path: Path) -> None:
    text = site_saying(configured(tmp_path), ClusterState(None, NO_SNAPSHOT_YET, {}))
    assert "The tables are being read" in text


def test_page_without_a_readable_warehouse_shows_the_error(tmp_path: Path) -> None:
    text = site_saying(configured(tmp_path), ClusterState(None, "s3://lake: access denied: check [storage]", {}))
    assert "The tables cannot be read" in text
    assert "access denied: check [storage]" in text


def test_page_of_an_empty_warehouse_says_to_start_the_pipeline(tmp_path: Path) -> None:
    text = site_saying(configured(tmp_path))
    assert "Nothing of __consumer_offsets has been read yet" in text
    assert "grouptrail run" in text


def test_page_without_commits_says_when_groups_appear(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "ingest_progress", progress(0, 10))
    assert "No consumer group has committed an offset yet" in site_saying(config)


def test_page_of_a_stopped_pipeline_shows_its_age_and_the_last_figures(tmp_path: Path) -> None:
    config = configured(tmp_path)
    old = now() - timedelta(minutes=47)
    lay(config, "ingest_progress", progress(0, 10, landed_at=old))
    lay(config, "consumer_lag", lag_row(3, sampled_at=old), lag_row(3, sampled_at=old - timedelta(seconds=60), lag=1))
    site = Site(config)
    text = site.get("/")
    assert "The pipeline stopped 47 min ago" in text
    assert f"These figures are as of {old:%Y-%m-%d %H:%M:%S} UTC (47 min" in text
    groups = listed(site)
    [billing] = groups["groups"]
    assert (billing["lag"], billing["status"]) == (15, "WARN")
    assert [notice["kind"] for notice in groups["notices"]] == ["stale"]
    assert groups["is_stale"]
    assert (billing["is_stale"], datetime.fromisoformat(billing["as_of"])) == (True, old)


@pytest.mark.parametrize("path", ["/", "/groups/billing", "/topics/orders"])
def test_page_with_stale_figures_has_their_age_at_each_verdict_and_no_colour(path: str, tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    assert re.search('verdict-mark WARN"></span><a [^>]*>WARN</a>', Site(config).get(path))
    stale = configured(tmp_path / "stale")
    old = now() - timedelta(minutes=88)
    lay(stale, "ingest_progress", progress(0, 10, landed_at=old))
    lay(stale, "consumer_lag", lag_row(3, sampled_at=old, commit_at=old - timedelta(seconds=2)))
    text = Site(stale).get(path)
    assert 'verdict-mark stale"></span><span class="faint">WARN 88 min ago</span>' in text
    assert not re.search(r'class="[^"]*\b(WARN|OK)\b', text)
    # What counts up to now does not pretend to know it.
    assert f"{old - timedelta(seconds=2):%Y-%m-%d %H:%M:%S}" in text or path == "/topics/orders"


def test_page_with_stale_lag_beside_new_batches_names_the_job(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "ingest_progress", progress(0, 10))
    lay(config, "consumer_lag", lag_row(3, sampled_at=now() - timedelta(minutes=88)))
    site = Site(config)
    assert "Lag was last sampled 88 min ago" in site.get("/")
    assert listed(site)["is_stale"]


def test_page_while_no_broker_answers_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    offsets = {"topic": "orders", "partition": 0, "sampled_at": now(), "error": "broker 1 did not answer"}
    lay(config, "log_offsets", offsets)
    groups = listed(Site(config))
    [notice] = groups["notices"]
    assert (notice["kind"], notice["title"]) == ("failed", "No broker returns log offsets")
    assert (groups["sampled_at"], groups["is_stale"]) == (None, False)
    assert notice["detail"].startswith("No broker has returned log offsets yet (broker 1 did not answer): ")


@pytest.mark.parametrize("minutes", [0, 88])
def test_page_while_the_jobs_wait_for_a_broker_shows_the_past_in_grey(tmp_path: Path, minutes: int) -> None:
    """However new the last figures are: they do not show the present."""
    config = configured(tmp_path)
    sampled_at = now() - timedelta(minutes=minutes)
    lay(config, "ingest_progress", progress(0, 10, landed_at=sampled_at))
    lay(config, "consumer_lag", lag_row(3, sampled_at=sampled_at))
    snapshot = snapshot_reader(config).read(outage="no Kafka broker answers: start it")
    jobs = {"decode": JobState(is_running=False, restarts=0)}
    site = Site(config, **{config.cluster: ClusterState(snapshot, snapshot.not_ready, jobs)})
    groups = listed(site)
    assert groups["is_stale"]
    assert [group["status"] for group in groups["groups"]] == ["WARN"]
    broker, *stopped = groups["notices"]
    assert (broker["kind"], broker["title"]) == ("failed", "No broker returns log offsets")
    assert broker["detail"].startswith("No Kafka broker answers: start it; no broker has returned log offsets yet")
    assert len(stopped) == (minutes > 0)
    assert all(notice["detail"].endswith("The jobs start when a broker answers.") for notice in stopped)
    assert not re.search(r'class="[^"]*\bWARN\b', site.get("/"))


def test_page_of_an_absent_cluster_names_those_that_are_there(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    absent = config.model_copy(update={"cluster": "absent"})
    [notice] = listed(Site(absent))["notices"]
    assert 'The warehouse has no cluster "absent": it has "default"' in notice["detail"]


def test_deleted_group_is_neither_listed_nor_a_consumer_and_its_page_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config, lag_row(0, group_id="gone", committed_offset=1, lag=99, sampled_at=now()))
    lay(
        config, "group_states", {**OPEN, "group_id": "gone", "record_offset": 9, "state": "Dead", "started_at": now()}
    )
    for site in (Site(config), Site(config, default=state_without_lag(config))):
        assert "gone" not in names(site)
        topic = json.loads(site.get("/api/v1/topics/orders"))
        assert "gone" not in {consumer["group_id"] for consumer in topic["consumers"]}
        assert "gone" not in {partition["slowest_group_id"] for partition in topic["partitions"]}
        text = site.get("/groups/gone")
        assert "<dt>Verdict</dt><dd data-announced>deleted <small>" in text
        assert '<span class="verdict-mark OK">' not in text


def test_deleted_group_is_found_in_its_cluster_unless_another_has_one(tmp_path: Path) -> None:
    first, second, third = (configured(tmp_path).model_copy(update={"cluster": name}) for name in "abc")
    lay(first, "group_states", {**OPEN, "cluster": "b", "state": "Dead", "started_at": now()})
    page = json.loads(Site(first, second).get("/api/v1/groups/billing"))
    assert (page["cluster"], page["summary"], page["deleted_at"] is None) == ("b", None, False)
    lay(first, "consumer_lag", lag_row(cluster="c"))
    assert json.loads(Site(first, second, third).get("/api/v1/groups/billing"))["cluster"] == "c"


def state_without_lag(config: Config) -> ClusterState:
    """Return the state in which the pages read the last samples from the table."""
    state = state_of(config)
    assert state.snapshot is not None
    empty = {"lag": state.snapshot.lag.slice(0, 0)}
    return replace(state, snapshot=replace(state.snapshot, **empty))


def test_page_with_a_failed_job_names_it(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    state = state_of(config, {"lag": JobState(is_running=False, restarts=3)})
    text = site_saying(config, state)
    assert "The job lag does not run" in text
    assert "3 restarts" in text


def test_page_with_an_error_since_the_snapshot_says_how_old_it_is(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_everything(config)
    text = site_saying(config, ClusterState(state_of(config).snapshot, "disk is full", {}))
    assert "The tables cannot be read now" in text
    assert "disk is full. These figures are" in text


def test_two_clusters_are_told_apart(tmp_path: Path) -> None:
    east, west = (configured(tmp_path).model_copy(update={"cluster": name}) for name in ("east", "west"))
    lay(east, "consumer_lag", *(lag_row(1, cluster=name) for name in ("east", "west")))
    site = Site(east, west)
    assert [(group["cluster"], group["group_id"]) for group in listed(site)["groups"]] == [
        ("east", "billing"),
        ("west", "billing"),
    ]
    assert names(site, "?cluster=west") == ["billing"]
    assert "/groups/billing?cluster=west" in site.get("/")


def test_groups_that_will_lose_data_have_the_earliest_time_of_their_partitions(tmp_path: Path) -> None:
    """The column is there if some group on the page has a figure; a stale one has none."""
    config = configured(tmp_path)
    loss = {"time_to_loss_most_seconds": 10_800.0, "time_to_loss_reason": "retention.ms=86400000"}
    lay(
        config,
        "consumer_lag",
        lag_row(1, group_id="fine"),
        lag_row(1, group_id="losing", time_to_loss_seconds=9_000.0, **loss),
        lag_row(2, group_id="losing", time_to_loss_seconds=7_300.0, **loss),
        lag_row(3, group_id="full", time_to_loss_seconds=0.0, time_to_loss_reason="retention.bytes=1"),
    )
    site = Site(config)
    left = {group["group_id"]: group["time_to_loss_seconds"] for group in listed(site)["groups"]}
    assert left["fine"] is None
    assert 7_200 < left["losing"] <= 7_300
    assert names(site, "?sort=time_to_loss_seconds") == ["full", "losing", "fine"]
    assert "Loss in" in site.get("/")
    page = site.get("/groups/losing")
    assert "until retention may delete unread records" in page
    assert 'title="retention.ms=86400000"' in page
    assert "2 h to 3 h" in page
    partitions = json.loads(site.get("/api/v1/groups/losing"))["partitions"]
    assert "any time" in site.get("/groups/full")
    assert {row["time_to_loss_reason"] for row in partitions} == {"retention.ms=86400000"}
    topic = json.loads(site.get("/api/v1/topics/orders"))["partitions"]
    assert [row["time_to_loss_seconds"] is None for row in topic] == [False, False, False]


def test_groups_without_time_to_loss_have_no_column_for_it(tmp_path: Path) -> None:
    """Neither have those whose figures are stale."""
    config = configured(tmp_path)
    lay(config, "consumer_lag", lag_row(1, time_to_loss_seconds=60.0, sampled_at=now() - timedelta(hours=1)))
    site = Site(config)
    assert "Loss in" not in site.get("/")
    [partition] = json.loads(site.get("/api/v1/topics/orders"))["partitions"]
    assert partition["time_to_loss_seconds"] is None


def test_page_of_a_share_group_speaks_of_deliveries_and_shows_what_came_back(tmp_path: Path) -> None:
    config = configured(tmp_path)
    came_back = {"awaiting_redelivery": 2, "most_deliveries": 4, "most_delivered_offset": 97}
    shared = {"group_id": "queue", "delivery_complete_count": 7, **came_back}
    lay(config, "consumer_lag", lag_row(1, **shared), lag_row(1, group_id="billing"))
    for table in ("rebalances", "memberships", "partition_ownership", "ingest_progress"):
        lay(config, table)
    for group, kind in (("queue", "share"), ("billing", "consumer")):
        lived = {"group_id": group, "group_kind": kind, "generation": 4, "is_open": True, "open_bucket": 0}
        lay(config, "generations", {**lived, "members": []})
        lay(config, "group_states", {**lived, "state": "Stable"})
    site = Site(config)
    page, other = site.get("/groups/queue"), site.get("/groups/billing")
    assert 'title="offset 97 was delivered 4 times">2</td>' in page
    for words in ("Came back", "Last acknowledgement or return", "Start, and the log"):
        assert words in page
        assert words not in other
    for words in ("Committed", "Last commit"):
        assert words not in page
        assert words in other
    [row] = json.loads(site.get("/api/v1/groups/queue"))["partitions"]
    assert {name: row[name] for name in shared if name in row} == {**came_back, "delivery_complete_count": 7}


def test_page_of_a_polled_share_group_says_what_is_not_known_and_why(tmp_path: Path) -> None:
    config = configured(tmp_path)
    shared = {"group_id": "queue", "delivery_complete_count": 7}
    lay(config, "consumer_lag", lag_row(0, **shared, lag=9, lag_error=4), lag_row(1, **shared, lag=5, lag_error=0))
    for table in ("rebalances", "memberships", "partition_ownership", "ingest_progress"):
        lay(config, table)
    lived = {"group_id": "queue", "group_kind": "share", "generation": 4, "is_open": True, "open_bucket": 0}
    lay(config, "generations", {**lived, "members": []})
    lay(config, "group_states", {**lived, "state": "Stable"})
    site = Site(config)
    page = site.get("/groups/queue")
    assert page.count("not known without READ on __share_group_state") == 2
    assert re.findall(r'title="(at least \d+): records were written [^"]+">(≤ \d)</td>', page) == [
        ("at least 5", "≤ 9")
    ]
    rows = json.loads(site.get("/api/v1/groups/queue"))["partitions"]
    assert sorted(row["lag_error"] for row in rows) == [0, 4]
