"""Build every dashboard into a folder: `python -m grafana dashboards/built`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana import group, overview, pipeline, topic

MODULES = (overview, group, topic, pipeline)


def build(folder: Path) -> None:
    """Write `<dashboard>.json` for each dashboard; the same code gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        text = json.dumps(module.dashboard(), cls=JSONEncoder, indent=2, ensure_ascii=False)
        name = module.__name__.rpartition(".")[2]
        (folder / f"{name}.json").write_text(f"{text}\n", "utf-8")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
