"""The history job on Spark: micro-batches, some of which die and are repeated, and a rebuild."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from grouptrail import contracts
from grouptrail.config import Config
from grouptrail.decode.writer import DecodeBatchWriter
from grouptrail.exporter.families import group_families, pipeline_families
from grouptrail.history import job as history_job
from grouptrail.history.broker_log_update import apply_events
from grouptrail.history.fold_input import read_records, scan_records
from grouptrail.history.folded_rows import DriverRows
from grouptrail.history.folding import Folding
from grouptrail.history.job import HistoryBatchWriter, HistoryError, refuse_half_rebuilt
from grouptrail.history.operations import CLASSIC, COMMIT_TOMBSTONE
from grouptrail.history.rebuild import READ_OR_WRITTEN, read_on_driver, rebuild
from grouptrail.history.rows import TABLES
from grouptrail.history.tasks import CHECKS, POSITIONS
from grouptrail.jobs import HISTORY
from grouptrail.kafka.log import LogBounds
from grouptrail.quality.snapshot import take
from grouptrail.runtime.warehouses import context_of, warehouse_of
from grouptrail.spark.jars import silent
from grouptrail.storage.buckets import OPEN_BUCKETS, bucket_of
from grouptrail.storage.engines import choice
from grouptrail.storage.engines.choice import EngineName
from grouptrail.storage.progress import PROGRESS, RANGE_COLUMNS, OffsetRanges
from grouptrail.storage.schema import ADMIN
from grouptrail.storage.warehouse import Warehouse
from support import landed
from support.exporter_tables import figures
from support.from_config import snapshot_reader
from support.frozen_warehouse import ORDERS, thaw
from support.history_batches import BATCHES, NOON, Raw, commit, gone, metadata
from support.records_in_memory import RecordsInMemory
from support.small_tables import lay
from support.wire_vectors import RECORDS as RECORD_VECTORS

WRITES = (*TABLES, POSITIONS)
# Of a streams group, which has tasks and a topology, after the others.
STREAMS = [(one.key, one.value) for one in RECORD_VECTORS if one.key and one.name.startswith("streams-group-")]


class Log:
    """A log of records in a warehouse's decoded tables; a `hole` is an offset without a record at a batch's end."""

    def __init__(self, warehouse: Warehouse, batches: Sequence[Sequence[Raw]] = BATCHES, *, hole: int = 0) -> None:
        warehouse.ensure((*READ_OR_WRITTEN, "undecodable_records"))
        self._warehouse = warehouse
        self._batches = batches
        self._hole = hole
        self.end = 0

    def land(self, batch: int) -> pa.Table:
        """Decode a batch and return its rows of `ingest_progress`."""
        start, self.end = self.end, self.end + len(self._batches[batch]) + self._hole
        rows = [
            (0, start + index, NOON + timedelta(seconds=10 * (start + index)), *record)
            for index, record in enumerate(self._batches[batch])
        ]
        DecodeBatchWriter(
            self._warehouse,
            records=RecordsInMemory(rows),
            app=lambda: "decode",
            end_offsets=lambda number: {0: start if number < batch else self.end},
            bounds=lambda: {0: LogBounds(0, self.end, self.end)},
            max_record_bytes=lambda _: 1 << 20,
            log=silent,
        ).write(batch)
        progress = self._warehouse.table(PROGRESS).dataframe().where(F.col("batch_id") == batch)
        return progress.select(*RANGE_COLUMNS).toArrow()


def history(config: Config) -> dict[str, list[dict[str, Any]]]:
    """Return each table's rows sorted by key, with `open_bucket`."""
    return {
        table: sorted(
            landed.rows(config, table), key=lambda row: [row[column] for column in contracts.tables()[table].key]
        )
        for table in WRITES
    }


def batch_writer(config: Config, warehouse: Warehouse) -> HistoryBatchWriter:
    return HistoryBatchWriter(context_of(HISTORY, config, warehouse, silent), app=lambda: "history")


