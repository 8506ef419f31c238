"""Other exporters' names: what they are mapped to, and that no two of them are one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from grouptrail import contracts
from grouptrail.config import ExporterConfig
from grouptrail.exporter.alias import ALIASES, NOT_SERVED, Alias, alias_families
from grouptrail.exporter.alias_sources import SOURCES, cluster_sources, group_sources
from grouptrail.exporter.families import group_families, pipeline_families
from grouptrail.exporter.text import Family
from support.exporter_tables import STRANGE, configured, figures, lag_row, lag_table, lay_everything, log_offsets_row
from support.from_config import snapshot_reader
from support.small_tables import lay

EVERY = [alias for aliases in ALIASES.values() for alias in aliases]

each_alias = pytest.mark.parametrize("alias", EVERY, ids=lambda alias: alias.name)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[Family]:
    config = configured(tmp_path_factory.mktemp("lake"), also_as=",".join(ALIASES))
    lay_everything(config)
    lay(config, "log_offsets", *(log_offsets_row("orders", number) for number in range(3)))
    snapshot = snapshot_reader(config).read()
    own = [*group_families(snapshot), *pipeline_families(snapshot, dropped={})]
    own += [*group_sources(snapshot), *cluster_sources(snapshot)]
    return list(alias_families(own, EVERY))


@each_alias
def test_alias_type_and_labels_match_its_source_metric(alias: Alias) -> None:
    """The source metric has the alias's type and labels."""
    if alias.source in SOURCES:
        assert set(alias.labels.values()) <= set(SOURCES[alias.source])
        assert (alias.type, alias.codes) == ("gauge", None)
        return
    source = contracts.metrics()[alias.source]
    assert set(alias.labels.values()) <= set(source.labels)
    assert alias.type == source.type
    assert (alias.codes is not None) is (source.name.endswith("status"))


@each_alias
def test_alias_family_has_its_labels_and_at_least_one_row(alias: Alias, served: list[Family]) -> None:
    family = next(family for family in served if family.name == alias.name)
    assert {*family.labels, *family.fixed} == set(alias.labels)
    assert len(family.rows)


def test_alias_names_are_unique_across_exporters_and_own_metrics() -> None:
    """No name belongs to two exporters, to grouptrail's own metrics, or to the metrics that are not served."""
    names = [alias.name for alias in EVERY]
    names += [*contracts.metrics(), *(name for left_out in NOT_SERVED.values() for name in left_out)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_also_as_setting_accepts_exactly_the_exporters_with_aliases() -> None:
    taken = get_args(get_args(ExporterConfig.model_fields["also_as"].annotation)[0])
    assert set(taken) == set(ALIASES) == set(NOT_SERVED)


def test_alias_values_match_the_source_metrics(served: list[Family]) -> None:
    """Offsets and lag are equal, sums are over a topic's partitions, durations are converted."""
    assert figures(served, "kafka_consumergroup_lag")[("billing", "orders", "2")] == 10
    assert figures(served, "kafka_consumergroup_current_offset_sum")[("billing", "orders")] == 285
    assert figures(served, "kminion_kafka_topic_low_water_mark_sum")[("orders",)] == 30
    assert figures(served, "kminion_kafka_consumer_group_info") == {
        ("billing", "range", "consumer", "Stable", "1"): 1
    }
    assert figures(served, "kminion_exporter_offset_consumer_records_consumed_total") == {(): 10}
    poll = next(family for family in served if family.name == "kafka_consumergroup_poll_time_ms")
    assert poll.fixed == {"cluster_name": "default"}
    assert 0 < poll.rows["value"][0].as_py() < 600_000


def test_burrow_alias_maps_statuses_to_burrow_codes(tmp_path: Path) -> None:
    """A group's code is never above ERR; an unknown status has no series."""
    verdicts = {
        "OK": 1,
        "EMPTY": 1,
        "UNCOMMITTED": 1,
        "UNSUBSCRIBED": 1,
        "WARN": 2,
        "STOP": 4,
        "STALL": 5,
        "REWIND": 6,
        "UNKNOWN": None,
    }
    rows = [lag_row(group_id=verdict, status=verdict) for verdict in verdicts]
    snapshot = snapshot_reader(configured(tmp_path)).read(lag_table(*rows))
    aliases = list(alias_families(group_families(snapshot), ALIASES["burrow"]))
    partitions = figures(aliases, "burrow_kafka_topic_partition_status")
    assert {group: code for (group, _, _), code in partitions.items()} == {
        verdict: code for verdict, code in verdicts.items() if code
    }
    assert figures(aliases, "burrow_kafka_consumer_status") == {
        (verdict,): min(code, 3) for verdict, code in verdicts.items() if code
    }


def test_alias_hostile_group_name_stays_a_label_value(served: list[Family]) -> None:
    assert (STRANGE, "t" * 249, "0") in figures(served, "kafka_consumergroup_current_offset")
