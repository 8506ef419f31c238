"""The page of brokers and its JSON: what would happen if they stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from grouptrail.config import Config
from support.broker_facts import lay_cluster, lay_facts, led
from support.exporter_tables import OPEN, configured, lay_groups, now
from support.small_tables import lay
from support.web_client import Site

HOSTILE = "<script>alert(1)</script>\"'\u202e\n{{7*7}}"


@pytest.fixture(scope="module")
def groups_and_site(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Site]:
    config = configured(tmp_path_factory.mktemp("lake"))
    return lay_cluster(config, HOSTILE), Site(config)


@pytest.fixture
def lake(tmp_path: Path) -> Config:
    return configured(tmp_path / "lake")


def answered(site: Site, path: str, **more: Any) -> dict[str, Any]:
    return dict(json.loads(site.get(f"/api/v1/brokers/{path}", **more)))


def words(page: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", page).split())


def test_brokers_page_has_the_verdict_and_what_happens(groups_and_site: tuple[dict[str, str], Site]) -> None:
    groups, site = groups_and_site
    page = words(site.get("/brokers/3"))
    assert "Not safe 2 partitions would refuse acks=all writes: below min.insync.replicas; 2 would be offline" in page
    assert f"{groups['cannot_commit']} cannot commit or rebalance: __consumer_offsets-1 is below" in page
    assert "Would be offline 2 1 already" in page
    assert "__consumer_offsets, partition 1: would refuse acks=all; groups in them cannot commit" in page


def test_brokers_json_has_the_figures_of_the_command(groups_and_site: tuple[dict[str, str], Site]) -> None:
    groups, site = groups_and_site
    answer = answered(site, "3")
    assert (answer["verdict"], answer["cluster"], answer["listed"]) == ("unsafe", "default", [1, 2, 3])
    assert answer["groups"][0]["group_id"] == groups["cannot_commit"]
    assert answer["groups"][0]["consequences"] == ["cannot_commit", "leaders_move"]
    assert len(answer["groups"][0]["meaning"]) == 2
    assert answer["topics_total"] == len(answer["topics"]) == 6
    assert (
        answered(site, "?name=1,3")["counts"]
        == answered(site, "1,3")["counts"]
        == answered(site, "?rack=r1")["counts"]
    )


def test_brokers_page_escapes_names(groups_and_site: tuple[dict[str, str], Site]) -> None:
    _, site = groups_and_site
    page = site.get("/brokers/3")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert" not in page
    assert "\u202e" not in page
    assert "{{7*7}}" in page
    for path in ("/brokers/%3Cscript%3Ealert(1)", "/brokers/3?rack=%3Cscript%3Ealert(1)"):
        answer = site.client.get(path)
        assert answer.status_code in (400, 404)
        assert "<script>alert" not in answer.text


@pytest.mark.parametrize(
    ("path", "status", "detail", "near"),
    [
        ("7", 404, "cluster default has no broker 7: its brokers are 1, 2, 3", ["1", "2", "3"]),
        ("?name=", 404, "name brokers of cluster default: its brokers are 1, 2, 3", ["1", "2", "3"]),
        ("3?rack=r9", 404, "cluster default has no broker in rack 'r9': racks are r0, r1", ["1", "2", "3"]),
        ("x", 400, "'x' is no id of a broker: give numbers such as 3, or 3,4", []),
        ("-3", 400, "'-3' is no id of a broker: give numbers such as 3, or 3,4", []),
        ("99999999999999999999", 400, "is no id of a broker", []),
        ("3?cluster=other", 404, "there is no cluster 'other'", []),
        ("3?at=yesteryear", 400, "is no time", []),
        ("3?at=2020-01-01", 404, "were first sampled at", []),
    ],
)
def test_brokers_wrongly_asked_for_are_refused_with_one_line(
    groups_and_site: tuple[dict[str, str], Site], path: str, status: int, detail: str, near: list[str]
) -> None:
    _, site = groups_and_site
    problem = answered(site, path, status=status)
    assert (detail in problem["detail"], problem["near"]) == (True, near), problem
    page = site.get(f"/brokers/{path}", status=status)
    assert all(f'href="/brokers/{number}"' in page for number in near)


def test_brokers_without_ids_lead_to_the_first_one(groups_and_site: tuple[dict[str, str], Site]) -> None:
    _, site = groups_and_site
    for path, first in (("", "/brokers/1"), ("?cluster=default", "/brokers/1?cluster=default")):
        answer = site.client.get(f"/brokers/{path}")
        assert (answer.status_code, answer.headers["Location"]) == (303, first)
    assert '<a href="/brokers/" aria-current="page">Brokers</a>' in site.get("/brokers/3")
    assert '<a href="/brokers/">Brokers</a>' in site.get("/")


def test_brokers_of_a_cluster_not_sampled_say_what_to_do(lake: Config) -> None:
    lay_groups(lake)
    assert "have not been sampled yet: run `grouptrail run`" in answered(Site(lake), "3", status=404)["detail"]


def test_brokers_safe_and_unknown_are_told_apart(lake: Config) -> None:
    lay_groups(lake)
    lay_facts(lake, *(led(topic, 0, 1, [1, 2, 3]) for topic in ("orders", "t" * 249)))
    assert answered(Site(lake), "3")["verdict"] == "safe"
    assert "Safe No partition would be offline" in words(Site(lake).get("/brokers/3"))
    lay(lake, "topic_partitions", {**led("audit", 0, 1, [1, 3]), "valid_from": now(), **OPEN})
    page = words(Site(lake).get("/brokers/3"))
    assert "Not known to be safe 1 partition may be below min.insync.replicas" in page
    assert "no sample shows __consumer_offsets" in page
