"""The pages of a group and of a topic: state, rebalances, re-reads and retention from the tables' rows."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.storage.location import TableLocation
from grouptrail.storage.reader import OpenTable, existing_table
from support.exporter_tables import configured, lag_row, now, progress
from support.sample_groups import KNOWN_UNTIL, billing, deployed
from support.small_tables import HISTORY, at, lay
from support.streams_tables import lay_streams_group, lay_unready_group
from support.web_client import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """A group with ninety minutes of history, one that was deployed, and one that only commits."""
    config = configured(tmp_path_factory.mktemp("history"))
    billing(config)
    deployed(config)
    lay(config, "ingest_progress", progress(0, 10, landed_at=KNOWN_UNTIL))
    lay(config, "consumer_lag", lag_row(1, group_id="mirror", topic="clicks", sampled_at=KNOWN_UNTIL))
    return Site(config)


def group(site: Site, path: str) -> dict[str, Any]:
    return dict(json.loads(site.get(f"/api/v1/groups/{path}")))


def owned(group_answer: dict[str, Any]) -> dict[str, int]:
    """Return how many partitions each client owned."""
    return {
        member["client_id"]: sum(len(numbers) for numbers in member["partitions"].values())
        for member in group_answer["now"]["members"]
    }


def test_group_at_a_moment_has_its_members_and_owners(site: Site) -> None:
    assert owned(group(site, "billing?at=2026-03-04T12:00:30Z")) == {"billing-anna": 9}
    assert owned(group(site, "billing?at=2026-03-04T12:10:00Z")) == dict.fromkeys(
        ("billing-anna", "billing-boris", "billing-chloe"), 3
    )


def test_group_at_a_moment_shows_the_hours_around_it(site: Site) -> None:
    answer = group(site, "billing?at=2026-03-04T13:00:00Z")
    assert (answer["from"], answer["to"]) == ("2026-03-04T12:00:00Z", "2026-03-04T14:00:00Z")


def test_group_between_two_times_has_only_their_rebalances(site: Site) -> None:
    answer = group(site, "billing?from=2026-03-04T12:05:00Z&to=2026-03-04T12:23:00Z")
    assert [row["cause"] for row in answer["rebalances"]] == ["member_left_or_expired", "member_joined"]
    assert [row["certainty"] for row in answer["rebalances"]] == ["ambiguous", "recorded"]
    assert "a clean leave, an expired session" in answer["rebalances"][0]["cause_note"]
    endings = [(row["members_left"], [one["member_id"] for one in row["endings"]]) for row in answer["rebalances"]]
    assert [named for _, named in endings] == [left or [] for left, _ in endings]
    assert any(named for _, named in endings)


def test_group_page_links_each_rebalance(site: Site) -> None:
    text = site.get("/groups/billing")
    anchors = re.findall(r'<tr id="(generation-[^"]+)"', text)
    assert len(anchors) == len(set(anchors)) == len(group(site, "billing")["rebalances"])
    assert {f'<a href="#{anchor}">' in text for anchor in anchors} == {True}
    assert "generation-25" in anchors


def test_group_page_names_the_coordinator_and_links_it(tmp_path: Path) -> None:
    config = configured(tmp_path)
    billing(config)
    lay(config, "ingest_progress", progress(0, 10, landed_at=KNOWN_UNTIL))
    moved = {"valid_to": at(30), "last_seen_at": at(29)}
    lay(
        config,
        "coordinators",
        {"record_partition": 9, "leader_epoch": 1, "broker_id": 2, "first_offset": 0, "valid_from": at(0), **moved},
        {"record_partition": 9, "leader_epoch": 2, "broker_id": 1, "first_offset": 50, "valid_from": at(30)},
    )
    lay(config, "brokers", {"broker_id": 1, "host": "kafka-1", "valid_from": at(0)})
    site = Site(config)
    now = group(site, "billing")["now"]
    assert (now["coordinator"]["broker_id"], now["coordinator"]["host"]) == (1, "kafka-1")
    first, second = (f'<a href="/brokers/{number}" title="what if it stops">broker {number}</a>' for number in (1, 2))
    assert f"{first} <small>kafka-1</small>" in site.get("/groups/billing")
    assert f"{second} then and {first} now" in site.get("/groups/billing?at=2026-03-04T12:10:00Z")
    assert f"{second} then, or no longer and" in site.get("/groups/billing?at=2026-03-04T12:29:30Z")


def test_rollouts_of_a_group_have_the_columns_of_the_view(site: Site) -> None:
    answer = json.loads(site.get("/api/v1/rollouts/deployed"))
    [rollout] = answer["rollouts"]
    assert (answer["group_id"], answer["total"]) == ("deployed", 1)
    assert (rollout["started_at"], rollout["ended_at"]) == ("2026-03-04T12:30:00Z", "2026-03-04T12:33:30Z")
    assert (rollout["way"], rollout["certainty"], rollout["evidence"]) == ("rolling", "likely", "client_id_and_host")
    assert (rollout["members"], rollout["of_members"], rollout["rebalances"]) == (4, 4, 8)
    assert (rollout["first_generation"], rollout["last_generation"], rollout["seconds"]) == (2, 9, 210.0)
    assert "2026-03-04 12:30:00" in site.get("/rollouts/deployed")


@pytest.mark.parametrize(
    ("between", "count"),
    [("from=2026-03-04T12:33:00Z", 1), ("from=2026-03-04T12:34:00Z", 0), ("to=2026-03-04T12:29:00Z", 0),
     ("from=2026-03-04T12:31:00Z&to=2026-03-04T12:31:30Z", 1)],
)  # fmt: skip
def test_rollouts_between_two_times_are_those_that_went_on_then(site: Site, between: str, count: int) -> None:
    assert len(json.loads(site.get(f"/api/v1/rollouts/deployed?{between}"))["rollouts"]) == count


def test_rollouts_of_a_group_without_any_are_an_empty_list(site: Site) -> None:
    assert json.loads(site.get("/api/v1/rollouts/billing"))["rollouts"] == []
    assert "It had none in this time" in site.get("/rollouts/mirror")


def test_rollouts_of_an_unknown_group_are_not_found(site: Site) -> None:
    assert json.loads(site.get("/api/v1/rollouts/deploied", status=404))["near"] == ["deployed"]


def test_group_page_leaves_rollouts_to_a_request_of_its_own(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view takes longer than the rest of the page."""
    monkeypatch.setattr("grouptrail.query.rollouts.view_query", None)
    text = site.get("/groups/deployed")
    assert 'data-source="/rollouts/deployed?from=' in text
    assert text.count(' data-generation="') == 9


