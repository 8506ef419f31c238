"""The pages of all topics and of the rebalances of all groups, and their JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from grouptrail.web.texts import coded
from support.exporter_tables import OPEN, configured, lag_row, lay_everything, now
from support.sample_groups import KNOWN_UNTIL, billing
from support.small_tables import at, lay
from support.web_client import Site


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Site:
    config = configured(tmp_path_factory.mktemp("topics"))
    lay_everything(
        config,
        lag_row(0, group_id="payments", topic="clicks", status="STOP", lag=7, lag_seconds=900.0, produce_rate=2.0),
        lag_row(0, group_id="audit", topic="clicks", status="OK", lag=70, lag_seconds=3.0, produce_rate=2.0),
        lag_row(1, group_id="audit", topic="clicks", status="OK", lag=5, lag_seconds=4.0, produce_rate=3.0),
        lag_row(0, group_id="audit", topic="a/b_c%", status="OK", lag=None, lag_seconds=None, produce_rate=None),
    )
    return Site(config)


def listed(site: Site, path: str) -> dict[str, Any]:
    return dict(json.loads(site.get(f"/api/v1/{path}")))


def names(site: Site, query: str = "") -> list[str]:
    return [row["topic"] for row in listed(site, f"topics{query}")["topics"]]


def test_topics_have_their_groups_and_the_slowest(topics: Site) -> None:
    (clicks,) = (row for row in listed(topics, "topics")["topics"] if row["topic"] == "clicks")
    assert {name: clicks[name] for name in ("status", "groups", "partitions", "slowest_group_id")} == {
        "status": "STOP",
        "groups": 2,
        "partitions": 2,
        "slowest_group_id": "payments",
    }
    assert (clicks["lag"], clicks["lag_seconds"], clicks["produce_rate"]) == (7, 900.0, 5.0)


def test_topics_without_parameters_are_sorted_worst_first(topics: Site) -> None:
    assert names(topics)[0] == "clicks"
    assert names(topics, "?sort=topic") == sorted(names(topics))
    assert names(topics, "?sort=-topic") == sorted(names(topics), reverse=True)


@pytest.mark.parametrize("wanted", ["B_C", "a/*", "*%", "a?b*"])
def test_topics_by_part_of_a_name_or_pattern(topics: Site, wanted: str) -> None:
    assert names(topics, f"?topic={wanted.replace('%', '%25').replace('?', '%3F')}") == ["a/b_c%"]


def test_topics_unknown_lag_is_none(topics: Site) -> None:
    (row,) = listed(topics, "topics?topic=a/b")["topics"]
    assert (row["lag"], row["lag_seconds"], row["produce_rate"], row["groups"]) == (None, None, None, 1)


def test_topics_of_no_name_are_an_answer_and_of_no_cluster_too(topics: Site) -> None:
    assert names(topics, "?topic=nowhere") == []
    assert "No topic matches" in topics.get("/topics?topic=nowhere")
    assert names(topics, "?per_page=1&page=9") == [names(topics)[-1]]
    topics.get("/topics?sort=shoe", status=400)


def test_topics_page_links_topics_and_groups(topics: Site) -> None:
    text = topics.get("/topics")
    assert '<a href="/topics/clicks">clicks</a>' in text
    assert '<a href="/groups/payments">payments</a>' in text
    assert re.search(r'<a href="/topics" aria-current="page">Topics</a>', text)
    assert "/api/v1/topics" in text


@pytest.mark.parametrize(("path", "to"), [("/groups", "/"), ("/groups/", "/"), ("/topics/", "/topics")])
def test_lists_without_a_name_lead_to_the_list(topics: Site, path: str, to: str) -> None:
    answer = topics.client.get(f"{path}?cluster=default", base_url="http://127.0.0.1:9308")
    assert (answer.status_code, answer.headers["Location"]) == (302, f"{to}?cluster=default")


@pytest.fixture(scope="module")
def rebalances(tmp_path_factory: pytest.TempPathFactory) -> Site:
    config = configured(tmp_path_factory.mktemp("rebalances"))
    billing(config)
    lay(config, "rebalances", {"group_id": "a_b", "to_generation": 3, "at": at(50), "cause": "member_joined"})
    lay(
        config, "group_states", {**OPEN, "group_id": "a_b", "record_offset": 9, "state": "Dead", "started_at": at(55)}
    )
    lay(config, "ingest_progress", {"batch_id": 0, "landed_at": KNOWN_UNTIL})
    return Site(config)


WITHIN = "from=2026-03-04T00:00:00Z&to=2026-03-05T00:00:00Z"


def test_rebalances_of_all_groups_are_counted_by_cause_and_newest_first(rebalances: Site) -> None:
    answer = listed(rebalances, f"rebalances?{WITHIN}&per_page=500")
    assert answer["total"] == sum(answer["causes"].values()) == len(answer["rebalances"]) > 20
    times = [row["at"] for row in answer["rebalances"]]
    assert times == sorted(times, reverse=True)
    assert answer["groups"] == 2
    assert {row["group_id"] for row in answer["rebalances"]} == {"billing", "a_b"}


def test_rebalances_by_cause_group_and_time(rebalances: Site) -> None:
    joined = listed(rebalances, f"rebalances?{WITHIN}&cause=member_joined")
    assert {row["cause"] for row in joined["rebalances"]} == {"member_joined"}
    assert joined["total"] == joined["causes"]["member_joined"]
    for wanted in ("a_b", "A_*", "a%3Fb", "_"):
        (row,) = listed(rebalances, f"rebalances?{WITHIN}&group={wanted}")["rebalances"]
        assert (row["group_id"], row["to_generation"]) == ("a_b", 3)
    assert listed(rebalances, "rebalances?from=2026-03-04T12:49:00Z&to=2026-03-04T12:51:00Z&group=a_b")["total"] == 1
    assert listed(rebalances, f"rebalances?{WITHIN}&group=%25")["total"] == 0


def test_rebalances_page_links_the_group_at_that_moment(rebalances: Site) -> None:
    text = rebalances.get(f"/rebalances?{WITHIN}&group=a_b")
    assert '<a href="/groups/a_b">a_b</a>' in text
    assert "/groups/a_b?at=2026-03-04T12%3A50%3A00%2B00%3A00#generation-3" in text


def test_rebalances_of_a_group_that_was_deleted_say_so(rebalances: Site) -> None:
    rows = listed(rebalances, f"rebalances?{WITHIN}&per_page=500")["rebalances"]
    assert {row["group_id"]: row["is_deleted"] for row in rows} == {"a_b": True, "billing": False}
    assert "a_b</a> <small" in rebalances.get(f"/rebalances?{WITHIN}&group=a_b")


def test_rebalances_page_keeps_its_times_when_a_cause_is_chosen(rebalances: Site) -> None:
    text = rebalances.get(f"/rebalances?{WITHIN}")
    assert "from=2026-03-04T00%3A00%3A00Z&amp;to=2026-03-05T00%3A00%3A00Z&amp;cause=member_joined" in text


def test_rebalances_of_wrong_times_and_clusters_are_refused(rebalances: Site) -> None:
    rebalances.get("/rebalances?from=now&to=2h", status=400)
    rebalances.get("/rebalances?from=shoe", status=400)
    rebalances.get("/rebalances?cluster=nowhere", status=404)


def test_rebalances_without_history_are_none(tmp_path: Path) -> None:
    config = configured(tmp_path)
    lay(config, "consumer_lag", lag_row(1, sampled_at=now()))
    site = Site(config)
    assert listed(site, "rebalances")["total"] == 0
    assert "There were none in this time" in site.get("/rebalances")


def changed(site: Site, query: str) -> dict[str, dict[str, Any]]:
    return {row["group_id"]: row for row in listed(site, f"changes{query}")["changes"]}


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return a site on which one group's verdict became worse, one's better, and one's is as it was two hours ago."""
    config = configured(tmp_path_factory.mktemp("changes"))
    before, began = now() - timedelta(hours=2), now() - timedelta(days=3)
    lay(
        config,
        "consumer_lag",
        *(
            lag_row(0, group_id=group, status=status, lag=lag, sampled_at=sampled_at)
            for sampled_at, groups in (
                (before, {"worse": ("OK", 0), "better": ("STOP", 9), "same": ("WARN", 5)}),
                (now(), {"worse": ("STOP", 70), "better": ("OK", 0), "same": ("WARN", 6)}),
            )
            for group, (status, lag) in groups.items()
        ),
    )
    lay(config, "ingest_progress", {"batch_id": 0, "landed_at": began}, {"batch_id": 1, "landed_at": now()})
    lay(
        config,
        "memberships",
        *(
            {"group_id": group, "member_id": member, "client_id": client, "joined_at": joined, "left_at": left}
            | {"began": "joined", "ended": left and "left", "incarnation": 1, "client_host": f"/{member}"}
            for group, client, old, new, moved in (
                ("deployed", "g", "g-1", "g-2", now() - timedelta(minutes=50)),
                ("deployed", "h", "h-1", "h-2", now() - timedelta(minutes=49)),
            )
            for member, joined, left in ((old, began, moved), (new, moved + timedelta(seconds=5), None))
        ),
        {"group_id": "shrunk", "member_id": "s-1", "joined_at": began, "left_at": now(), "began": "joined"},
    )
    for table in ("generations", "group_states", "offset_commits"):
        lay(config, table, {"group_id": "same", **_FIRST[table](began)})
    lay(config, "rebalances", {"group_id": "same", "to_generation": 4, "at": before, "cause": "member_joined"})
    lay(config, "partition_ownership")
    return Site(config)


