"""Which series are served: patterns, granularity, and a budget that keeps the groups with the most lag."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from grouptrail.config import Config
from grouptrail.exporter.alias import ALIASES
from grouptrail.exporter.families import group_families
from grouptrail.exporter.governor import governed
from grouptrail.exporter.labels import label_values
from grouptrail.exporter.page import ClusterPage, Page
from grouptrail.exporter.text import Family
from grouptrail.snapshot.reader import Snapshot
from support.exporter_tables import LONG_TOPIC, OPEN, configured, figures, lag_row, lag_table, now
from support.from_config import snapshot_reader
from support.small_tables import lay

EVERY_ALIAS = [alias for aliases in ALIASES.values() for alias in aliases]
GROUPS = [f"group-{number:02d}" for number in range(20)]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """Twenty groups with three partitions of two topics; the lag of a group is ten times its number."""
    config = configured(tmp_path_factory.mktemp("lake"))
    lay(config, "group_states", *({**OPEN, "group_id": group, "state": "Stable"} for group in GROUPS))
    lay(config, "generations", *({**OPEN, "group_id": group, "generation": 1, "member_count": 2} for group in GROUPS))
    lay(config, "rebalances", *({"group_id": group, "cause": "group_started", "at": now()} for group in GROUPS))
    places = [("orders", 0), ("orders", 1), ("payments", 0)]
    rows = [
        lag_row(partition, group_id=group, topic=topic, lag=10 * number if topic == "payments" else 0)
        for number, group in enumerate(GROUPS)
        for topic, partition in places
    ]
    return snapshot_reader(config).read(lag_table(*rows))


def serve(snapshot: Snapshot, **settings: Any) -> tuple[list[Family], dict[str, int]]:
    result = governed(snapshot, configured("lake", **settings).exporter, EVERY_ALIAS)
    return result.families, dict(result.dropped)


def series(families: list[Family]) -> int:
    return sum(family.series for family in families)


def groups(families: list[Family]) -> set[str]:
    return {
        group
        for family in families
        if "group" in family.labels.values()
        for group in family.rows["group"].to_pylist()
    }


OPT_IN = ("kafka_consumer_group_owner_info", "kafka_consumer_group_readable_lag")


def test_governed_default_settings_serve_every_group(snapshot: Snapshot) -> None:
    """No series is counted as dropped."""
    families, dropped = serve(snapshot)
    assert groups(families) == set(GROUPS)
    assert dropped == {"pattern": 0, "budget": 0}
    by_default = [name for family in group_families(snapshot) if (name := family.name) not in OPT_IN]
    assert [family.name for family in families[: len(by_default)]] == by_default


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"allow_groups": "group-0*"}, GROUPS[:10]),
        ({"deny_groups": "group-0*,group-1[5-9]"}, GROUPS[10:15]),
        ({"allow_groups": "group-0*,group-19", "deny_groups": "*-0[!3]"}, ["group-03", "group-19"]),
        ({"allow_groups": "GROUP-*"}, []),
    ],
)
def test_governed_group_patterns_select_groups_and_count_dropped_series(
    snapshot: Snapshot, settings: dict[str, str], expected: list[str]
) -> None:
    """All series of the other groups are dropped and counted."""
    families, dropped = serve(snapshot, **settings)
    assert groups(families) == set(expected)
    assert dropped == {"pattern": series(serve(snapshot)[0]) - series(families), "budget": 0}
    assert dropped["pattern"] > 0


def test_governed_denied_topic_is_excluded_from_group_sums(snapshot: Snapshot) -> None:
    """It does not affect the group's status either; the group itself is kept."""
    families, dropped = serve(snapshot, deny_topics="pay*")
    assert set(figures(families, "kafka_consumer_group_sum_lag").values()) == {0}
    assert figures(families, "kafka_topic_log_end_offset").keys() == {("orders", "0"), ("orders", "1")}
    assert groups(families) == set(GROUPS)
    assert dropped["pattern"] > 0