def test_group_page_opens_each_table_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def noting(table: TableLocation, version: int | None = None) -> OpenTable:
        opened.append(table.name)
        return existing_table(table, version)

    site.get("/groups/billing")
    monkeypatch.setattr("grouptrail.storage.reader.existing_table", noting)
    assert 'id="data"' in site.get("/groups/billing")
    assert {"generations", "consumer_lag"} <= set(opened)
    assert len(opened) == len(set(opened))


def test_group_partitions_have_lag_at_the_time_and_over_time(site: Site) -> None:
    answer = group(site, "billing?at=2026-03-04T12:20:00Z")
    first = next(row for row in answer["partitions"] if (row["topic"], row["partition"]) == ("orders", 0))
    assert first["lag"] is not None
    times = [point["at"] for point in first["points"]]
    assert times == sorted(times)
    assert len(times) > 20
    assert '<svg class="chart lag"' in site.get("/groups/billing")


def test_group_that_only_commits_has_partitions_and_no_timeline(site: Site) -> None:
    answer = group(site, "mirror")
    assert answer["now"] is None
    assert [(row["topic"], row["lag"]) for row in answer["partitions"]] == [("clicks", 5)]
    text = site.get("/groups/mirror")
    assert "There is no timeline: no record of its members has been read" in text
    assert 'id="data"' not in text


