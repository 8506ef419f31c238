"""Download jars from Maven Central into a cache folder.

Those with known digests are downloaded several at a time. For other versions, and where only Java reaches the
network, the Ivy that pyspark ships finds out which jars are needed, and downloads them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.resources
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError
from grouptrail.spark import maven_central
from grouptrail.spark.java import cache_folder, find_java

DIGESTS = "jars.sha256"
"""The file in this folder with the digests of all jars that grouptrail, its demo and its tests download."""
_REPORT_EVERY_SECONDS = 2.0
_FETCH_DEADLINE_SECONDS = 1200.0


class JarsError(GrouptrailError):
    """Jars could not be fetched or stored."""


def silent(_line: str) -> None:
    """Report nothing."""


def fetch_jars(
    name: str,
    dependencies: Sequence[str] = (),
    *,
    alone: Sequence[str] = (),
    exclude: Sequence[str] = (),
    log: Log = silent,
) -> Path:
    """Return the folder of the jars of `dependencies` (`organisation:module:revision`), downloaded once.

    `name` is the folder's name below the cache, e.g. `kafka/4.3.0`; `alone` lists further dependencies that come
    without their own, `exclude` lists `organisation:module`. During a download, `log` gets a line at least every
    two seconds. After an interruption the download resumes; the folder appears only when it is complete and its jars
    are those of `jars.sha256`. Raises JarsError.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.parent / f".{folder.name}.lock", log):
            if not folder.is_dir() and not _download(folder, name, log):
                _resolve(folder, name, _ivy_file(dependencies, alone, exclude), log)
    except OSError as error:
        raise JarsError(
            f"cannot store jars in {folder} ({error.strerror}): make room there, or set XDG_CACHE_HOME to a folder "
            "that can be written to"
        ) from error
    return folder


@contextlib.contextmanager
def _one_at_a_time(lock: Path, log: Log) -> Iterator[None]:
    """Hold a lock, as two processes must not write Ivy's cache at once."""
    with lock.open("w") as held:
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                log("another process is downloading it: waiting")
                time.sleep(_REPORT_EVERY_SECONDS)
        yield


def _ivy_file(dependencies: Sequence[str], alone: Sequence[str], exclude: Sequence[str]) -> str:
    wanted = [(*dependency.split(":"), "default") for dependency in dependencies]
    wanted += [(*dependency.split(":"), "master") for dependency in alone]  # a Maven module's own jar
    unwanted = (module.split(":") for module in exclude)
    return "\n".join(
        [
            '<ivy-module version="2.0"><info organisation="grouptrail" module="jars"/>',
            '<configurations><conf name="default"/></configurations><dependencies>',
            *(
                f'<dependency org="{org}" name="{module}" rev="{revision}" conf="default->{needed}"/>'
                for org, module, revision, needed in wanted
            ),
            *(f'<exclude org="{org}" module="{module}"/>' for org, module in unwanted),
            "</dependencies></ivy-module>",
        ]
    )


def _download(folder: Path, name: str, log: Log) -> bool:
    """Download the known jars of a folder; return False if none are known, or Python cannot download them."""
    known = known_digests().get(name)
    if not known:
        return False
    draft = _draft(folder)
    draft.mkdir(exist_ok=True)
    started = time.monotonic()

    def report() -> None:
        done = list(draft.glob("*.jar"))
        size = sum(map(_size, done)) / 1e6
        log(f"{name}: {len(done)} of {len(known)} jars, {size:.0f} MB, {time.monotonic() - started:.0f} s")

    try:
        maven_central.download(known, draft, report)
    except OSError as error:
        log(f"{name}: Python cannot download it from Maven Central ({error}): trying with Java")
        return False
    try:
        _keep(folder, name, {path: draft / path.rpartition("/")[2] for path in known}, log)
    finally:
        shutil.rmtree(draft)
    return True


def _draft(folder: Path) -> Path:
    """Return the folder of a download that another run may finish."""
    return folder.with_name(f".{folder.name}.part")


