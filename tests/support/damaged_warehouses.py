"""Read a warehouse with a damaged file, case after case: `python -m support.damaged_warehouses FOLDER FIRST COUNT`.

It is a process of its own, since what it looks for ends processes, or has them wait for ever. A case is a seed. Every
read is that of a server: metrics, pages, and a job's strict one.
"""

from __future__ import annotations

import faulthandler
import random
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from jinja2 import FileSystemBytecodeCache

from grouptrail.config import Config
from grouptrail.errors import GrouptrailError
from grouptrail.runtime.warehouses import warehouse_of
from grouptrail.snapshot.reader import Snapshot
from grouptrail.snapshot.state import ClusterState
from grouptrail.storage.reader import READ_ERRORS
from support.damaged_files import CONTENT, PLACE, damage, repair
from support.from_config import snapshot_reader
from support.web_client import LOCAL, Site

_PATHS = ("/", "/groups/billing", "/api/v1/groups", "/topics/orders")
_DEADLINE_SECONDS = 60
_ALIVE = {"consumer_lag", "group_states", "generations"}
# Which figures of a snapshot come from which tables.
_FIGURES = {
    "lag": {"consumer_lag", "group_states"},
    "groups": {"group_states", "generations"},
    "rebalances": {"rebalances", *_ALIVE},
    "commits": {"offset_commits", *_ALIVE},
    "progress": {"ingest_progress"},
}
# Samples are current for three intervals.
_INTERVAL_SECONDS = 36_000


class DamagedWarehouse:
    """A warehouse whose files are damaged one after the other, and put back."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._root = Path(config.warehouse)
        files = [file for file in self._root.glob("*/**/*") if file.is_file() and "_checkpoints" not in file.parts]
        self._logs = sorted(file for file in files if "_delta_log" in file.parts)
        self._data = sorted(file for file in files if "_delta_log" not in file.parts)
        self._whole = snapshot_reader(config).read()
        self._templates = FileSystemBytecodeCache()  # to compile them takes as long as all reads of a case
        assert not self._whole.damage

    def read(self, seed: int) -> str:
        """Return what became of a case: what was damaged, whether it was noticed, and the status of each page."""
        rng = random.Random(seed)
        files = self._some(rng)
        kinds = [rng.choice((*CONTENT, *CONTENT, *PLACE)) for _ in files]
        named = (f"{kind}: {file.relative_to(self._root)}" for file, kind in zip(files, kinds, strict=True))
        case = f"{seed}: {', '.join(named)}"
        contents = [file.read_bytes() for file in files]
        for file, kind in zip(files, kinds, strict=True):
            damage(rng, file, kind, [other for other in self._data if other not in files])
        try:
            tables = {self._table(file) for file in files}
            return self._read(tables, rng.sample(_PATHS, 2), case, what=self._what(files))
        except Exception as error:
            error.add_note(case)
            raise
        finally:
            for file, content in zip(files, contents, strict=True):
                repair(file, content)

    def _some(self, rng: random.Random) -> list[Path]:
        """Return a file, of the data or of a log, or a few of one kind, or all data of one table or two."""
        among = self._data if rng.random() < 0.75 else self._logs
        chosen = rng.random()
        if chosen < 0.7:
            return [rng.choice(among)]
        if chosen < 0.85:
            return rng.sample(among, rng.randrange(2, 6))
        tables = {self._table(file) for file in rng.sample(self._data, 2)}
        return [file for file in self._data if self._table(file) in tables]

    def _table(self, file: Path) -> str:
        return file.relative_to(self._root).parts[0]

    def _what(self, files: list[Path]) -> str:
        kind = "log" if files[0] in self._logs else "data"
        return f"{kind} file" if len(files) == 1 else f"several {kind} files"

    def _read(self, damaged: set[str], paths: list[str], case: str, *, what: str) -> str:
        try:
            snapshot = self._snapshot()
        except OverflowError:  # without checksums in files of delta-rs, wrong values may look right
            return f"{what}, a value is out of range"
        for figure, tables in _FIGURES.items():
            is_whole = _sorted(snapshot, figure) == _sorted(self._whole, figure)
            assert is_whole or damaged & tables, f"{case}: {figure} changed"
        others = {name for name, texts in snapshot.damage.items() if "cannot be read" not in texts[0]} - damaged
        assert not others, f"{case}: {snapshot.damage}"
        site = Site(self.config, **{self.config.cluster: ClusterState(snapshot, None, {})})
        site.application.jinja_env.bytecode_cache = self._templates
        statuses = [site.client.get(path, base_url=LOCAL).status_code for path in paths]
        # Wrong values that look right may be null where no row is: then a page has a line about it.
        assert not any("\n" in fault for fault in site.faults), f"{case}: {site.faults}"
        is_wrong = any(f"{kind}: {table}/" in case for kind in CONTENT for table in damaged)
        assert is_wrong or not site.faults, f"{case}: {site.faults}"
        statuses = [status for status in statuses if status != 500 or not is_wrong]
        allowed = {200, 404} if damaged & _ALIVE else {200}
        # Of a table that cannot be opened a page has one line.
        allowed |= {503} if "_delta_log" in case else set()
        assert set(statuses) <= allowed, f"{case}: {statuses}"
        for table in damaged:
            with suppress(GrouptrailError, OverflowError, *READ_ERRORS):
                warehouse_of(self.config).table(table).select("*")
        wrong = f", {len(site.faults)} pages with a line about a value" if site.faults else ""
        return f"{what}, {'noticed' if snapshot.damage else 'not noticed'}, {sorted(statuses)}{wrong}"

    def _snapshot(self) -> Snapshot:
        reader = snapshot_reader(self.config)
        try:
            return reader.read()
        except GrouptrailError:  # a file was read in part: it is named now, and left out
            return reader.read()


def _sorted(snapshot: Snapshot, figure: str) -> list[str]:
    rows: pa.Table = getattr(snapshot, figure)
    # Damaged times may be beyond Python's.
    plain = [one.with_type(pa.int64()) if pa.types.is_timestamp(one.type) else one for one in rows.schema]
    return sorted(map(str, rows.cast(pa.schema(plain)).to_pylist()))


def main() -> None:
    """Print how many cases ended how."""
    folder, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    warehouse = DamagedWarehouse(Config(warehouse=folder, log_offsets={"interval_seconds": _INTERVAL_SECONDS}))
    results: Counter[str] = Counter()
    for seed in range(first, first + count):
        faulthandler.dump_traceback_later(_DEADLINE_SECONDS, exit=True)
        results[warehouse.read(seed)] += 1
    faulthandler.cancel_dump_traceback_later()
    for result, cases in results.most_common():
        sys.stdout.write(f"{cases:,} {result}\n")


if __name__ == "__main__":
    main()
