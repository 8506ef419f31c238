"""The pages of all topics and of the rebalances of all groups, and their JSON."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grouptrail.web.texts import coded
from support.exporter_tables import configured, lag_row, lay_everything, now
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
