"""What `make bench ONLY=peers` reads from metrics, and when `ONLY=release` fails."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench import peers as bench_peers
from bench.peers import GUARDED, Contestant, grouptrail, kminion, measure_release

SIZE = {"records": 1, "groups": 1, "a_second": 1, "minutes": 0.0}
PAGES = {
    "grouptrail": 'kafka_consumer_group_committed_offset{cluster="c",group="%s",partition="0",topic="t"} 17\n',
    "kminion": 'kminion_kafka_consumer_group_topic_offset_sum{group_id="%s",topic_name="t"} 17\n',
}


@pytest.mark.parametrize(
    "contestant", [grouptrail("grouptrail", "python"), kminion("kminion")], ids=lambda it: it.name
)
def test_contestant_offset_is_read_from_metrics_of_the_probe_only(contestant: Contestant) -> None:
    page = PAGES[contestant.name]
    assert contestant.committed.findall(page % "probe") == ["17"]
    assert contestant.committed.findall(page % "other") == []


def test_contestant_settings_show_one_group_or_all(tmp_path: Path) -> None:
    for contestant in (grouptrail("grouptrail", "python"), kminion("kminion")):
        one, all_groups = (contestant.environ("b:9092", 9308, tmp_path, group) for group in ("probe", None))
        assert [name for name in one if name not in all_groups] == [next(name for name in one if "ALLOW" in name)]


@pytest.mark.parametrize(("this", "is_slower"), [(1.2, False), (1.4, True)])
def test_measure_release_more_than_the_ratio_ends_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, this: float, is_slower: bool
) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").touch()

    def measured(_folder: Path, contestants: Sequence[Contestant], **_: Any) -> dict[str, Any]:
        return {one.name: dict.fromkeys(GUARDED, this if one.name == "this" else 1.0) for one in contestants}

    monkeypatch.setattr(bench_peers, "_measured", measured)
    if is_slower:
        with pytest.raises(SystemExit, match=r"1\.3 times that of the release: first start, s"):
            measure_release(tmp_path, release=str(tmp_path), **SIZE)
    else:
        assert measure_release(tmp_path, release=str(tmp_path), **SIZE)["ratios"]["restart, s"] == this


@pytest.mark.parametrize("release", [None, "nowhere"])
def test_measure_release_without_a_checkout_says_what_to_give(tmp_path: Path, release: str | None) -> None:
    with pytest.raises(SystemExit, match="RELEASE must name a checkout"):
        measure_release(tmp_path, release=release, **SIZE)
