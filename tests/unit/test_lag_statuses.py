"""The order of the verdicts, from the worst on, is one and the same wherever it is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from grouptrail import contracts

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("schemas/metrics.yaml", "by {}, {}, {}, {}, {}, {}, {}, {}; one series"),
        ("docs/lag.md", "{}, {}, {}, {}, {}, {}, {}, {}, from the"),
        ("docs/recipes.md", "{} is worse than {}, {}, {}, {}, {}, {}, {}."),
    ],
)
def test_order_of_statuses_in_text_is_that_of_the_table(path: str, text: str) -> None:
    assert text.format(*contracts.statuses()) in (ROOT / path).read_text("utf-8")
