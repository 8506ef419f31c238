"""Families as text: what prometheus-client's encoders say, and what its parsers read."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from grouptrail.exporter.text import EOF, Family, written

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]

VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['a"b', "a\\b", "a\nb", "\\n", 'x"} 1\n# TYPE y gauge', "ü–日本", "", "{}", "\u2028\x85\r\t\x00", "t" * 249]
)
FIGURES = st.floats() | st.integers(-(2**53), 2**53).map(float) | st.sampled_from([math.nan, math.inf, -math.inf])


class Collected:
    """A collector of prometheus-client's own families."""

    def __init__(self, *families: Metric) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families


def series(families: Iterator[Metric]) -> Series:
    """Return every sample, with NaN replaced by a value that equals itself."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): "NaN" if math.isnan(sample.value) else sample.value
        for family in families
        for sample in family.samples
    }


def same(ours: list[Family], *theirs: Metric) -> None:
    """Assert that both parsers read grouptrail's text and prometheus-client's as the same samples."""
    registry = CollectorRegistry()
    registry.register(Collected(*theirs))
    plain = written(ours, openmetrics=False).decode()
    assert series(parse_text(plain)) == series(parse_text(generate_latest(registry).decode()))
    open_text = (written(ours, openmetrics=True) + EOF).decode()
    expected = generate_openmetrics(registry).decode()
    assert series(parse_openmetrics(open_text)) == series(parse_openmetrics(expected))
    for encoded, text in ((generate_latest(registry).decode(), plain), (expected, open_text)):
        assert comments(text) == comments(encoded)


def comments(text: str) -> list[str]:
    return [line for line in text.split("\n") if line.startswith("# ")]


@given(st.dictionaries(st.tuples(VALUES, VALUES), FIGURES, max_size=6), VALUES)
def test_written_gauge_matches_prometheus_client(rows: dict[tuple[str, str], float], cluster: str) -> None:
    """With any characters in names: quotes, newlines, backslashes, text that looks like a sample line."""
    table = pa.table(
        {
            "group": pa.array([group for group, _ in rows], pa.string()),
            "topic": pa.array([topic for _, topic in rows], pa.string()),
            "value": pa.array(list(rows.values()), pa.float64()),
        }
    )
    labels = {"group": "group", "topic_name": "topic"}
    theirs = GaugeMetricFamily("lag", 'What "it" is\\', labels=["cluster", *labels])
    for (group, topic), value in rows.items():
        theirs.add_metric([cluster, group, topic], value)
    same([Family("lag", "gauge", 'What "it" is\\', labels, table, {"cluster": cluster})], theirs)


@given(st.lists(st.integers(0, 2**62), max_size=4))
def test_written_integers_keep_every_digit(figures: list[int]) -> None:
    """Offsets are not rounded."""
    table = pa.table({"partition": pa.array(range(len(figures)), pa.int32()), "value": pa.array(figures, pa.int64())})
    text = written([Family("end", "gauge", "x", {"partition": "partition"}, table)], openmetrics=False).decode()
    assert [line.split(" ")[-1] for line in text.splitlines()[2:]] == [str(figure) for figure in figures]


def test_written_counter_matches_prometheus_client_in_both_formats() -> None:
    """In OpenMetrics, the family's name lacks the suffix `_total` of its samples."""
    table = pa.table({"group": ["a"], "value": [3]})
    theirs = CounterMetricFamily("commits", "x", labels=["group"])
    theirs.add_metric(["a"], 3)
    same([Family("commits_total", "counter", "x", {"group": "group"}, table)], theirs)


def test_written_histogram_buckets_are_cumulative() -> None:
    """Rows have the count of each bucket; the text has cumulative counts."""
    table = pa.table({"group": ["a", 'b"'], "le_0": [1, 0], "le_1": [2, 0], "le_2": [4, 1], "seconds": [99.5, 1e9]})
    theirs = HistogramMetricFamily("apart", "x", labels=["group"])
    theirs.add_metric(["a"], [("10.0", 1), ("60.0", 3), ("+Inf", 7)], 99.5)
    theirs.add_metric(['b"'], [("10.0", 0), ("60.0", 0), ("+Inf", 1)], 1e9)
    family = Family("apart", "histogram", "x", {"group": "group"}, table, buckets=(10, 60))
    same([family], theirs)
    assert family.series == written([family], openmetrics=False).count(b"\n") - 2


def test_written_row_with_null_is_omitted() -> None:
    """An unknown value is not 0."""
    table = pa.table({"group": ["a", "b", None], "value": [None, 2, 3]})
    text = written([Family("lag", "gauge", "x", {"group": "group"}, table)], openmetrics=False)
    assert text == b'# HELP lag x\n# TYPE lag gauge\nlag{group="b"} 2\n'


@pytest.mark.parametrize("labels", [{}, {"group": "group"}])
def test_written_family_without_rows_has_only_help_and_type(labels: dict[str, str]) -> None:
    """Also if the columns have no type."""
    table = pa.table({"group": pa.array([]), "value": pa.array([])})
    assert (
        written([Family("lag", "gauge", "x", labels, table)], openmetrics=False)
        == b"# HELP lag x\n# TYPE lag gauge\n"
    )


def test_written_chunked_table_slice_contains_every_row() -> None:
    """The table may have any chunks and be a slice of another."""
    table = pa.concat_tables([pa.table({"group": [f"g{n}"], "value": [n]}) for n in range(5)]).slice(1, 3)
    text = written([Family("lag", "gauge", "x", {"group": "group"}, table)], openmetrics=False).decode()
    assert text.splitlines()[2:] == [f'lag{{group="g{n}"}} {n}' for n in (1, 2, 3)]
