"""The order of the verdicts, from the worst on, is one and the same wherever it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouptrail import contracts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("schemas/metrics.yaml", "in the order {};"),
        ("docs/lag.md", "From worst to best: {}."),
        ("docs/recipes.md", "From worst to best: {}."),
    ],
)
def test_order_of_statuses_in_text_is_that_of_the_table(path: str, text: str) -> None:
    assert text.format(", ".join(contracts.statuses())) in " ".join((ROOT / path).read_text("utf-8").split())
