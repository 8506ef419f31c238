"""`make bench ONLY=timestamps` dates every position, and judges each age by the records that it wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench import timestamps as bench_timestamps
from bench.timestamps import measure_timestamps


def test_measure_timestamps_dates_every_position(tmp_path: Path) -> None:
    figures = measure_timestamps(tmp_path, partitions=20, groups=2)
    assert figures["positions"] == 40
    assert 0 < figures["exact"] <= 40
    assert figures["too low beyond 1 s or 1 %, s"] == 0


@pytest.mark.full
def test_measure_timestamps_wrong_age_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = bench_timestamps._write

    def later(bootstrap: str, partitions: int) -> np.ndarray:
        return write(bootstrap, partitions) + 10_000

    monkeypatch.setattr(bench_timestamps, "_write", later)
    with pytest.raises(SystemExit, match=r"^bench: .* is .* s old$"):
        measure_timestamps(tmp_path, partitions=2, groups=1)
