"""The runbooks as a page, and the verdicts that link to them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from grouptrail.contracts import statuses
from grouptrail.web.runbooks import OF_STATUS, runbook_of
from support.exporter_tables import configured, lag_row
from support.small_tables import lay
from support.web_client import Site

ALERTS = Path(__file__).resolve().parents[2] / "dashboards" / "alerts"


@pytest.fixture
def site(tmp_path: Path) -> Site:
    config = configured(tmp_path)
    lay(config, "consumer_lag", *(lag_row(0, group_id=status, status=status) for status in statuses()))
    return Site(config)


def test_runbooks_have_a_section_for_each_alert(site: Site) -> None:
    text = site.get("/runbooks")
    rules = [
        rule
        for name in ("groups", "pipeline")
        for group in yaml.safe_load((ALERTS / f"{name}.yaml").read_text("utf-8"))["groups"]
        for rule in group["rules"]
    ]
    for alert in (rule["alert"] for rule in rules if "alert" in rule):
        assert f'<h2 id="{alert.lower()}">{alert}</h2>' in text
    assert "<pre><code" in text
    assert "<strong>Means</strong>" in text


def test_runbooks_link_no_document_that_is_not_served(site: Site) -> None:
    runbooks = site.get("/runbooks").partition("<article")[2].partition("</article>")[0]
    for target in re.findall(r'href="([^"]*)"', runbooks):
        assert target.startswith(("#", "https://")), target


def test_verdicts_link_to_the_runbook_of_their_alert(site: Site) -> None:
    """Those that no alert is about have no link."""
    index, runbooks = site.get("/"), site.get("/runbooks")
    for status in statuses():
        link = runbook_of(status)
        assert (link is None) == (status not in OF_STATUS)
        if link is not None:
            assert f'<a class="verdict-link" href="{link}"' in index
            assert f'id="{link.partition("#")[2]}"' in runbooks
        else:
            assert f'<span class="verdict-mark {status}"></span>{status}</td>' in index


def test_warn_links_to_the_runbook_of_poison_records_where_a_record_comes_back_again_and_again(
    tmp_path: Path,
) -> None:
    config = configured(tmp_path)
    came_back = {
        "group_id": "queue",
        "delivery_complete_count": 1,
        "awaiting_redelivery": 1,
        "most_delivered_offset": 5,
    }
    rows = [lag_row(0, status="WARN", topic=f"topic-{n}", **came_back, most_deliveries=n) for n in (1, 2)]
    for table in (
        "rebalances",
        "memberships",
        "partition_ownership",
        "ingest_progress",
        "generations",
        "group_states",
    ):
        lay(config, table)
    lay(config, "consumer_lag", *rows, lag_row(0, status="WARN", topic="plain", group_id="billing"))
    site = Site(config)

    def links(path: str) -> list[str]:
        return re.findall(r'class="verdict-link" href="/runbooks#(\w+)"', site.get(path))

    poison, behind = "consumergrouppoisonrecord", "consumergroupbehind"
    assert sorted(links("/")) == [behind, poison]
    assert links("/groups/queue")[0] == poison
    assert sorted(links("/groups/queue")[1:]) == [behind, poison]
    assert sorted(links("/topics")) == [behind, behind, poison]
    assert [links(f"/topics/{topic}") for topic in ("topic-1", "topic-2")] == [[behind], [poison]]
    assert runbook_of("STALL", 9) == "/runbooks#consumergroupstalled"


def test_verdicts_are_those_that_the_alerts_are_about() -> None:
    """ConsumerGroupBehind goes by seconds, as WARN does."""
    rules = yaml.safe_load((ALERTS / "groups.yaml").read_text("utf-8"))["groups"][0]["rules"]
    expressions = {rule["alert"]: rule["expr"] for rule in rules}
    for status, alert in OF_STATUS.items():
        assert alert in expressions
        assert status == "WARN" or f'status="{status}"' in expressions[alert]