@pytest.mark.parametrize(("granularity", "gone"), [("topic", {"partition"}), ("group", {"partition", "topic"})])
def test_governed_coarser_granularity_leaves_sums_unchanged(
    snapshot: Snapshot, granularity: str, gone: set[str]
) -> None:
    """Also under the names of other exporters."""
    families, dropped = serve(snapshot, granularity=granularity)
    assert {column for family in families for column in family.labels.values()} & gone == set()
    for family in serve(snapshot)[0]:
        if not set(family.labels.values()) & gone:
            there = next(other for other in families if other.name == family.name)
            assert sorted(map(str, there.rows.to_pylist())) == sorted(map(str, family.rows.to_pylist()))
    assert dropped == {"pattern": 0, "budget": 0}


@pytest.mark.parametrize("budget", [1, 40, 200, 500])
@pytest.mark.parametrize("granularity", ["partition", "group"])
def test_governed_series_budget_keeps_groups_with_the_most_lag(
    snapshot: Snapshot, budget: int, granularity: str
) -> None:
    """All others become one group, with the remaining lag and members."""
    families, dropped = serve(snapshot, series_budget=budget, granularity=granularity)
    everything = serve(snapshot, granularity=granularity)[0]
    kept = groups(families) - {"other"}
    assert kept == set(GROUPS[len(GROUPS) - len(kept) :])
    assert series(families) <= max(budget, 32)
    own = sum(series_of(families, group) for group in kept)
    assert dropped["budget"] == series(everything) - own - topics(families) > 0
    for name in ("kafka_consumer_group_sum_lag", "kafka_consumer_group_members", "burrow_kafka_consumer_lag_total"):
        assert sum(figures(families, name).values()) == sum(figures(everything, name).values())
    assert figures(families, "kafka_consumer_group_partitions")[("other", "OK")] > 0
    assert ("other", "group_started") not in figures(families, "kafka_consumer_group_rebalances_total")


def series_of(families: list[Family], group: str) -> int:
    return sum(
        family.series_a_row * family.rows["group"].to_pylist().count(group)
        for family in families
        if "group" in family.labels.values()
    )


def topics(families: list[Family]) -> int:
    return sum(family.series for family in families if "group" not in family.labels.values())


def test_governed_group_named_other_is_merged_into_other(tmp_path: Path) -> None:
    """No series appears twice."""
    rows = [lag_row(1, group_id=name, lag=lag) for name, lag in (("other", 9_000), ("a", 10), ("b", 1))]
    snapshot = snapshot_reader(configured(tmp_path)).read(lag_table(*rows))
    config = configured(tmp_path, series_budget=40)
    families = governed(snapshot, config.exporter).families
    assert figures(families, "kafka_consumer_group_sum_lag") == {("a",): 10, ("other",): 9_001}
    page = Page([ClusterPage(snapshot, config.exporter)])
    samples = [
        sample for family in parse_text(b"".join(page.text(openmetrics=False)).decode()) for sample in family.samples
    ]
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    assert len(samples) == page.series + 2


def test_governed_kept_group_is_replaced_only_by_one_with_much_more_lag(tmp_path: Path) -> None:
    """Small changes of lag do not make series appear and disappear."""
    config = configured(tmp_path, series_budget=39).exporter
    reader, before, stayed = snapshot_reader(configured(tmp_path)), frozenset[str](), []
    for one, other in ((100, 90), (100, 110), (100, 149), (100, 151), (110, 100), (160, 100)):
        rows = [lag_row(1, group_id="one", lag=one), lag_row(2, group_id="two", lag=other)]
        before = governed(reader.read(lag_table(*rows)), config, before=before).kept
        stayed += sorted(before)
    assert stayed == ["one", "one", "one", "two", "two", "one"]


def test_governed_series_budget_of_one_serves_all_groups_as_other(snapshot: Snapshot) -> None:
    """The sum over all groups is still served."""
    families, _ = serve(snapshot, series_budget=1)
    assert groups(families) == {"other"}
    assert figures(families, "kafka_consumer_group_sum_lag") == {("other",): sum(10 * n for n in range(20))}


# --- long names ---------------------------------------------------------------------------------------------

HUGE_NAMES = [f"{'g' * 32_000}-{number}" for number in range(40)]


def page_of(config: Config, *rows: dict[str, Any]) -> bytes:
    snapshot = snapshot_reader(config).read(lag_table(*rows))
    return b"".join(Page([ClusterPage(snapshot, config.exporter)]).text(openmetrics=False))


def samples_of(page: bytes) -> list[Sample]:
    return [sample for family in parse_text(page.decode()) for sample in family.samples]


