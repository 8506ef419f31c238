"""Shell completion of names in the warehouse: within two seconds, and without output after an error.

The shell puts the chosen name into the command line as it is. Clients choose these names, so only those are offered
that no shell gives a meaning to.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import typer

from grouptrail.cli.overrides import overrides

if TYPE_CHECKING:
    from grouptrail.config import Config

_PATIENCE_SECONDS = 2.0
_MOST_OFFERED = 1000
_PLAIN = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.:@+=-]*")


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the groups whose names begin with the text."""
    return _offered(lambda: _names(context, "group_id", ("group_states", "committed_offsets"), incomplete))


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumed topics whose names begin with the text."""
    return _offered(lambda: _names(context, "topic", ("committed_offsets",), incomplete))


def complete_cluster(context: typer.Context, incomplete: str) -> list[str]:
    """Return the configured clusters, and those of the warehouse, whose names begin with the text."""
    return _offered(lambda: _clusters(context, incomplete))


def complete_table(incomplete: str) -> list[str]:
    """Return the tables whose names begin with the text."""
    return _offered(lambda: {name for name in _tables() if name.startswith(incomplete)})


def _tables() -> Iterable[str]:
    from grouptrail import contracts

    return contracts.tables()


def _offered(find: Callable[[], set[str]]) -> list[str]:
    """Return what is found in time, in order; nothing after an error."""
    names: set[str] = set()

    def look() -> None:
        try:
            names.update(find())
        except BaseException:  # also typer's, of options that are not complete yet
            names.clear()

    looking = threading.Thread(target=look, daemon=True)
    with _without_stderr():
        looking.start()
        looking.join(_PATIENCE_SECONDS)
    return sorted(name for name in list(names) if _PLAIN.fullmatch(name))[:_MOST_OFFERED]


@contextlib.contextmanager
def _without_stderr() -> Iterator[None]:
    """Discard what is written to stderr, also by native code, such as the warnings of object stores' clients."""
    own = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)
        os.close(nowhere)


def _names(context: typer.Context, column: str, tables: tuple[str, ...], prefix: str) -> set[str]:
    from grouptrail.config import load_config
    from grouptrail.runtime.warehouses import stored
    from grouptrail.storage.sql import datafusion_literal

    options = context.params
    config = stored(load_config(options.get("config"), overrides(options)))
    return _distinct(config, column, tables, prefix, f"AND cluster = {datafusion_literal(config.cluster)}")


def _clusters(context: typer.Context, prefix: str) -> set[str]:
    from grouptrail.config import load_configs

    options = {**context.params, "cluster": None}
    configs = load_configs(options.get("config"), overrides(options))
    stored = _distinct(configs[0], "cluster", ("ingest_progress",), prefix, "")
    return stored | {config.cluster for config in configs if config.cluster.startswith(prefix)}


def _distinct(config: Config, column: str, tables: tuple[str, ...], prefix: str, where: str) -> set[str]:
    from grouptrail.runtime.warehouses import warehouse_of
    from grouptrail.storage.sql import datafusion_literal
    from grouptrail.storage.sql_snapshot import SqlSnapshot

    there = SqlSnapshot(warehouse_of(config), tables)
    begins = f"starts_with({column}, {datafusion_literal(prefix)})"
    queries = [f"SELECT DISTINCT {column} AS name FROM {table} WHERE {begins} {where}" for table in there.versions]
    return {row["name"] for query in queries for row in there.rows(f"{query} LIMIT {_MOST_OFFERED}")}
