"""`grouptrail serve-sql` in a process of its own, and pyspark's JDBC client."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pyspark

from grouptrail.config import Config
from grouptrail.spark.java import find_java, java_environment
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.few_rows import FEW_ROWS

BEELINE = Path(pyspark.__path__[0]) / "bin" / "beeline"
# In the environment of the server.
SECRET = "hunter2-of-the-broker"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A running `grouptrail serve-sql`, its ports, and what it printed."""

    def __init__(self, example: Config, folder: Path, *arguments: str) -> None:
        self.connect, self.thrift = free_port(), free_port()
        config = folder / "grouptrail.toml"
        settings = {"spark.driver.memory": "1g", **FEW_ROWS}
        config.write_text("[spark]\n" + "".join(f'"{name}" = "{value}"\n' for name, value in settings.items()))
        self._command = Grouptrail(
            example, "serve-sql", "--config", str(config), "--connect-port", str(self.connect),
            "--thrift-port", str(self.thrift), *arguments,
            environ={"PYTHONUNBUFFERED": "1", "GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG": SECRET},
        )  # fmt: skip
        self.said = ""
        for line in self._command.lines():
            self.said += line
            if line.startswith("the schema grouptrail has"):
                break

    @property
    def jvm(self) -> int:
        """The process id of its JVM."""
        own = self._command.process.pid
        children = (children.read_text().split() for children in Path(f"/proc/{own}/task").glob("*/children"))
        [jvm] = [int(child) for group in children for child in group if _name(int(child)) == "java"]
        return jvm

    def stop(self) -> None:
        self._command.process.send_signal(signal.SIGINT)
        self._command.finished()
        assert self._command.process.returncode == 0


def _name(process: int) -> str:
    return Path(f"/proc/{process}/comm").read_text().strip()


def listening_ports(process: int) -> set[int]:
    """Return the TCP ports that a process listens on."""
    sockets = {link.readlink().name.strip("socket:[]") for link in Path(f"/proc/{process}/fd").iterdir()}
    lines = (Path("/proc/net/tcp6").read_text() + Path("/proc/net/tcp").read_text()).splitlines()
    fields = [line.split() for line in lines if " 0A " in line]
    return {int(line[1].rpartition(":")[2], 16) for line in fields if line[9] in sockets}


def beeline(port: int, *arguments: str, options: str = "") -> subprocess.CompletedProcess[str]:
    """Return the output of beeline, as CSV; `options` are those of the URL."""
    url = f"jdbc:hive2://127.0.0.1:{port}/grouptrail{options}"
    command = [str(BEELINE), "-u", url, "--outputformat=csv2", "--silent=true"]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True, text=True, timeout=scaled(120), check=False,
        env={**os.environ, **java_environment(find_java())},
    )  # fmt: skip
