"""The JVM of an embedded Spark session: started with settings in a private file, and ended with the process."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, NoReturn

from grouptrail.config import without_settings

if TYPE_CHECKING:
    from types import FrameType

_LOOK_EVERY_SECONDS = 0.1
_STOP_SECONDS = 0.2

_JAVA_OPTIONS = "spark.driver.extraJavaOptions"

_STDERR = 2
_BYTES_A_READ = 1 << 16

_processes: list[subprocess.Popen[bytes]] = []
_is_ended = False
_lock = threading.Lock()


@functools.cache
def private_folder() -> Path:
    """Return a temporary folder that only this user can read; it is removed at the end of the process."""
    folder = Path(tempfile.mkdtemp(prefix="grouptrail-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def is_running() -> bool:
    """Return whether pyspark is connected to a JVM."""
    pyspark = sys.modules.get("pyspark")
    return pyspark is not None and pyspark.SparkContext._gateway is not None


def start(settings: Mapping[str, str]) -> None:
    """Start the JVM and connect pyspark with it, unless that has been done.

    pyspark itself puts all settings on the JVM's command line, where everybody on the machine can read them (ps).
    Here spark-submit reads them from a file, which is removed when the JVM runs. Raises OSError or RuntimeError.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if is_running():
        return
    port, secret = _launch(settings)
    # With these variables pyspark connects to a JVM that runs already.
    os.environ |= {"PYSPARK_GATEWAY_PORT": str(port), "PYSPARK_GATEWAY_SECRET": secret}
    try:
        gateway = launch_gateway()  # type: ignore[no-untyped-call]
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"], os.environ["PYSPARK_GATEWAY_SECRET"]
    gateway.proc = _processes[-1]
    SparkContext._ensure_initialized(gateway=gateway)


def _launch(settings: Mapping[str, str]) -> tuple[int, str]:
    """Start the JVM; return the port and the secret of its gateway."""
    from pyspark.find_spark_home import _find_spark_home

    with tempfile.TemporaryDirectory(dir=private_folder()) as folder:
        properties, connection, options = (Path(folder, name) for name in ("spark.properties", "gateway", "options"))
        if settings.get(_JAVA_OPTIONS):
            # They would be on the command line, too, where Java also takes the name of a file with options.
            _write_private(
                options, "".join(f"{_quoted(option)}\n" for option in shlex.split(settings[_JAVA_OPTIONS]))
            )
            settings = {**settings, _JAVA_OPTIONS: f'"@{options}"'}
        _write_private(
            properties, "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())
        )
        command = [
            *(f"{_find_spark_home()}/bin/spark-submit", "--load-spark-defaults"),
            *("--properties-file", str(properties)),
            *shlex.split(os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")),
        ]
        environment = {"SPARK_CONNECT_MODE": "0", "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection)}
        # Signal handlers run in the main thread: they cannot interrupt this halfway.
        with ThreadPoolExecutor(1) as pool:
            process = pool.submit(_spawn, command, without_settings(os.environ) | environment).result()
        stderr = threading.Thread(target=_pass_on, args=(process.stderr,), name="jvm-stderr", daemon=True)
        stderr.start()
        while process.poll() is None and not connection.is_file():
            time.sleep(_LOOK_EVERY_SECONDS)
        if not connection.is_file():
            stderr.join(_STOP_SECONDS)  # it has the reason
            raise RuntimeError("Java gateway process exited before sending its port number")
        return _read_connection(connection)


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    with _lock:
        if _is_ended:
            raise RuntimeError("this process is ending")
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,  # the JVM ends when it is closed
            stderr=subprocess.PIPE,
            preexec_fn=_ignore_interrupts,  # noqa: PLW1509
        )
        _processes.append(process)
        return process


def _pass_on(stderr: IO[bytes]) -> None:
    """Write what the JVM and its workers print to this process's stderr.

    After a kill -9 of this process nobody reads it any more: threads that still run while Java ends would print stack
    traces on a terminal or in a log where the next run begins.
    """
    while data := os.read(stderr.fileno(), _BYTES_A_READ):
        with contextlib.suppress(OSError):
            while data:
                data = data[os.write(_STDERR, data) :]


def _write_private(path: Path, text: str) -> None:
    """Write a new file that only this user can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _quoted(option: str) -> str:
    """Return an option in the syntax of a Java argument file."""
    return '"' + option.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _ignore_interrupts() -> None:
    """Ignore Ctrl-C in the JVM: the terminal sends it to all processes, and this one decides when the JVM ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _read_connection(path: Path) -> tuple[int, str]:
    from pyspark.serializers import UTF8Deserializer, read_int

    with path.open("rb") as file:
        return read_int(file), UTF8Deserializer().loads(file)  # type: ignore[no-untyped-call]


def _escaped(text: str) -> str:
    """Return a name or value in the syntax of java.util.Properties."""
    plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_/,*+@%"
    units = text.encode("utf-16-be", "surrogatepass")
    codes = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(code) if chr(code) in plain else f"\\u{code:04x}" for code in codes)


def end_process(status: int) -> NoReturn:
    """End this process and its JVM at once, like a crash, after which the next run loses and duplicates nothing.

    Threads that wait for the JVM would print stack traces when it is gone, so nothing goes to stderr any more.
    """
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    kill()
    if private_folder.cache_info().currsize:
        shutil.rmtree(private_folder(), ignore_errors=True)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(status)


def kill() -> None:
    """End the JVM of this process, which starts no other."""
    global _is_ended  # noqa: PLW0603
    with _lock:
        _is_ended = True
    for process in _processes:
        if process.poll() is None:
            _kill_with_children(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=5)


def _kill_with_children(pid: int) -> None:
    """Kill a process and, on Linux, all processes that it started.

    The script spark-submit becomes the JVM, but starts other processes first. While it is stopped it starts no more.
    """
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + _STOP_SECONDS
        while _state(pid) not in "TtZX" and time.monotonic() < deadline:
            time.sleep(_STOP_SECONDS / 100)
        children = Path(f"/proc/{pid}/task/{pid}/children")
        for child in map(int, children.read_text().split() if children.exists() else ()):
            _kill_with_children(child)
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)


def _state(pid: int) -> str:
    """Return the state of a process as in `ps`, X if it is unknown."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
    except (OSError, IndexError):
        return "X"


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """While Spark starts, let SIGINT and SIGTERM end the process and the JVM, with status 130 or 143."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        end_process(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)
