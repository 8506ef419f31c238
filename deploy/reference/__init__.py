"""The pages of docs/ that are made from what the code itself reads: contracts, settings, aliases."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