def test_group_in_several_clusters_can_be_chosen(tmp_path: Path) -> None:
    east, west, other = (
        configured(tmp_path).model_copy(update={"cluster": name}) for name in ("east", "west", "other")
    )
    lay(east, "consumer_lag", *(lag_row(number, cluster=name) for number, name in enumerate(("east", "west"), 1)))
    site = Site(east, west, other)
    assert group(site, "billing")["cluster"] == "east"
    assert group(site, "billing?cluster=west")["summary"]["lag"] == 10
    assert "Several clusters have a group of this name" in site.get("/groups/billing")
    site.get("/groups/billing?cluster=other", status=404)


def test_group_with_generations_that_began_again_has_distinct_links(tmp_path: Path) -> None:
    config = configured(tmp_path)
    for table in HISTORY:
        lay(config, table)
    rows = [{"started_at": at(minute), "generation": 1, "incarnation": minute} for minute in (1, 2)]
    lay(config, "generations", *rows)
    changes = [{"at": at(minute), "to_generation": 1, "cause": "group_started"} for minute in (1, 2)]
    lay(config, "rebalances", *changes)
    anchors = re.findall(r'<tr id="(generation-[^"]+)"', Site(config).get("/groups/billing"))
    assert anchors == ["generation-1", f"generation-1-{int(at(1).timestamp() * 1000)}"]


def test_possible_re_reads_come_from_handovers_and_resets(tmp_path: Path) -> None:
    config = configured(tmp_path)
    begin = now() - timedelta(minutes=10)
    for table in HISTORY:
        lay(config, table)
    lay(config, "generations", {"started_at": begin, "generation": 4})
    handover = {
        "topic": "orders", "partition": 3, "from_member": "a", "to_member": "b", "given_up_at": begin,
        "taken_at": begin, "committed_offset": 90, "commit_age_ms": 4000, "may_be_read_twice": 17,
    }  # fmt: skip
    nothing = {**handover, "partition": 4, "may_be_read_twice": 0}
    change = {"at": begin, "to_generation": 4, "cause": "member_left", "handed_over": [nothing, handover]}
    lay(config, "rebalances", change)
    commits = [
        {"record_offset": number, "committed_offset": offset, "record_at": begin + timedelta(seconds=number)}
        for number, offset in enumerate((500, 20))
    ]
    lay(config, "offset_commits", *({**row, "topic": "orders", "partition": 0, "metadata": ""} for row in commits))
    answer = group(Site(config), "billing")
    assert [(row["partition"], row["may_be_read_twice"]) for row in answer["handovers"]] == [(3, 17)]
    assert [(row["kind"], row["moved_by"]) for row in answer["resets"]] == [("rewind", -480)]
    text = Site(config).get("/groups/billing")
    assert "≈ 17" in text
    assert "rewind" in text