def rebuild_on_driver(config: Config) -> None:
    def start_spark() -> Warehouse:
        pytest.fail("Spark was started")

    rebuild(context_of(HISTORY, config, warehouse_of(config), silent), start_spark)


def rebuild_with(config: Config, warehouse: Warehouse) -> None:
    rebuild(context_of(HISTORY, config, warehouse, silent), lambda: warehouse)


DRIVER, SPARK = 100, choice.MOST_ROWS  # rows that a record is taken to become: who folds


@pytest.mark.parametrize(
    ("engine", "rows_a_record"),
    [
        pytest.param(None, (DRIVER, DRIVER, SPARK, DRIVER), id="by turns"),
        pytest.param("spark", (DRIVER,) * 4, id="Spark", marks=pytest.mark.full),
        pytest.param(None, (SPARK,) * 4, id="folded by Spark, written by delta-rs", marks=pytest.mark.full),
        pytest.param("delta-rs", (DRIVER,) * 4, id="without Spark", marks=pytest.mark.full),
    ],
)
def test_history_job_batches_failed_and_retried_match_a_rebuild(
    warehouse: Warehouse,
    config: Config,
    monkeypatch: pytest.MonkeyPatch,
    engine: EngineName | None,
    rows_a_record: Sequence[int],
) -> None:
    """Whichever write fails, the retry writes what is missing and nothing twice, with Spark and with delta-rs."""
    log = Log(warehouse, [*BATCHES[:-1], [*BATCHES[-1], *STREAMS]])
    writer = batch_writer(config, replace(warehouse, only=engine))
    for batch, table in enumerate((None, "generations", "rebalances", POSITIONS)):
        monkeypatch.setattr(history_job, "ROWS_A_RECORD", rows_a_record[batch])
        progress = log.land(batch)
        if table:
            with landed.dying_before(table):
                writer.process(progress, batch)
        writer.process(progress, batch)
    streamed = history(config)
    written = take(warehouse, patience_seconds=0).versions
    assert all(written[table].written_at_ms for table in WRITES)
    rebuild_on_driver(config)
    assert history(config) == streamed
    rebuild_with(config, replace(warehouse, only="spark"))
    assert history(config) == streamed

    billing = [row for row in streamed["rebalances"] if row["group_id"] == "billing"]
    assert [(row["to_generation"], row["cause"]) for row in billing] == [
        (1, "group_started"),
        (2, "member_joined"),
        (3, "member_left_or_expired"),
        (4, "member_joined"),
    ]
    assert {row["incarnation"] for row in streamed["generations"] if row["group_id"] == "audit"} == {1, 2}
    (handed,) = [one for one in billing[1]["handed_over"] if one["partition"] == 1]
    assert (handed["committed_offset"], handed["commit_age_ms"], handed["may_be_read_twice"]) == (150, 10_000, 25)
    assert [one["committed_offset"] for one in billing[1]["handed_over"] if one["partition"] == 3] == [None]


def logged(seconds: float, event: str, **more: Any) -> dict[str, Any]:
    """Return an event of `billing`, so many seconds after noon, as a broker's log in JSON gives it."""
    at = NOON + timedelta(seconds=seconds)
    line = f"{at} {event}"
    whole = {"event_id": line, "logged_at": at, "broker_id": 1, "record_partition": 0, "group_id": "billing"}
    return {**whole, "event": event, "is_forgeable": False, "line": line, **more}


# Why member a is gone in generation 3, whose record is of 12:01:00.
LOGGED = [
    logged(57, "member_expired", member_id="a"),
    logged(57.1, "rebalance_started", generation_before=2, trigger="member_expired", reason="expiration"),
    logged(60, "assignment_received", generation=3),
]


