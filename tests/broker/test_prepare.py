"""`make prepare` on a machine that has none of its results yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grouptrail.spark import class_data
from grouptrail.spark.java import cache_folder, find_java

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.full


def test_prepare_records_class_data_of_kafka_and_spark(tmp_path: Path) -> None:
    """The jars are kept: the class data is recorded anew, in the process that `make prepare` starts."""
    if not class_data.is_supported(find_java()):
        pytest.skip("this Java has no archive of its own classes")
    cache = tmp_path / "grouptrail"
    cache.mkdir()
    for folder in cache_folder().iterdir():
        if folder.name != "class-data":
            (cache / folder.name).symlink_to(folder)
    command = [sys.executable, "-m", "prepare"]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "deploy")}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert [path.name.partition("-")[0] for path in sorted((cache / "class-data").iterdir())] == ["kafka", "spark"]