def test_topic_has_its_consumers_and_the_headroom_of_the_slowest(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(
        config,
        "consumer_lag",
        lag_row(0),
        lag_row(0, group_id="slow", committed_offset=40, lag=60, lag_seconds=300.0, consume_rate=1.0),
        lag_row(0, group_id="late", committed_offset=4, lag=96, lag_seconds=900.0, lost_records=6, topic="other"),
    )
    day = timedelta(hours=1)
    starts = [{"topic": "orders", "partition": 0, "sampled_at": now() - day, "log_start_offset": -14_390}]
    starts.append({"topic": "orders", "partition": 0, "sampled_at": now(), "log_start_offset": 10})
    lay(config, "log_offsets", *starts)
    topic = json.loads(Site(config).get("/api/v1/topics/orders"))
    assert [row["group_id"] for row in topic["consumers"]] == ["slow", "billing"]
    [partition] = topic["partitions"]
    assert (partition["slowest_group_id"], partition["headroom"]) == ("slow", 30)
    # The log's start advances by 4 records a second, the group by 1: it is overtaken after 30 / 3 seconds.
    assert partition["seconds_to_loss"] == pytest.approx(10, abs=0.1)
    assert "until it takes unread records" in Site(config).get("/topics/orders")


def test_topic_whose_unread_records_were_deleted_says_so(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "consumer_lag", lag_row(0, committed_offset=4, lag=96, lost_records=6))
    site = Site(config)
    [partition] = json.loads(site.get("/api/v1/topics/orders"))["partitions"]
    assert partition["headroom"] == -6
    assert "deleted unread" in site.get("/topics/orders")


def test_topic_with_stale_figures_does_not_say_when_retention_takes_records(tmp_path: Path) -> None:
    config = configured(tmp_path)
    old = now() - timedelta(hours=2)
    lay(config, "consumer_lag", lag_row(0, committed_offset=40, lag=60, lag_seconds=300.0, sampled_at=old))
    starts = ((old - timedelta(hours=1), -14_390), (old, 10))
    lay(config, "log_offsets", *({"topic": "orders", "sampled_at": at, "log_start_offset": by} for at, by in starts))
    topic = json.loads(Site(config).get("/api/v1/topics/orders"))
    assert (topic["is_stale"], topic["partitions"][0]["seconds_to_loss"]) == (True, None)


def test_group_at_a_time_after_the_newest_figures_says_of_when_they_are(tmp_path: Path) -> None:
    config = configured(tmp_path)
    billing(config)
    lay(config, "ingest_progress", progress(0, 10, landed_at=KNOWN_UNTIL))
    site = Site(config)
    late = group(site, "billing?at=now")
    as_of = datetime.fromisoformat(late["as_of"])
    assert late["is_stale"]
    assert KNOWN_UNTIL - as_of < timedelta(minutes=5)
    assert not group(site, "billing?at=2026-03-04T13:00:00Z")["is_stale"]
    assert f"as of {as_of:%Y-%m-%d %H:%M:%S} UTC (" in site.get("/groups/billing?at=now")


def test_page_of_a_streams_group_has_tasks_by_role_its_topology_and_the_lag_of_tasks(tmp_path: Path) -> None:
    """A subtopology is no topic: only the topics that it reads or writes have a page."""
    config = configured(tmp_path)
    lay_streams_group(config)
    site = Site(config)
    answer = json.loads(site.get("/api/v1/groups/app"))["now"]
    assert answer["members"][1]["tasks"] == {"active": {"0": [1]}, "standby": {"1": [0]}}
    assert {(row["subtopology"], row["task"], row["role"]): row["lag"] for row in answer["task_lag"]} == {
        ("0", 0, "active"): 1_200,
        ("0", 1, "active"): None,
        ("1", 0, "active"): 5,
        ("1", 0, "standby"): None,
    }
    page = site.get("/groups/app")
    assert [heading in page for heading in ("Active tasks", "Standby tasks", "Warm-up tasks", ">Owns")] == [
        *(True, True),
        *(False, False),
    ]
    links = set(re.findall(r'href="/topics/([^"?]+)', page[page.index("subtopologies-heading") :]))
    assert links == {"orders", "by-key"}
    assert "3 tasks, skew 1" in page
    assert "Offset sum" not in page


def test_page_of_a_group_that_is_not_ready_names_the_missing_topics(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_unready_group(config)
    lay(
        config,
        "topics",
        *({"topic": name, "partition_count": 4, "valid_from": at(0)} for name in ("orders", "by-key")),
    )
    site = Site(config)
    now = json.loads(site.get("/api/v1/groups/app"))["now"]
    assert [(row["topic"], row["certainty"]) for row in now["unready"]["topics"]] == [("counts", "likely")]
    page = site.get("/groups/app")
    assert "Not ready" in page
    assert "counts <small>subtopology 1, likely</small>: missing: no sample" in page


def test_page_of_an_application_has_the_offset_sums_of_its_tasks(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay_streams_group(config, offset_sum=1_040, offset_sum_at=at(1))
    site = Site(config)
    listed = json.loads(site.get("/api/v1/groups/app"))["now"]["task_lag"]
    sums = {(row["offset_sum"], row["offset_sum_at"]) for row in listed}
    assert sums == {(None, None), (1_040, "2026-03-04T12:01:00Z")}
    page = site.get("/groups/app")
    assert "Offset sum" in page
    assert "1,040" in page
