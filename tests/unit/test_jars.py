"""Jars that are downloaded are compared with the digests in the repository."""

from __future__ import annotations

import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

from grouptrail.spark import jars, maven_central
from grouptrail.spark.jars import JarsError, fetch_jars, known_digests, list_of_jars
from grouptrail.spark.kafka_login import MSK_LIBRARY
from layouts import NEWEST
from servers import kafka

CONTENT = {"a/one/1/one-1.jar": b"one", "a/b/two/2/two-2.jar": b"two"}
KNOWN = {path: hashlib.sha256(jar).hexdigest() for path, jar in CONTENT.items()}

Jars = dict[str, bytes]


@pytest.fixture(autouse=True)
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Jars]:
    """Return what Maven Central has, by its path; the cache is empty, and the jars of `kafka/1.0` are known."""
    content = dict(CONTENT)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            jar = content.get(self.path.removeprefix("/"))
            self.send_response(404 if jar is None else 200)
            self.end_headers()
            self.wfile.write(jar or b"")

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(jars, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(jars, "known_digests", lambda: {"kafka/1.0": KNOWN})
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        monkeypatch.setattr(maven_central, "URL", f"http://127.0.0.1:{server.server_port}/")
        yield content
        server.shutdown()


@pytest.fixture
def ivy(mirror: Jars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Ivy find the mirror's jars, and Python not reach it."""

    def retrieve(command: list[str], log: Path, _report_after: object) -> int:
        tree = Path(command[command.index("-retrieve") + 1].partition("/[")[0])
        for path, jar in mirror.items():
            (tree / path).parent.mkdir(parents=True)
            (tree / path).write_bytes(jar)
        log.touch()
        return 0

    monkeypatch.setattr(jars, "_run_reporting", retrieve)
    with socket.create_server(("127.0.0.1", 0)) as unused:
        monkeypatch.setattr(maven_central, "URL", f"http://127.0.0.1:{unused.getsockname()[1]}/")


def names(folder: Path) -> Jars:
    return {jar.name: jar.read_bytes() for jar in folder.iterdir()}


def test_fetch_jars_with_the_known_digests_are_kept_with_a_list(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = fetch_jars("kafka/1.0", ["a:b:1"], log=lines.append)
    assert folder == tmp_path / "kafka" / "1.0"
    assert names(folder) == {"one-1.jar": b"one", "two-2.jar": b"two"}
    assert list_of_jars(folder).read_text() == "".join(f"{one}  kafka/1.0/{path}\n" for path, one in KNOWN.items())
    assert re.fullmatch(r"kafka/1\.0: [0-2] of 2 jars, 0 MB, 0 s", lines[0])
    assert not list(tmp_path.rglob("*.part"))


def test_fetch_jars_after_an_interruption_keeps_what_is_complete(tmp_path: Path, mirror: Jars) -> None:
    """Neither a jar that is whole is downloaded again, nor one that is not taken for whole."""
    draft = tmp_path / "kafka" / ".1.0.part"
    draft.mkdir(parents=True)
    (draft / "one-1.jar").write_bytes(mirror.pop("a/one/1/one-1.jar"))
    (draft / "two-2.jar").write_bytes(b"tw")
    assert names(fetch_jars("kafka/1.0", ["a:b:1"])) == {"one-1.jar": b"one", "two-2.jar": b"two"}


@pytest.mark.usefixtures("ivy")
def test_fetch_jars_that_python_cannot_download_come_through_ivy(tmp_path: Path) -> None:
    lines: list[str] = []
    folder = fetch_jars("kafka/1.0", ["a:b:1"], log=lines.append)
    assert names(folder) == {"one-1.jar": b"one", "two-2.jar": b"two"}
    assert re.match("kafka/1.0: Python cannot download it .*: trying with Java", lines[1])
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ({"a/b/two/2/two-2.jar": b"evil"}, f"two-2.jar .*SHA-256: {hashlib.sha256(b'evil').hexdigest()}"),
        ({"c/three/3/three-3.jar": b"more"}, "kafka/1.0/c/three/3/three-3.jar "),
        ({"a/one/1/one-1.jar": None}, "kafka/1.0/a/one/1/one-1.jar .*SHA-256: none"),
    ],
)
@pytest.mark.usefixtures("ivy")
def test_fetch_jars_changed_added_or_missing_jar_is_refused_and_nothing_is_kept(
    tmp_path: Path, mirror: Jars, changes: dict[str, bytes | None], wrong: str
) -> None:
    for path, jar in changes.items():
        if jar is None:
            del mirror[path]
        else:
            mirror[path] = jar
    with pytest.raises(JarsError, match=wrong):
        fetch_jars("kafka/1.0", ["a:b:1"])
    assert not list(tmp_path.rglob("*.jar"))
    assert not (tmp_path / "kafka" / "1.0").exists()


def test_fetch_jars_changed_at_maven_central_is_refused_and_nothing_is_kept(tmp_path: Path, mirror: Jars) -> None:
    mirror["a/b/two/2/two-2.jar"] = b"evil"
    with pytest.raises(JarsError, match=r"two-2\.jar is not the jar that grouptrail was tested with"):
        fetch_jars("kafka/1.0", ["a:b:1"])
    assert not list(tmp_path.rglob("*.jar"))


@pytest.mark.usefixtures("ivy")
def test_fetch_jars_of_an_untested_version_says_that_they_are_not_verified() -> None:
    lines: list[str] = []
    assert fetch_jars("kafka/2.0", ["a:b:2"], log=lines.append).is_dir()
    assert [line.partition(",")[0] for line in lines] == ["kafka/2.0: not verified"]


def test_digests_are_known_of_every_jar_that_is_downloaded() -> None:
    """Of the pinned pair of pyspark and delta-spark, of S3, of MSK, and of each Kafka of the demo and the tests."""
    known = known_digests()
    digests = [digest for jars in known.values() for digest in jars.values()]
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests)
    folders = set(known)
    wanted = {
        f"connectors/pyspark-{version('pyspark')}-delta-{version('delta-spark')}",
        f"kafka-definitions/{NEWEST}",
    }
    wanted |= {f"{kind}/{release}" for kind in ("kafka", "streams") for release in kafka.VERSIONS}
    wanted |= {f"connect/{kafka.CONNECT}"}
    wanted |= {f"msk/{MSK_LIBRARY.partition(':')[2].replace(':', '-')}"}
    assert {folder for folder in folders if not folder.startswith("s3/hadoop-aws-")} == wanted
    assert len(folders) == len(wanted) + 1