def _resolve(folder: Path, name: str, ivy_file: str, log: Log) -> None:
    """Find out with Ivy which jars are needed, and download them."""
    ivy_cache = folder.with_name(f".ivy-{folder.name}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        draft = Path(temporary)
        (draft / "ivy.xml").write_text(ivy_file)
        tree = draft / "tree"
        command = [
            *(str(find_java().command), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
            *("-ivy", str(draft / "ivy.xml"), "-cache", str(ivy_cache)),
            *("-retrieve", f"{tree}/[orgPath]/[module]/[revision]/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        output = draft / "ivy.log"
        status = _run_reporting(command, output, lambda seconds: log(_progress(name, ivy_cache, seconds)))
        jars = {str(jar.relative_to(tree)): jar for jar in sorted(tree.rglob("*.jar"))}
        if status != 0 or not jars:
            raise JarsError(_why_not_fetched(name, output.read_text(errors="replace")))
        _keep(folder, name, jars, log)
    for unfinished in (ivy_cache, _draft(folder)):
        shutil.rmtree(unfinished, ignore_errors=True)


def _keep(folder: Path, name: str, jars: Mapping[str, Path], log: Log) -> None:
    """Move jars into their folder if they are exactly the known ones; those of other versions are only reported."""
    actual = {path: maven_central.sha256(jar) for path, jar in jars.items()}
    known = known_digests().get(name)
    if not known:
        log(f"{name}: not verified, as grouptrail was not tested with this version and has no digests of its jars")
    elif wrong := sorted(path for path in known.keys() | actual.keys() if known.get(path) != actual.get(path)):
        raise JarsError(
            f"{name}/{wrong[0]} is not the jar that grouptrail was tested with "
            f"(SHA-256: {actual.get(wrong[0], 'none')}): "
            "check the mirror or proxy that it came from, and run it again; nothing was kept"
        )
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        complete = Path(temporary) / folder.name
        complete.mkdir()
        for jar in jars.values():
            jar.rename(complete / jar.name)
        list_of_jars(folder).write_text("".join(f"{digest}  {name}/{path}\n" for path, digest in actual.items()))
        complete.rename(folder)


def list_of_jars(folder: Path) -> Path:
    """Return the file beside a folder of jars with their digests, in the form of `jars.sha256`."""
    return folder.with_name(f"{folder.name}.sha256")


def known_digests() -> dict[str, dict[str, str]]:
    """Return the SHA-256 digests in `jars.sha256`, by the folder's name and the jar's path on Maven Central."""
    known: dict[str, dict[str, str]] = defaultdict(dict)
    for line in (importlib.resources.files("grouptrail.spark") / DIGESTS).read_text("utf-8").splitlines():
        digest, jar = line.split("  ", 1)
        kind, version, path = jar.split("/", 2)
        known[f"{kind}/{version}"][path] = digest
    return known


def _run_reporting(command: list[str], log: Path, report_after: Callable[[float], None]) -> int:
    """Run a command with its output in `log`, and return its exit status; 124 if it exceeded the deadline."""
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
    try:
        while (seconds := time.monotonic() - started) < _FETCH_DEADLINE_SECONDS:
            report_after(seconds)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(timeout=_REPORT_EVERY_SECONDS)
        return 124
    finally:
        process.kill()
        process.wait()


def _progress(name: str, ivy_cache: Path, seconds: float) -> str:
    jars = [path for path in ivy_cache.rglob("*") if ".jar" in path.name]
    if jars:
        done = f"{len(jars)} jars, {sum(map(_size, jars)) / 1e6:.0f} MB"
    else:
        done = f"finding out which jars it needs, {len(list(ivy_cache.rglob('*.xml')))} descriptions read"
    return f"{name}: {done}, {seconds:.0f} s"


def _size(path: Path) -> int:
    """Return a file's size; zero if Ivy has just renamed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _why_not_fetched(name: str, log: str) -> str:
    if "SSLHandshakeException" in log:
        remedy = (
            "this Java does not trust the server's certificate; if your network has a certificate authority of its "
            "own, set JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=FILE, a Java trust store that has it"
        )
    else:
        remedy = (
            "check the network to Maven Central (behind a proxy: "
            "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT') and run it again"
        )
    messages = (line.strip() for line in log.splitlines() if ":::" not in line)
    lines = [line for line in messages if "ERROR" in line or "Exception" in line]
    return f"{name} could not be downloaded ({lines[0] if lines else 'no answer'}): {remedy}"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted((Path(folder) / "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError("pyspark, which brings the Ivy that downloads jars, is not installed: pip install pyspark")
