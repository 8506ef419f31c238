"""What `grouptrail doctor` says of versions, of the brokers' log files, and of TLS and logins of its own server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import bcrypt
import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.broker_log import inspection
from grouptrail.config import Config
from grouptrail.runtime import doctor
from support import broker_log_lines as lines
from support.certificates import Authority, self_signed

INSTALLED = {"pyspark": "4.2.0", "delta-spark": "4.4.0", "deltalake": "1.6.6", "kafka-python": "3.0.12"}
REQUIRED = ["pyspark==4.2.0", "delta-spark==4.4.0", "deltalake>=1.6", "kafka-python[lz4]>=3.0"]


@pytest.mark.parametrize(
    ("installed", "state", "remedy"),
    [
        ({}, "ok", ""),
        ({"pyspark": "4.3.0"}, "warn", "pip install 'pyspark==4.2.0'"),
        ({"delta-spark": "4.4.1", "pyspark": "4.3.0"}, "warn", "pip install 'pyspark==4.2.0' 'delta-spark==4.4.0'"),
        ({"deltalake": "1.5.9"}, "FAIL", "pip install 'deltalake>=1.6'"),
        ({"kafka-python": "2.3.1"}, "FAIL", "pip install 'kafka-python>=3.0'"),
    ],
)
def test_check_versions_installed_packages_are_compared_with_the_requirements(
    monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], state: str, remedy: str
) -> None:
    monkeypatch.setattr(doctor, "version", (INSTALLED | installed).__getitem__)
    monkeypatch.setattr(doctor, "requires", lambda _package: [*REQUIRED, "mypy>=9; extra == 'dev'"])
    [finding] = doctor.check_versions(Config())
    assert finding.status == state
    assert finding.text.endswith(remedy)


@pytest.mark.parametrize(
    ("minutes", "status", "text"),
    [
        (10_080.0, "ok", "as assumed"),
        (None, "ok", "is not shown (it needs DESCRIBE_CONFIGS on the cluster): history assumes 10080"),
        (1_440.0, "warn", "for 1440 min, history assumes 10080: set history.offsets_retention_minutes = 1440"),
    ],
)
def test_retention_of_the_brokers_is_compared_with_the_setting(minutes: float | None, status: str, text: str) -> None:
    finding = doctor._retention(minutes, 10_080.0)
    assert (finding.status, text in finding.text) == (status, True)


MEMBER = "app-17e0bb30-0f94-4806-9276-0ad8e0e4ceea"
LINE = lines.plain(0, lines.failed("orders", MEMBER))
OTHER = "[2026-11-28 09:00:01,000] INFO started (kafka.server.KafkaServer)"


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (
            f"{LINE}\n{OTHER}\n",
            "ok",
            "2 lines of text, 1 of group coordinators at level INFO, the newest of 2026-11-28",
        ),
        (f"{lines.structured(0, lines.failed('orders', MEMBER))}\n", "ok", "1 line of JSON, 1 of group coordinators"),
        (f"{OTHER}\n", "warn", "none of a group coordinator at level INFO: set the logger org.apache.kafka."),
        (f"{LINE.replace('INFO', 'WARN')}\n", "warn", "none of a group coordinator at level INFO"),
        ("what is this\n", "warn", "1 line, none in a known layout: use one of those in docs/broker-log.md"),
        ("", "ok", "is empty"),
        (None, "warn", "does not exist yet: check broker_log.files"),
    ],
)
def test_check_broker_log_names_what_keeps_a_file_from_being_used(
    tmp_path: Path, content: str | None, status: str, text: str
) -> None:
    path = tmp_path / "server.log"
    if content is not None:
        path.write_text(content)
    [finding] = doctor.check_broker_log(Config(broker_log={"files": [str(path)]}))  # type: ignore[arg-type]
    assert (finding.status, finding.subject, text in finding.text) == (status, "brokerlog", True), finding.text
    assert finding.text.startswith(str(path))


def test_check_broker_log_looks_at_the_end_of_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "LAST_BYTES", 1_000)
    path = tmp_path / "server.log"
    path.write_text(f"{'nothing' * 1_000}\n{LINE}\n")
    [finding] = doctor.check_broker_log(Config(broker_log={"files": [str(path)]}))  # type: ignore[arg-type]
    assert (finding.status, "1 line in its last" in finding.text) == ("ok", True), finding.text


def test_check_broker_log_of_a_pattern_and_of_a_folder_says_what_is_wrong(tmp_path: Path) -> None:
    files = [str(tmp_path / "*.log"), str(tmp_path)]
    none, folder = doctor.check_broker_log(Config(broker_log={"files": files}))  # type: ignore[arg-type]
    assert (none.status, "no file matches this pattern yet" in none.text) == ("warn", True)
    assert (folder.status, "cannot be read" in folder.text) == ("FAIL", True)


def test_check_broker_log_without_files_says_nothing() -> None:
    assert list(doctor.check_broker_log(Config())) == []


HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
TLS = "tls_server_config: {cert_file: certificate.pem, key_file: key.pem"
MUTUAL = f"{TLS}, client_ca_file: clients.pem, client_auth_type: RequireAndVerifyClientCert}}"


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    self_signed(tmp_path)
    Authority(tmp_path, "clients")
    return tmp_path


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        ("{}", "ok", "neither TLS nor users"),
        (f"{TLS}}}", "ok", "TLS"),
        (f"{MUTUAL}\nbasic_auth_users: {{prometheus: {HASH}}}", "ok", "TLS, client certificates, passwords"),
        (None, "FAIL", "(No such file or directory): check exporter.web_config_file"),
        ("", "FAIL", "is empty: write {} for neither TLS nor users"),
        (
            "basic_auth_users: {prometheus: geheim}",
            "FAIL",
            "is no hash of bcrypt: make one with `htpasswd -nBC 10 USER`",
        ),
        (f"{TLS.replace('key.pem', 'gone.pem')}}}", "FAIL", "gone.pem: check the files that it names"),
        (f"{TLS.replace('key_file: key', 'key_file: certificate')}}}", "FAIL", "check the files that it names"),
    ],
)
def test_check_web_says_what_a_web_configuration_file_has_or_why_it_cannot_be_used(
    certificates: Path, content: str | None, status: str, text: str
) -> None:
    path = certificates / "web.yml"
    if content is not None:
        path.write_text(content)
    [finding] = doctor.check_web(Config(exporter={"web_config_file": path}))  # type: ignore[arg-type]
    assert (finding.status, finding.subject) == (status, "web")
    assert str(path) in finding.text
    assert finding.text.endswith(text)
    assert "geheim" not in finding.text


def test_check_web_names_what_the_settings_of_the_exporter_require(certificates: Path) -> None:
    token = certificates / "token"
    token.write_text("0123456789abcdef")
    token.chmod(0o600)
    files = {"tls_certificate": certificates / "certificate.pem", "tls_key": certificates / "key.pem"}
    config: dict[str, Any] = {"exporter": files, "web": {"token_file": token}}
    [finding] = doctor.check_web(Config(**config))
    assert (finding.status, finding.text) == ("ok", "127.0.0.1:9308: TLS, a token for pages")
    token.chmod(0o644)
    [finding] = doctor.check_web(Config(**config))
    assert (finding.status, finding.text.endswith(f"chmod o= {token}")) == ("FAIL", True)


def test_check_web_without_protection_says_nothing() -> None:
    assert list(doctor.check_web(Config())) == []


def test_doctor_takes_the_web_configuration_file_as_serve_does(tmp_path: Path) -> None:
    options = ["--bootstrap-server", "127.0.0.1:1", "--warehouse", str(tmp_path), "--web.config.file", "gone.yml"]
    result = CliRunner().invoke(cli.app, ["doctor", *options])
    assert "FAIL  web        cannot read gone.yml (No such file or directory)" in result.stdout
