"""Families of whatever rows of lag there may be, held against what plain Python makes of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from grouptrail.exporter.families import STATUSES, group_families
from grouptrail.exporter.page import ClusterPage, Page
from grouptrail.snapshot.reader import Snapshot, SnapshotReader
from support.exporter_tables import configured, figures, lag_row, lag_table
from support.from_config import SAMPLE_SECONDS, snapshot_reader

NAMES = st.sampled_from(["a", "b", 'c"', "d\n", "other"])
PLACES = st.tuples(NAMES, st.sampled_from(["orders", "payments"]), st.integers(0, 2))
KNOWN = st.none() | st.integers(0, 2**53)
ROWS = st.dictionaries(
    PLACES,
    st.fixed_dictionaries(
        {
            "lag": KNOWN,
            "lost_records": KNOWN,
            "lag_seconds": st.none() | st.floats(0, 1e9),
            "committed_offset": KNOWN,
            "catch_up_seconds": st.none() | st.floats(0, 1e9),
            "status": st.sampled_from(STATUSES),
        }
    ),
    max_size=12,
)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> SnapshotReader:
    """A reader of a warehouse without tables."""
    return snapshot_reader(configured(tmp_path_factory.mktemp("lake")))


def snapshot_of(reader: SnapshotReader, rows: dict[tuple[str, str, int], dict[str, Any]]) -> Snapshot:
    named = [{"group_id": group, "topic": topic, "partition": number} for group, topic, number in rows]
    return reader.read(lag_table(*(lag_row(**name, **row) for name, row in zip(named, rows.values(), strict=True))))


@given(rows=ROWS)
def test_group_families_sums_and_maxima_ignore_null_lag(
    reader: SnapshotReader, rows: dict[tuple[str, str, int], dict[str, Any]]
) -> None:
    """Sums and maxima ignore nulls; if all values are null, there is no series."""
    families = group_families(snapshot_of(reader, rows))
    known = {place: row["lag"] for place, row in rows.items() if row["lag"] is not None}
    groups = {group for group, _, _ in known}
    assert figures(families, "kafka_consumer_group_lag") == {
        (group, topic, str(number)): lag for (group, topic, number), lag in known.items()
    }
    assert figures(families, "kafka_consumer_group_sum_lag") == {
        (group,): sum(lag for place, lag in known.items() if place[0] == group) for group in groups
    }
    assert figures(families, "kafka_consumer_group_max_lag") == {
        (group,): max(lag for place, lag in known.items() if place[0] == group) for group in groups
    }
    assert figures(families, "kafka_consumer_group_topic_lag") == {
        place[:2]: sum(lag for other, lag in known.items() if other[:2] == place[:2]) for place in known
    }
    verdicts = Counter((group, row["status"]) for (group, _, _), row in rows.items())
    assert figures(families, "kafka_consumer_group_partitions") == verdicts
    worst = {
        group: max((status for other, status in verdicts if other == group), key=STATUSES.index)
        for group, _ in verdicts
    }
    assert figures(families, "kafka_consumer_group_group_status") == dict.fromkeys(worst.items(), 1)


@given(rows=ROWS, budget=st.integers(1, 150), granularity=st.sampled_from(["partition", "topic", "group"]))
def test_page_parses_without_duplicate_series_and_keeps_to_its_budget(
    reader: SnapshotReader, rows: dict[tuple[str, str, int], dict[str, Any]], budget: int, granularity: str
) -> None:
    """No series appears twice; all known lag is in the sum over all groups."""
    everyone = "kafka_exporter,kminion,burrow,kafka-lag-exporter"
    config = configured("lake", series_budget=budget, granularity=granularity, also_as=everyone).exporter
    page = Page([ClusterPage(snapshot_of(reader, rows), config)])
    plain, open_ = (b"".join(page.text(openmetrics=kind)).decode() for kind in (False, True))
    for families in (parse_text(plain), parse_openmetrics(open_)):
        samples = [sample for family in families for sample in family.samples]
        assert len({(sample.name, *sorted(sample.labels.items())) for sample in samples}) == len(samples)
        lag = sum(sample.value for sample in samples if sample.name == "kafka_consumer_group_sum_lag")
        assert lag == pytest.approx(sum(row["lag"] or 0 for row in rows.values()))
        of_groups = [sample for sample in samples if not sample.name.startswith(("grouptrail_", "kminion_exporter"))]
        assert len(of_groups) <= max(budget, 32) + 1


def test_group_families_unrecognised_status_is_counted_and_ranks_lowest(reader: SnapshotReader) -> None:
    """A newer pipeline may write one; every known status takes precedence as the group's worst."""
    families = group_families(reader.read(lag_table(lag_row(status="DRAINING"), lag_row(1, status="STOP"))))
    assert figures(families, "kafka_consumer_group_partitions") == {
        ("billing", "DRAINING"): 1,
        ("billing", "STOP"): 1,
    }
    assert figures(families, "kafka_consumer_group_group_status") == {("billing", "STOP"): 1}


@given(rows=ROWS, left=st.lists(st.none() | st.floats(0, 1e9), min_size=12, max_size=12))
def test_group_families_time_to_loss_is_the_lowest_known(
    reader: SnapshotReader, rows: dict[tuple[str, str, int], dict[str, Any]], left: list[float | None]
) -> None:
    """Of a topic's partitions, and of a group's; where none is foreseen, there is no series."""
    given_ = {
        place: row | {"time_to_loss_seconds": seconds}
        for (place, row), seconds in zip(rows.items(), left, strict=False)
    }
    families = group_families(snapshot_of(reader, given_))
    known = {place: one for place, row in given_.items() if (one := row["time_to_loss_seconds"]) is not None}
    shown = figures(families, "kafka_consumer_group_time_to_loss_seconds")
    assert shown.keys() == {(group, topic, str(number)) for group, topic, number in known}
    for name, places in (("topic_time_to_loss_seconds", 2), ("min_time_to_loss_seconds", 1)):
        lowest = figures(families, f"kafka_consumer_group_{name}")
        assert lowest.keys() == {place[:places] for place in known}
        for key, seconds in lowest.items():
            least = min(one for place, one in known.items() if place[:places] == key)
            # It is served as of now.
            assert max(least - 2 * SAMPLE_SECONDS, 0) <= seconds <= least
