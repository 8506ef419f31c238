"""Which tests a worker takes together, and in which order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import schedule


def test_unit_of_tests_of_one_file_is_the_file() -> None:
    assert schedule.unit_of("tests/unit/test_cli.py::test_version[a]") == "tests/unit/test_cli.py"


def test_unit_of_history_is_apart_for_each_kafka_release() -> None:
    units = {
        schedule.unit_of(f"tests/broker/test_history.py::test_x[{release}-kip-848]") for release in ("4.3.0", "3.9.1")
    }
    assert units == {"tests/broker/test_history.py::4.3.0", "tests/broker/test_history.py::3.9.1"}


def test_longest_first_orders_measured_units_and_puts_new_broker_files_before_unit_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = tmp_path / "seconds.json"
    seconds.write_text(json.dumps({"normal": {"tests/spark/test_a.py": 50, "tests/broker/test_b.py": 90}}))
    monkeypatch.setattr(schedule, "SECONDS", seconds)
    units = ["tests/unit/test_new.py", "tests/spark/test_a.py", "tests/broker/test_new.py", "tests/broker/test_b.py"]
    assert list(schedule.longest_first((f"{unit}::test_x", "normal") for unit in units)) == [
        "tests/broker/test_b.py",
        "tests/broker/test_new.py",
        "tests/spark/test_a.py",
        "tests/unit/test_new.py",
    ]


def test_longest_first_adds_what_a_unit_takes_in_normal_and_full_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = tmp_path / "seconds.json"
    seconds.write_text(json.dumps({"normal": {"tests/unit/test_a.py": 50}, "full": {"tests/unit/test_a.py": 90}}))
    monkeypatch.setattr(schedule, "SECONDS", seconds)
    tests: list[tuple[str, schedule.RunKind]] = [
        ("tests/unit/test_a.py::test_x", "normal"),
        ("tests/unit/test_a.py::test_y", "full"),
        ("tests/unit/test_a.py::test_z", "full"),
    ]
    assert schedule.longest_first(tests[:1]) == {"tests/unit/test_a.py": 50}
    assert schedule.longest_first(tests[1:]) == {"tests/unit/test_a.py": 90}
    assert schedule.longest_first(tests) == {"tests/unit/test_a.py": 140}


def test_record_seconds_of_a_normal_run_keeps_those_of_full_runs_and_of_other_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedule, "SECONDS", tmp_path / "seconds.json")
    schedule.record_seconds({("full", "tests/unit/test_a.py"): 90.04, ("normal", "tests/unit/test_b.py"): 1})
    schedule.record_seconds({("normal", "tests/unit/test_a.py"): 50.0})
    assert schedule.recorded_seconds() == {
        "full": {"tests/unit/test_a.py": 90.0},
        "normal": {"tests/unit/test_a.py": 50.0, "tests/unit/test_b.py": 1},
    }


def test_parts_that_stand_apart_are_of_tests_that_exist() -> None:
    root = Path(__file__).resolve().parents[2]
    for file, part in schedule._APART.items():
        text = (root / file).read_text("utf-8")
        wanted = part.pattern.removeprefix("::(").removesuffix(r"\w+)")
        assert wanted.startswith(r"\[") or f"def {wanted}" in text