@pytest.mark.parametrize("engine", ["delta-rs", pytest.param("spark", marks=pytest.mark.full)])
@pytest.mark.parametrize(
    "when",
    [
        "after",
        *(
            pytest.param(one, marks=pytest.mark.full)
            for one in ("before", "meanwhile", "before a retry", "within its minute")
        ),
    ],
)
def test_history_job_with_the_brokers_log_whenever_it_came_matches_a_rebuild(
    warehouse: Warehouse, config: Config, monkeypatch: pytest.MonkeyPatch, when: str, engine: EngineName
) -> None:
    """The rebalance to generation 3 is written in batch 2, and again in batch 3, which follows within a minute."""
    log = Log(warehouse)
    events = warehouse.table("broker_log_events")
    events.ensure()
    writer = batch_writer(config, replace(warehouse, only=engine))
    write = writer._write

    def ingest() -> None:
        events.append_rows(LOGGED)
        apply_events(warehouse_of(config), LOGGED[0]["logged_at"], LOGGED[-1]["logged_at"])

    def write_late(*given: Any) -> None:
        if given[1] == 2:
            ingest()
        write(*given)

    if when == "meanwhile":
        monkeypatch.setattr(writer, "_write", write_late)
    for batch in range(len(BATCHES)):
        if (when, batch) in (("before", 0), ("within its minute", 3)):
            ingest()
        progress = log.land(batch)
        if (when, batch) == ("before a retry", 2):
            with landed.dying_before(POSITIONS):
                writer.process(progress, batch)
            events.append_rows(LOGGED)
        writer.process(progress, batch)
    if when == "after":
        ingest()
    streamed = history(config)
    (row,) = (row for row in streamed["rebalances"] if (row["group_id"], row["to_generation"]) == ("billing", 3))
    assert (row["cause"], row["certainty"], row["rule"]) == ("member_expired", "recorded", "LOGGED_EXPIRY")
    assert (row["followed_within_minute"], row["rule_without_log"]) == (1, "GONE")
    assert [one["source"] for one in row["evidence"]] == ["record", "broker log", "broker log"]
    (ended,) = (row for row in streamed["memberships"] if (row["group_id"], row["member_id"]) == ("billing", "a"))
    assert (ended["ended"], ended["ended_without_log"], ended["rule"]) == (
        "expired",
        "left_or_expired",
        "LOGGED_EXPIRY",
    )
    assert [one["source"] for one in ended["evidence"]] == ["record", "broker log"]
    rebuild_on_driver(config)
    assert history(config) == streamed
    if when == "before":  # with Spark it takes half a minute
        rebuild_with(config, replace(warehouse, only="spark"))
        assert history(config) == streamed


