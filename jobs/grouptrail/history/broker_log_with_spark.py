"""What the brokers' log proves of any number of rows of the history tables: as `broker_log_rows`, with Spark."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from grouptrail.history.arrow_rows import lines
from grouptrail.history.broker_log_conclusions import Leaver
from grouptrail.history.broker_log_evidence import CLOCKS, JOIN_PHASE
from grouptrail.history.broker_log_rows import (
    AT,
    EVENT_COLUMNS,
    LEFT_AT,
    MOST_EVENTS,
    GroupEvents,
    Piece,
    memberships_with_log,
    rebalances_with_log,
)
from grouptrail.history.departure_commits import MEMBERSHIP
from grouptrail.history.departures_with_spark import departed_members

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Concluded = Callable[[pa.Table, Piece], pa.Table]

_PIECE_SECONDS = 3_600
_PIECE = ("group_id", "piece")
_LEAVER = "leaver"


def conclude_rebalances_with_spark(rebalances: DataFrame, events: DataFrame) -> DataFrame:
    """Return rows of `rebalances`, with the commits of members that are gone, with what the log proves."""
    return _with_log(rebalances, AT, events, rebalances_with_log, rebalances.schema)


def conclude_memberships_with_spark(memberships: DataFrame, rebalances: DataFrame, events: DataFrame) -> DataFrame:
    """Return rows of `memberships` that end as the log proves; `rebalances` have the timeouts of their members."""
    from pyspark.sql import functions as F

    leaver = F.col("departure").alias(_LEAVER)
    leavers = departed_members(rebalances).select(*MEMBERSHIP, leaver).dropDuplicates(list(MEMBERSHIP))
    ended = memberships.where(F.col(LEFT_AT).isNotNull()).join(leavers, list(MEMBERSHIP), "left")
    ended = ended.select(*memberships.columns, _LEAVER)
    concluded = _with_log(ended, LEFT_AT, events, _memberships_with_log, memberships.schema)
    return concluded.unionByName(memberships.where(F.col(LEFT_AT).isNull()))


def _memberships_with_log(rows: pa.Table, events: Piece) -> pa.Table:
    leavers = {
        (group, incarnation, generation, member): Leaver.of(departure)
        for group, incarnation, generation, member, departure in lines(rows, (*MEMBERSHIP, _LEAVER))
        if departure is not None
    }
    return memberships_with_log(rows.drop([_LEAVER]), leavers, events)


def _with_log(
    rows: DataFrame,
    time: str,
    events: DataFrame,
    concluded: Concluded,
    schema: Any,
) -> DataFrame:
    """Return what `concluded` returns for the rows and the events of each group, an hour at a time."""
    from pyspark.sql import functions as F

    def piece(seconds: Any) -> Any:
        return F.floor(seconds / _PIECE_SECONDS)

    logged = F.unix_timestamp("logged_at")
    first = piece(logged - int(CLOCKS.total_seconds()) - 1)
    last = piece(logged + int(JOIN_PHASE.total_seconds()) + 1)
    near = events.select(*EVENT_COLUMNS).withColumn("piece", F.explode(F.sequence(first, last)))
    dated = rows.withColumn("piece", piece(F.unix_timestamp(time)))
    names = [field.name for field in schema]

    def judge(found: pa.Table, logged: pa.Table) -> pa.Table:
        found = found.drop(["piece"])
        if len(found):
            times = pc.min_max(found[time]).as_py()
            events = logged.drop(["piece"]).to_pylist() if len(logged) <= MOST_EVENTS else ()
            by_group = {found["group_id"][0].as_py(): GroupEvents(events)}
            found = concluded(found, Piece(times["min"], times["max"], by_group))
        return found.select(names)

    return dated.groupBy(*_PIECE).cogroup(near.groupBy(*_PIECE)).applyInArrow(judge, schema)