_FIRST: dict[str, Callable[[datetime], dict[str, Any]]] = {
    "generations": lambda at: {"generation": 1, "started_at": at},
    "group_states": lambda at: {"state": "Stable", "started_at": at},
    "offset_commits": lambda at: {"topic": "orders", "record_at": at, "is_tombstone": False},
}


def test_changes_are_of_groups_that_are_not_as_they_were_the_most_worrying_first(changes: Site) -> None:
    rows = changed(changes, "?since=100m")
    assert list(rows) == ["shrunk"]  # two hours ago is too old to compare with
    rows = changed(changes, "?since=119m")
    assert list(rows) == ["worse", "shrunk", "better"]
    assert rows["worse"] | {"members": 1} == {
        **dict.fromkeys(("members_then", "new_at", "vanished_at")),
        "group_id": "worse",
        "status_then": "OK",
        "status": "STOP",
        "severity_then": 1,
        "severity": 5,
        "lag_then": 0,
        "lag": 70,
        "members": 1,
        "rebalances": 0,
    }
    assert (rows["shrunk"]["members_then"], rows["shrunk"]["members"]) == (1, 0)
    page = changes.get("/changes?since=119m")
    assert '<span class="faint">0 →</span> 70' in page
    assert changed(changes, "?since=3h")["same"]["rebalances"] == 1
    assert "/rebalances?group=same&amp;from=" in changes.get("/changes?since=3h")


