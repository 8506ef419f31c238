"""Archives of class data: which JVM uses which."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from grouptrail.spark import class_data
from grouptrail.spark.java import Java


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "spark.jar"
    path.write_bytes(b"jar")
    return path


def java(home: Path, version: str = "17.0.15") -> Java:
    return Java(home, version, int(version.partition(".")[0]), "test")


def test_archive_path_changes_with_java_and_with_each_jar(tmp_path: Path, jar: Path) -> None:
    first = class_data.archive("spark", java(tmp_path), [jar])
    assert class_data.archive("spark", java(tmp_path), [jar]) == first
    other = tmp_path / "delta.jar"
    other.write_bytes(b"jar")
    different = [
        class_data.archive("kafka", java(tmp_path), [jar]),
        class_data.archive("spark", java(tmp_path, "21.0.8"), [jar]),
        class_data.archive("spark", java(tmp_path / "elsewhere"), [jar]),
        class_data.archive("spark", java(tmp_path), [jar, other]),
    ]
    jar.write_bytes(b"another")
    different.append(class_data.archive("spark", java(tmp_path), [jar]))
    assert len({first, *different}) == 6


def test_options_without_archive_are_empty(tmp_path: Path, jar: Path) -> None:
    assert class_data.options(class_data.archive("spark", java(tmp_path), [jar])) == ""


def test_make_archive_written_by_the_jvm_is_used_by_the_next(tmp_path: Path, jar: Path) -> None:
    path = class_data.archive("spark", java(tmp_path), [jar])

    def run(options: str) -> None:
        [draft] = re.findall(r"-XX:ArchiveClassesAtExit=(\S+)", options)
        assert not path.exists()
        Path(draft).write_bytes(b"classes")

    assert class_data.make(path, run)
    assert f"-XX:SharedArchiveFile={path}" in class_data.options(path).split()
    assert list(path.parent.iterdir()) == [path]


def test_make_jvm_without_archiving_leaves_nothing_behind(tmp_path: Path, jar: Path) -> None:
    path = class_data.archive("spark", java(tmp_path), [jar])
    assert not class_data.make(path, lambda _options: None)
    assert list(path.parent.iterdir()) == []


def test_is_supported_java_without_its_own_archive_is_not(tmp_path: Path) -> None:
    assert not class_data.is_supported(java(tmp_path))
    own = tmp_path / "lib" / "server" / "classes.jsa"
    own.parent.mkdir(parents=True)
    own.touch()
    assert class_data.is_supported(java(tmp_path))


def test_make_fourth_archive_of_a_name_removes_the_oldest(tmp_path: Path, jar: Path) -> None:
    paths = [class_data.archive("spark", java(tmp_path, f"17.0.{number}"), [jar]) for number in range(4)]
    other = class_data.archive("kafka-4.3.0", java(tmp_path), [jar])
    for age, path in enumerate([other, *paths]):
        class_data.make(path, lambda options: Path(options.split()[0].partition("=")[2]).write_bytes(b"classes"))
        os.utime(path, (age, age))
    class_data.make(paths[-1], lambda _options: None)
    assert {path.name for path in other.parent.iterdir()} == {path.name for path in [other, *paths[1:]]}
