"""Where a table is, and which cluster's rows are meant: all that is needed to read or write it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from grouptrail import contracts
from grouptrail.contracts import Table as Contract
from grouptrail.locations import shown


@dataclass(frozen=True)
class TableLocation:
    """A table of a cluster.

    `name` is its contract's, `path` a folder or URI, `options` are delta-rs's options of the store, secrets in clear.
    `shared` are values that all new rows have; the column `cluster` is always among them.
    """

    name: str
    path: str = field(repr=False)
    options: Mapping[str, str] = field(repr=False)
    cluster: str
    shared: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """The path as it may be printed."""
        return f"{shown(self.path.removesuffix(f'/{self.name}'))}/{self.name}"

    @property
    def contract(self) -> Contract:
        """The table's contract."""
        return contracts.tables()[self.name]

    @property
    def new_values(self) -> Mapping[str, Any]:
        """The values of all new rows, by column."""
        return {"cluster": self.cluster, **self.shared}

    def sharing(self, values: Mapping[str, Any]) -> TableLocation:
        """Return the table with values that all new rows have."""
        return replace(self, shared={**self.shared, **values})
