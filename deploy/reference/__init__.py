"""Generators of the reference pages in docs/, from contracts, settings and aliases."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
