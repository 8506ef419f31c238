"""A Kerberos KDC of MIT for the tests: the one on PATH, else Debian's packages, unpacked into the cache folder.

It runs on a loopback port without root, with a krb5.conf and a database of its own.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

from grouptrail.errors import GrouptrailError
from servers import debian, processes
from servers.ports import free_port

REALM = "GROUPTRAIL.TEST"
_PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit", "klist")
_START_SECONDS = 30
_POLL_SECONDS = 0.05


class NoKdcError(GrouptrailError):
    """The KDC is not available, or does not start."""


@cache
def _installation() -> Path | NoKdcError | None:
    """Return the folder with Debian's packages; None if all programs are on PATH."""
    if all(shutil.which(name) for name in _PROGRAMS):
        return None
    try:
        root = debian.unpacked("kerberos", "krb5-kdc", "krb5-admin-server", "krb5-user", with_dependencies=True)
        (root / "usr" / "sbin" / "krb5kdc").stat()
    except (OSError, subprocess.SubprocessError) as error:
        return NoKdcError(
            f"no krb5kdc on PATH, and Debian's packages cannot be had ({error}): install krb5-kdc, krb5-admin-server "
            "and krb5-user"
        )
    return root


class Kdc:
    """A KDC with its files under `directory`; its tickets live for an hour, or what `limit` says.

    The process dies with this one. Raises NoKdcError if there is no KDC on this machine.
    """

    def __init__(self, directory: Path) -> None:
        installation = _installation()
        if isinstance(installation, NoKdcError):
            raise installation
        self._root = installation
        self.directory = directory.absolute()
        self.directory.mkdir(parents=True)
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.log_file = self.directory / "kdc.log"
        self.config = self.write_config("krb5.conf")
        self._write_settings()
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def write_config(self, name: str, port: int | None = None) -> Path:
        """Write a krb5.conf for clients, by default of this KDC."""
        settings = {"default_realm": REALM, "dns_lookup_kdc": "false", "clockskew": "5", "udp_preference_limit": "1"}
        lines = ["[libdefaults]", *(f"  {key} = {value}" for key, value in settings.items())]
        lines += ["[realms]", f"  {REALM} = {{", f"    kdc = 127.0.0.1:{port or self._port}", "  }"]
        file = self.directory / name
        file.write_text("\n".join([*lines, ""]))
        return file

    def _write_settings(self) -> None:
        settings = {
            "database_name": self.directory / "principal",
            "key_stash_file": self.directory / "stash",
            "acl_file": self.directory / "kadm5.acl",
            "kdc_listen": '""',  # TCP alone
            "kdc_tcp_listen": f"127.0.0.1:{self._port}",
            "max_life": "1h",
            "supported_enctypes": "aes256-cts-hmac-sha1-96:normal",
            "default_principal_flags": "+preauth",
        }
        realm = "".join(f"    {key} = {value}\n" for key, value in settings.items())
        modules = next(self._root.rglob("db2.so")).parent if self._root else None
        database = f"[dbmodules]\n  db_module_dir = {modules}\n" if modules else ""
        (self.directory / "kdc.conf").write_text(
            f"[realms]\n  {REALM} = {{\n{realm}  }}\n[logging]\n  kdc = FILE:{self.log_file}\n{database}"
        )

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Self:
        """Return once it accepts connections; after `stop` it has its port and database again."""
        with (self.directory / "output.log").open("ab") as output:
            command = [self._program("krb5kdc"), "-n"]
            self._process = processes.launch(command, stdout=output, stderr=output, environ=self._environment())
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), 1).close()
            except OSError:
                time.sleep(_POLL_SECONDS)
            else:
                return self
        self.stop()
        raise NoKdcError(f"krb5kdc did not start: {(self.directory / 'output.log').read_text().strip()}")

    def stop(self) -> None:
        """Kill it."""
        if self._process is not None:
            processes.kill(self._process)
            self._process = None

    def keytab(self, name: str, principal: str) -> Path:
        """Create a principal with a random key and return its keytab; an existing one gets a new key."""
        file = self.directory / name
        file.unlink(missing_ok=True)
        self._administer(f"addprinc -randkey {principal}")
        self._administer(f"ktadd -k {file} {principal}")
        return file

    def limit(self, principal: str, seconds: int) -> None:
        """Let later tickets of a principal live for so long; they do not live longer than the KDC's own."""
        self._administer(f'modprinc -maxlife "{seconds} seconds" {principal}')

    def delete(self, principal: str) -> None:
        """Delete a principal."""
        self._administer(f"delprinc -force {principal}")

    def kinit(self, keytab: Path, principal: str, cache: Path, *options: str) -> None:
        """Get a ticket into a ticket cache, as a user does."""
        self._run("kinit", *options, "-k", "-t", str(keytab), "-c", str(cache), principal)

    def logins(self, principal: str) -> int:
        """Return how many tickets it has issued to a principal that logged in."""
        issued = (line for line in self.log_file.read_text().splitlines() if "AS_REQ" in line and "ISSUE" in line)
        return sum(f" {principal}@{REALM} for krbtgt/" in line for line in issued)

    def _administer(self, query: str) -> None:
        self._run("kadmin.local", "-r", REALM, "-q", query)

    def _run(self, name: str, *arguments: str) -> None:
        command = [self._program(name), *arguments]
        done = subprocess.run(command, env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NoKdcError(f"{name} {' '.join(arguments)} failed: {done.stderr.strip()}")

    def _program(self, name: str) -> str:
        if self._root is None:
            return name
        return str(next(path for folder in ("sbin", "bin") if (path := self._root / "usr" / folder / name).exists()))

    def _environment(self) -> Mapping[str, str]:
        ours = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf")}
        if self._root is not None:
            ours["LD_LIBRARY_PATH"] = os.pathsep.join(
                sorted({str(path.parent) for path in self._root.rglob("lib*.so.*")})
            )
        return os.environ | ours
