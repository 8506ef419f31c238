"""Fold records of groups into changed rows of the history tables: on the driver if they are few, else with Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from grouptrail.history.broker_log_rows import EVENTS, LoggedEvents
from grouptrail.history.fold_input import RECORDS_AT_A_TIME
from grouptrail.history.folded_rows import DriverRows, FoldedRows, SparkRows
from grouptrail.history.records import ORDER
from grouptrail.history.tasks import fold_groups, output_ddl
from grouptrail.storage.warehouse import Warehouse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from grouptrail.config.job_settings import HistorySettings
    from grouptrail.jobs import JobContext

ROWS_A_RECORD = 100
"""How many rows can be written in the time in which a record of a group is folded (`storage.engines.choice`).

So the driver folds up to 2,000 records in a second where Spark runs, and 50,000 rather than start it.
"""


@dataclass(frozen=True)
class Folding:
    """The fold for a warehouse.

    `retention_ms` is how long the brokers keep the offsets of an empty group, `lookback` how far before a change of
    owner a partition's last commit is searched.
    """

    warehouse: Warehouse
    retention_ms: int
    lookback: timedelta

    @classmethod
    def of(cls, context: JobContext[HistorySettings]) -> Self:
        """Return the fold of a job."""
        history = context.settings.history
        return cls(
            context.warehouse,
            round(history.offsets_retention_minutes * 60_000),
            timedelta(minutes=history.commit_lookback_minutes),
        )

    def on_driver(self, records: pa.Table, complete_to: dict[int, int], names: Mapping[str, str]) -> DriverRows:
        """Fold records and saved states (`tasks.INPUT_DDL`) in any order."""
        rows = DriverRows(self.warehouse.table("offset_commits"), self.lookback, self._log())
        in_order = records.sort_by([(name, "ascending") for name in ORDER])
        folded = fold_groups(complete_to, names, self.retention_ms)
        for batch in folded(in_order.to_batches(RECORDS_AT_A_TIME)):
            rows.add(pa.Table.from_batches([batch]))
        return rows

    def with_spark(
        self, records: DataFrame, complete_to: dict[int, int], names: Mapping[str, str], *, tasks: int
    ) -> FoldedRows:
        """Fold any number of records and saved states (`tasks.INPUT_DDL`), those of a group in one of the tasks.

        The rows are returned on the driver if it has room for them.
        """
        by_group = records.repartition(tasks, "record_partition", "group_id").sortWithinPartitions(*ORDER)
        folded = by_group.mapInArrow(fold_groups(complete_to, names, self.retention_ms), output_ddl())
        rows = SparkRows(folded, self.warehouse.table("offset_commits"), self.lookback, self._log())
        return rows.to_driver() if self.has_room_for(rows) else rows

    def _log(self) -> LoggedEvents:
        return LoggedEvents(self.warehouse.table(EVENTS))

    def has_room_for(self, rows: FoldedRows) -> bool:
        """Return whether the driver can write the rows, and read the commits that they need."""
        is_short = rows.span is None or rows.span.is_short
        return is_short and self.warehouse.choose(rows=sum(rows.counts.values())) == "delta-rs"