def test_page_of_groups_with_32_kb_names_is_small_and_keeps_them_apart(tmp_path: Path) -> None:
    rows = [lag_row(number, group_id=group) for group in HUGE_NAMES for number in range(10)]
    page = page_of(configured(tmp_path), *rows)
    assert len(page) < 3_000_000
    samples = samples_of(page)
    assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
    shown = {sample.labels["group"] for sample in samples if "group" in sample.labels}
    assert len(shown) == len(HUGE_NAMES)
    assert {len(group.encode()) for group in shown} == {256}
    assert {group[:200] for group in shown} == {"g" * 200}


def test_page_with_long_protocol_and_state_is_small(tmp_path: Path) -> None:
    """Members choose the name of their assignor, too."""
    config = configured(tmp_path)
    group = {**OPEN, "group_id": "billing"}
    lay(config, "group_states", {**group, "state": "S" * 32_000})
    lay(config, "generations", {**group, "generation": 1, "protocol_type": "t" * 32_000, "protocol": "p" * 32_000})
    page = page_of(config, lag_row())
    assert len(page) < 100_000
    assert {len(sample.labels["protocol"]) for sample in samples_of(page) if "protocol" in sample.labels} == {256}


@pytest.mark.parametrize("aliases", ["", "kafka_exporter,kminion,burrow,kafka-lag-exporter"])
def test_governed_page_bytes_keeps_groups_with_the_most_lag_and_counts_dropped_series(
    tmp_path: Path, aliases: str
) -> None:
    """Names of which every character is escaped are the longest."""
    config = configured(tmp_path, page_bytes=1_000_000, also_as=aliases)
    names = {number: '"' * 240 + f"{number:03d}" for number in range(200)}
    rows = [lag_row(number, group_id=names[number], lag=number) for number in names]
    page = page_of(config, *rows)
    heads = sum(len(line) + 1 for line in page.splitlines() if line.startswith(b"#"))
    assert 700_000 < len(page) - heads < 1_020_000
    samples = samples_of(page)
    kept = {sample.labels["group"] for sample in samples if sample.name == "kafka_consumer_group_lag"}
    assert 20 < len(kept) < 200
    assert kept == set(list(names.values())[-len(kept) :])
    sums = [sample.value for sample in samples if sample.name == "kafka_consumer_group_sum_lag"]
    assert sum(sums) == sum(range(200))
    dropped = {
        sample.labels["reason"]: sample.value for sample in samples if sample.name == "grouptrail_series_dropped"
    }
    assert dropped["pattern"] == 0
    assert dropped["budget"] > 0


def test_governed_patterns_match_whole_names(tmp_path: Path) -> None:
    config = configured(tmp_path, allow_groups="*-7")
    page = page_of(config, *(lag_row(group_id=group) for group in HUGE_NAMES))
    assert len({sample.labels["group"] for sample in samples_of(page) if "group" in sample.labels}) == 1


@given(st.lists(st.text(st.sampled_from("ab~0\x1b\N{SNOWMAN}"), max_size=120), unique=True), st.integers(64, 70))
def test_label_values_any_names_stay_different_and_within_the_limit(names: list[str], limit: int) -> None:
    """Also those that are already a result."""
    for _ in range(2):
        names = list(dict.fromkeys([*names, *label_values(names, limit)]))
    shortened = label_values(names, limit)
    assert len(set(shortened)) == len(names)
    assert all(len(name.encode()) <= limit for name in shortened)
    assert not any("\x1b" in name for name in shortened)
    assert shortened == label_values(names, limit)


def test_label_values_usual_names_are_unchanged() -> None:
    for name in ("billing", "g" * 256, "billing~" + "0" * 32, LONG_TOPIC):
        assert label_values([name], 256) == [name]


def test_label_values_control_characters_are_visible_and_names_stay_different() -> None:
    """`curl` shows metrics on a terminal; a name without these characters that looks like such a value differs."""
    names = ["fine\x1b[2J\x9b", r"fine\x1b[2J\x9b", "tab\t", "new\nline", "Grüße \N{SNOWMAN}"]
    changed, *unchanged = label_values(names, 256)
    assert changed.startswith(r"fine\x1b[2J\x9b~")
    assert unchanged == names[1:]
    assert label_values([changed], 256) != [changed]
