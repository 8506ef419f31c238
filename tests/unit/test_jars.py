"""Jars that are downloaded are compared with the digests in the repository."""

from __future__ import annotations

import hashlib
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from grouptrail.spark import jars
from grouptrail.spark.jars import JarsError, fetch_jars, known_digests
from layouts import NEWEST
from servers import kafka


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Return what Ivy downloads, by the jar's name, into an empty cache."""
    content = {"one-1.jar": b"one", "two-2.jar": b"two"}

    def retrieve(command: list[str], log: Path, _report_after: object) -> int:
        folder = Path(command[command.index("-retrieve") + 1]).parent
        folder.mkdir()
        for name, jar in content.items():
            (folder / name).write_bytes(jar)
        log.touch()
        return 0

    monkeypatch.setattr(jars, "_run_reporting", retrieve)
    monkeypatch.setattr(jars, "cache_folder", lambda: tmp_path)
    known = {f"kafka/1.0/{name}": hashlib.sha256(jar).hexdigest() for name, jar in content.items()}
    monkeypatch.setattr(jars, "known_digests", lambda: known)
    return content


def test_fetch_jars_with_the_known_digests_are_kept(tmp_path: Path, mirror: dict[str, bytes]) -> None:
    lines: list[str] = []
    folder = fetch_jars("kafka/1.0", ["a:b:1"], log=lines.append)
    assert folder == tmp_path / "kafka" / "1.0"
    assert {jar.name: jar.read_bytes() for jar in folder.iterdir()} == mirror
    assert lines == []


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"two-2.jar": b"evil"}, f"kafka/1.0/two-2.jar .*SHA-256: {hashlib.sha256(b'evil').hexdigest()}"),
        ({"three-3.jar": b"more"}, "kafka/1.0/three-3.jar "),
        ({"one-1.jar": None}, "kafka/1.0/one-1.jar .*SHA-256: none"),
    ],
)
def test_fetch_jars_changed_added_or_missing_jar_is_refused_and_nothing_is_kept(
    tmp_path: Path, mirror: dict[str, bytes], changes: dict[str, bytes | None], wrong: str
) -> None:
    for name, jar in changes.items():
        if jar is None:
            del mirror[name]
        else:
            mirror[name] = jar
    with pytest.raises(JarsError, match=wrong):
        fetch_jars("kafka/1.0", ["a:b:1"])
    assert not list(tmp_path.rglob("*.jar"))
    assert not (tmp_path / "kafka" / "1.0").exists()


def test_fetch_jars_of_an_untested_version_says_that_they_are_not_verified() -> None:
    lines: list[str] = []
    assert fetch_jars("kafka/2.0", ["a:b:2"], log=lines.append).is_dir()
    assert [line.partition(",")[0] for line in lines] == ["kafka/2.0: not verified"]


def test_digests_are_known_of_every_jar_that_is_downloaded() -> None:
    """Of the pinned pair of pyspark and delta-spark, of S3, and of each Kafka of the demo and the tests."""
    known = known_digests()
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in known.values())
    folders = {name.rpartition("/")[0] for name in known}
    wanted = {f"connectors/pyspark-{version('pyspark')}-delta-{version('delta-spark')}", f"kafka-messages/{NEWEST}"}
    wanted |= {f"kafka/{release}" for release in (kafka.NEXT, *kafka.VERSIONS)} | {f"connect/{kafka.VERSIONS[0]}"}
    assert {folder for folder in folders if not folder.startswith("s3/hadoop-aws-")} == wanted
    assert len(folders) == len(wanted) + 1