def test_history_job_batches_of_commits_only_are_not_folded(
    warehouse: Warehouse, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit's tombstone is folded: it shows that a removed group had offsets."""
    tombstone = (commit("billing", 1, 0)[0], None)
    batches: list[list[Raw]] = [
        [metadata("billing", 1, {"a": [0]})],
        [commit("billing", 0, 1)],
        [tombstone],
        [gone("billing")],
    ]
    log = Log(warehouse, batches)
    writer = batch_writer(config, warehouse)
    folded = []
    fold = Folding.on_driver

    def noted(*given: Any) -> DriverRows:
        folded.append(batch)
        return fold(*given)

    monkeypatch.setattr(Folding, "on_driver", noted)
    for batch in range(len(batches)):
        writer.process(log.land(batch), batch)
    assert folded == [0, 2, 3]


def test_rebuild_warehouse_of_version_0_1_is_same_with_and_without_spark(
    warehouse: Warehouse, config: Config
) -> None:
    """Spark adds the columns that its tables lack, and looks for the name of a topic id; then it is not needed."""
    thaw(config)
    starts = []

    def start_spark() -> Warehouse:
        starts.append(1)
        return warehouse

    rebuild(context_of(HISTORY, config, warehouse_of(config), silent), start_spark)
    with_spark = history(config)
    assert starts
    name = {"topic_id": ORDERS, "topic": "orders", "learned_from": "broker", "learned_at": NOON}
    append(warehouse, "topic_names", name)
    rebuild_on_driver(config)
    owned = [row for row in history(config)["partition_ownership"] if row["group_id"] == "search"]
    assert {row["topic"] for row in owned} == {"orders"}
    named = {table: [row for row in rows if row["group_id"] != "search"] for table, rows in history(config).items()}
    assert named == {
        table: [row for row in rows if row["group_id"] != "search"] for table, rows in with_spark.items()
    }


def append(warehouse: Warehouse, name: str, *rows: dict[str, Any]) -> None:
    warehouse.table(name).append_rows(rows)


def test_rebuild_without_spark_replaces_only_rows_of_its_cluster(warehouse: Warehouse, config: Config) -> None:
    log = Log(warehouse)
    log.land(0)
    other = config.model_copy(update={"cluster": "o'clock"})
    for table in WRITES:
        lay(other, table, {"cluster": other.cluster, "group_id": "theirs"})
        lay(config, table, {"cluster": config.cluster, "group_id": "outdated"})
    theirs = history(other)
    rebuild_on_driver(config)
    assert history(other) == theirs
    assert {row["group_id"] for rows in history(config).values() for row in rows} == {"billing"}


@pytest.mark.parametrize(
    ("limit", "batches"),
    [
        pytest.param("MOST_ROWS", [BATCHES[0]], id="records"),
        pytest.param("MOST_ROWS", [[commit("billing", 0, 1)]], id="commits"),
        pytest.param("MOST_BYTES", [BATCHES[0]], id="bytes"),
    ],
)
def test_rebuild_fed_more_than_the_driver_has_room_for_needs_spark(
    warehouse: Warehouse, config: Config, monkeypatch: pytest.MonkeyPatch, limit: str, batches: list[list[Raw]]
) -> None:
    Log(warehouse, batches).land(0)
    context = context_of(HISTORY, config, warehouse_of(config), silent)
    assert read_on_driver(context) is not None
    monkeypatch.setattr(choice, limit, 0)
    assert read_on_driver(context) is None


def test_records_of_all_kinds_are_read_alike_by_the_driver_and_spark(warehouse: Warehouse) -> None:
    """Records written by Kafka's own classes, and rows with nulls, empty lists and names that need escapes."""
    log = Log(warehouse, [[(vector.key, vector.value) for vector in RECORD_VECTORS]])
    covered = OffsetRanges.of(log.land(0))
    hostile = 'a"b\\c\n\u2028\u00e9\U0001f600$.x'
    member: dict[str, Any] = {
        "member_id": hostile,
        "client_id": "",
        "subscription": None,
        "assignment": {"partitions": []},
    }
    partitions = [{"topic": hostile, "partitions": []}, {"topic": None, "partitions": None}]
    connect = {"subscription": {"connect": '{"a": "\\u00e9"}', "owned_partitions": partitions}, "assignment": None}
    polled = {"source": ADMIN, "not_before": NOON, "record_at": NOON, "record_partition": 0, "record_offset": 0}
    groups = [
        {**polled, "is_tombstone": False, "members": [member, connect], "state_at": NOON},
        {**polled, "is_tombstone": False, "members": [], "state_at": None, "source": None, "not_before": None},
        {**polled, "is_tombstone": False, "members": None, "protocol": hostile},
        *({**polled, "source": None, "is_tombstone": True, "read_at": NOON + delay} for delay in READ_AFTER),
    ]
    append(warehouse, "group_metadata", *groups)
    pattern = '{"groupId": "g", "regularExpression": "^\\"\\\\d+\\u00e9$"}'
    kind = {**polled, "record_type": "ConsumerGroupRegularExpression", "value_json": None}
    append(warehouse, "group_records", {**kind, "key_json": pattern}, {**kind, "key_json": "{}"})
    answer = {"record_partition": 0, "record_offset": 1, "is_gone": True, "checked_at": NOON + timedelta(days=3)}
    gone_ones = [
        answer | {"topic": "", "partition": -1, "group_id": kind, "group_kind": kind}
        for kind in ("classic", "consumer")
    ]
    others = [answer | {"topic": "orders", "partition": 0}, answer | {"is_gone": False, "topic": ""}]
    append(warehouse, CHECKS, *gone_ones, *others, answer | {"record_offset": 10**9, "topic": ""})
    on_driver = read_records(warehouse, covered)
    assert on_driver is not None
    rows = in_order(on_driver.to_pylist())
    checked_at = answer["checked_at"].timestamp() * 1000
    assert {
        (row["group_id"], row["type"]) for row in rows if row["read_late_at"] == checked_at and row["is_polled"]
    } == {
        ("classic", CLASSIC),
        ("consumer", "ConsumerGroupMetadata"),
    }
    assert rows == in_order(scan_records(warehouse, covered).toArrow().to_pylist())
    assert {row["type"] for row in rows} >= {CLASSIC, COMMIT_TOMBSTONE, kind["record_type"]}
    names = {row["name"] for row in rows if row["type"] == kind["record_type"]}
    assert {'^"\\d+\u00e9$', None} <= names
    members = [one for row in rows for one in (row["body"] or {}).get("members") or ()]
    ours = {"member_id": hostile, "client_id": "", "subscription": {}, "assignment": {"partitions": []}}
    assert ours in members
    late = (NOON + READ_AFTER[1]).timestamp() * 1000
    assert [row["read_late_at"] for row in rows if row["at"] == NOON.timestamp() * 1000].count(late) == 1


READ_AFTER = (timedelta(seconds=60), timedelta(seconds=60, milliseconds=1))


def in_order(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the rows of records sorted, with their bodies as values."""
    read = [{**row, "body": row["body"] and json.loads(row["body"])} for row in rows]
    return sorted(read, key=lambda row: json.dumps(row, sort_keys=True))


def test_bucket_of_hostile_names_is_sparks_hash(spark: SparkSession) -> None:
    """Names of all lengths modulo 4, with bytes above 127 in whole words and in the rest."""
    odd = ["", "\0", "\x7f", "\x80", "\u00ff", "\u65e5\u672c", "\U0001f600", "\U0010ffff", "o'clock", '"', "\n"]
    names = [prefix * times + name for name in odd for prefix in ("a", "\u00e9", "\U0001f600") for times in range(6)]
    names += [f"group-{number}" for number in range(500)] + ["x" * 249]
    hashed = spark.createDataFrame([(name,) for name in names], "group_id string").select(
        "group_id", F.pmod(F.hash("group_id"), F.lit(OPEN_BUCKETS)).alias("bucket")
    )
    wanted = {row.group_id: row.bucket for row in hashed.collect()}
    assert {name: bucket_of(name) for name in names} == wanted
    assert set(wanted.values()) == set(range(OPEN_BUCKETS))


@pytest.mark.parametrize("engine", [pytest.param("spark", marks=pytest.mark.full), None])
def test_history_job_after_interrupted_rebuild_is_refused_until_rebuilt(
    warehouse: Warehouse, config: Config, engine: EngineName | None
) -> None:
    """The job refuses tables that are only partly rebuilt, and accepts them after a complete rebuild."""
    warehouse = replace(warehouse, only=engine)
    log = Log(warehouse)
    log.land(0)
    with landed.dying_before("memberships"):
        rebuild_with(config, warehouse)
    with pytest.raises(HistoryError, match="run grouptrail rebuild history"):
        refuse_half_rebuilt(warehouse)
    rebuild_with(config, warehouse)
    refuse_half_rebuilt(warehouse)
    assert [row["member_id"] for row in history(config)["memberships"]] == ["a"]


@pytest.mark.full
def test_exporter_counters_match_history_tables_also_after_optimize_and_rebuild(
    warehouse: Warehouse, config: Config
) -> None:
    """Compare after each batch, after OPTIMIZE, and after a rebuild, which must not increase any counter."""
    log, reader = Log(warehouse), snapshot_reader(config)
    writer = batch_writer(config, warehouse)
    for batch in range(len(BATCHES)):
        writer.process(log.land(batch), batch)
        families = [*group_families(reader.read()), *pipeline_families(reader.read(), dropped={})]
        rows = history(config)
        causes = Counter((row["group_id"], row["cause"]) for row in rows["rebalances"])
        assert figures(families, "kafka_consumer_group_rebalances_total") == causes
        states = figures(families, "kafka_consumer_group_state")
        assert {group for group, value in states.items() if value} == {
            (row["group_id"], row["state"]) for row in rows["group_states"] if row["is_open"]
        }
        assert figures(families, "grouptrail_records_total")[("offset_commit", "decoded")] == len(
            landed.rows(config, "offset_commits")
        )
        assert figures(families, "grouptrail_source_backlog_records") == {("0",): 0}
    assert figures(families, "kafka_consumer_group_generation") == {("billing",): 4, ("audit",): 1}
    assert figures(families, "kafka_consumer_group_offset_commits_total") == {("billing",): 2}
    warehouse.session.sql(f"OPTIMIZE delta.`{warehouse.table('offset_commits').path}`").collect()
    rebuild_with(config, warehouse)
    after = group_families(reader.read())
    for name in ("rebalances_total", "partitions_moved_total", "offset_commits_total", "members", "state"):
        metric = f"kafka_consumer_group_{name}"
        assert figures(after, metric) == figures(families, metric)
    assert reader.read().not_ready is None


def test_groups_whose_members_cannot_be_decoded_are_not_empty(warehouse: Warehouse, config: Config) -> None:
    """Early-access KIP-848 of 3.7: the epochs can be decoded, the members cannot. A batch may hold nothing else."""
    members = [(b"\0\5\0\7billing\0\1a", b"\0\0\0"), (b"\0\10\0\7billing\0\1a", b"\0\0\0")]
    epochs = [(b"\0\3\0\7billing", b"\0\0\0\0\0\1\0"), (b"\0\6\0\7billing", b"\0\0\0\0\0\1\0")]
    log = Log(warehouse, [members[:1], [*epochs, *members[1:]], [(b"\0\3\0\7billing", b"\0\0\0\0\0\2\0")]])
    writer = batch_writer(config, warehouse)
    for batch in range(3):
        writer.process(log.land(batch), batch)
    found = history(config)
    assert found["group_states"] == []
    assert [row["member_count"] for row in found["generations"]] == [None, None]
    assert {row["cause"] for row in found["rebalances"]} == {"unknown"}
    rebuild_on_driver(config)
    assert history(config) == found
    rebuild_with(config, warehouse)
    assert history(config) == found


@pytest.mark.parametrize("hole", [0, 1], ids=["no record is missing", "compaction may have taken one"])
def test_states_of_a_scheduled_run_are_recorded_if_no_offset_is_missing(
    warehouse: Warehouse, config: Config, hole: int
) -> None:
    """Its records are read long after they were written."""
    keys = [b"\0\5\0\7billing\0\1a", b"\0\3\0\7billing", b"\0\6\0\7billing", b"\0\10\0\7billing\0\1a"]
    described = next(
        one.value for one in RECORD_VECTORS if one.key is not None and one.key[:2] == b"\0\5" and one.value
    )
    current = next(
        one.value for one in RECORD_VECTORS if one.key is not None and one.key[:2] == b"\0\10" and one.value
    )
    values = [described, b"\0\0\0\0\0\2\0", b"\0\0\0\0\0\2\0", current]
    log = Log(warehouse, [list(zip(keys, values, strict=True))], hole=hole)
    batch_writer(config, warehouse).process(log.land(0), 0)
    assert {row["evidence"] for row in history(config)["group_states"]} == {"inferred" if hole else "recorded"}
