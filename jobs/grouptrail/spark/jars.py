"""Download jars from Maven Central, with the Ivy that pyspark ships, into a cache folder."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.resources
import importlib.util
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from grouptrail.console.progress import Log
from grouptrail.errors import GrouptrailError
from grouptrail.spark.java import cache_folder, find_java

DIGESTS = "jars.sha256"
"""The file in this folder with the digest of every downloaded jar."""

_REPORT_EVERY_SECONDS = 2.0
_FETCH_DEADLINE_SECONDS = 1200.0


class JarsError(GrouptrailError):
    """Jars could not be fetched or stored."""


def silent(_line: str) -> None:
    """Report nothing."""


def fetch_jars(
    name: str,
    dependencies: Sequence[str],
    *,
    exclude: Sequence[str] = (),
    transitive: bool = True,
    log: Log = silent,
) -> Path:
    """Return the folder of the jars of `dependencies` (`organisation:module:revision`), downloaded once.

    `name` is the folder's name below the cache, e.g. `kafka/4.3.0`; `exclude` lists `organisation:module`; without
    `transitive` there are only the dependencies themselves. During a download, `log` gets a line at least every
    two seconds. After an interruption the download resumes; the folder appears only when it is complete and its jars
    are those of `jars.sha256`. Raises JarsError.
    """
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _one_at_a_time(folder.parent / f".{folder.name}.lock", log):
            if not folder.is_dir():
                _download(folder, _ivy_file(dependencies, exclude, transitive=transitive), log)
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


def _ivy_file(dependencies: Sequence[str], exclude: Sequence[str], *, transitive: bool) -> str:
    needed = "default" if transitive else "master"  # a Maven module's own jar
    wanted = (dependency.split(":") for dependency in dependencies)
    unwanted = (module.split(":") for module in exclude)
    return "\n".join(
        [
            '<ivy-module version="2.0"><info organisation="grouptrail" module="jars"/>',
            '<configurations><conf name="default"/></configurations><dependencies>',
            *(
                f'<dependency org="{org}" name="{module}" rev="{revision}" conf="default->{needed}"/>'
                for org, module, revision in wanted
            ),
            *(f'<exclude org="{org}" module="{module}"/>' for org, module in unwanted),
            "</dependencies></ivy-module>",
        ]
    )


def _download(folder: Path, ivy_file: str, log: Log) -> None:
    what = f"{folder.parent.name} {folder.name}"
    ivy_cache = folder.parent / f".ivy-{folder.name}"
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as name:
        draft = Path(name)
        (draft / "ivy.xml").write_text(ivy_file)
        command = [
            *(str(find_java().command), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"),
            *("-ivy", str(draft / "ivy.xml"), "-cache", str(ivy_cache)),
            *("-retrieve", f"{draft}/jars/[artifact]-[revision](-[classifier]).[ext]"),
        ]
        output = draft / "ivy.log"
        status = _run_reporting(command, output, lambda seconds: log(_progress(what, ivy_cache, seconds)))
        if status != 0 or not (draft / "jars").is_dir():
            raise JarsError(_why_not_fetched(what, output.read_text(errors="replace")))
        _verify(f"{folder.parent.name}/{folder.name}", draft / "jars", log)
        (draft / "jars").rename(folder)
    shutil.rmtree(ivy_cache, ignore_errors=True)


def digests(name: str, folder: Path) -> dict[str, str]:
    """Return the SHA-256 digests of the jars in a folder, by `name` and the jar's name, as in `jars.sha256`."""
    return {f"{name}/{jar.name}": hashlib.sha256(jar.read_bytes()).hexdigest() for jar in sorted(folder.iterdir())}


def known_digests() -> dict[str, str]:
    """Return the digests in `jars.sha256`, which `make digests` writes in the format of sha256sum."""
    lines = (importlib.resources.files("grouptrail.spark") / DIGESTS).read_text("utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines)}


def _verify(name: str, folder: Path, log: Log) -> None:
    """Raise JarsError unless these are exactly the jars whose digests are known; other versions are only reported."""
    known = {jar: digest for jar, digest in known_digests().items() if jar.rpartition("/")[0] == name}
    if not known:
        log(f"{name}: not verified, as grouptrail was not tested with this version and has no digests of its jars")
        return
    actual = digests(name, folder)
    wrong = sorted(jar for jar in known.keys() | actual.keys() if known.get(jar) != actual.get(jar))
    if wrong:
        raise JarsError(
            f"{wrong[0]} is not the jar that grouptrail was tested with (SHA-256: {actual.get(wrong[0], 'none')}): "
            "check the mirror or proxy that it came from, and run it again; nothing was kept"
        )


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


def _progress(what: str, ivy_cache: Path, seconds: float) -> str:
    jars = [path for path in ivy_cache.rglob("*") if ".jar" in path.name]
    if jars:
        done = f"{len(jars)} jars, {sum(map(_size, jars)) / 1e6:.0f} MB"
    else:
        done = f"finding out which jars it needs, {len(list(ivy_cache.rglob('*.xml')))} descriptions read"
    return f"{what}: {done}, {seconds:.0f} s"


def _size(path: Path) -> int:
    """Return a file's size; zero if Ivy has just renamed it."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _why_not_fetched(what: str, log: str) -> str:
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
    return f"{what} could not be downloaded ({lines[0] if lines else 'no answer'}): {remedy}"


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for jar in sorted((Path(folder) / "jars").glob("ivy-*.jar")):
            return jar
    raise JarsError("pyspark, which brings the Ivy that downloads jars, is not installed: pip install pyspark")