def test_changes_since_the_last_deploy_begin_with_the_newest_rollout(changes: Site) -> None:
    answer = listed(changes, "changes?since=deploy")
    assert answer["rollout"]["group_id"] == "deployed"
    assert answer["since"] == answer["rollout"]["started_at"]
    assert "since the newest rollout, of" in changes.get("/changes?since=deploy")


def test_changes_without_a_rollout_or_with_a_wrong_time_say_what_to_give(changes: Site, topics: Site) -> None:
    assert "no rollout of a group is known" in topics.get("/api/v1/changes?since=deploy", status=404)
    changes.get("/changes?since=shoe", status=400)
    assert "is not before" in changes.get("/api/v1/changes?since=2099-01-01T00:00:00Z", status=404)
    assert "No group has changed" in topics.get("/changes?since=1h")


def test_index_leads_to_what_has_changed(topics: Site) -> None:
    assert '<a href="/changes?since=deploy">the last deploy</a>' in topics.get("/")


def test_topic_has_the_lag_of_its_groups_over_time(tmp_path: Path) -> None:
    """A round that a slice of time has in part, and lag that is unknown of one partition, are no figures."""
    config = configured(tmp_path)
    minute = now().replace(second=0, microsecond=0) - timedelta(minutes=10)
    rounds = {0: {0: 5, 1: 7}, 1: {0: 6, 1: None}, 2: {0: 9}, 3: {0: 1, 1: 2}}
    lay(
        config,
        "consumer_lag",
        *(
            lag_row(partition, lag=lag, sampled_at=minute + timedelta(minutes=number, seconds=5))
            for number, of_round in rounds.items()
            for partition, lag in of_round.items()
        ),
        *(lag_row(partition) for partition in (0, 1)),
    )
    site = Site(config)
    since, until = minute, minute + timedelta(minutes=5)
    topic = listed(site, f"topics/orders?from={since:%Y-%m-%dT%H:%M:%SZ}&to={until:%Y-%m-%dT%H:%M:%SZ}")
    assert topic["from"] == f"{since:%Y-%m-%dT%H:%M:%S}Z"
    (billing,) = topic["consumers"]
    assert [point["lag"] for point in billing["points"]] == [12, None, None, 3]
    assert "max 12" in site.get(f"/topics/orders?from={since:%Y-%m-%dT%H:%M:%SZ}&to={until:%Y-%m-%dT%H:%M:%SZ}")
    site.get("/topics/orders?from=now&to=1h", status=400)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("run `grouptrail run` now", "run <code>grouptrail run</code> now"),
        ("`a` and `<b>`", "<code>a</code> and <code>&lt;b&gt;</code>"),
        ("one ` alone <i>", "one ` alone &lt;i&gt;"),
        ("`a` and ` alone", "<code>a</code> and ` alone"),
        ("", ""),
        ("<b>", "&lt;b&gt;"),
    ],
)
def test_coded_sentence_has_code_instead_of_backticks(text: str, expected: str) -> None:
    assert str(coded(text)) == expected


def test_notices_on_a_page_have_no_backticks(tmp_path: Path) -> None:
    text = Site(configured(tmp_path)).get("/")
    assert "<code>grouptrail " in text
    assert "`" not in re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
