"""No command, page, metric or log line shows a secret of the settings, whatever goes wrong."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
import re
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import typer
from typer.testing import CliRunner

from grouptrail.cli import app
from grouptrail.config import Config, load_config
from grouptrail.console import signals
from grouptrail.locations import shown, with_locations_shown
from grouptrail.runtime.serving import exporter_with_pages
from grouptrail.spark import session
from grouptrail.spark.java import JavaError
from grouptrail.storage.location import TableLocation
from servers.object_store import BUCKET, object_store, upload
from support.canaries import CANARY, LOGIN, TOKEN, planted, write
from support.sample_history import lay_sample_history
from support.web_client import Site, fetched

READABLE = f"s3://{CANARY}-user:{CANARY}@{BUCKET}/lake"
ADDRESSES = {
    "readable": READABLE,
    "query": f"{READABLE}?sig={CANARY}",
    "damaged": f"s3://{CANARY}-user:{CANARY}@{BUCKET}/damaged",
    "no-bucket": f"s3a://{CANARY}@nobody/lake?sig={CANARY}",
    "no-url": f"s3://{LOGIN}@{BUCKET}/lake",
    "only-spark": f"hdfs://{CANARY}:{CANARY}@127.0.0.1:1/lake?{CANARY}",
}
# The same settings with other rows or fewer: all commands with them are for a full run.
MARKS = {name: [pytest.mark.full] if name in ("readable", "damaged") else [] for name in ADDRESSES}
WEBHOOK = f"http://{CANARY}:{CANARY}@127.0.0.1:1/hook/{CANARY}?key={CANARY}"

# By the name of the parameter. A command with another one that it needs must be added here.
ARGUMENTS = {
    "group": "billing",
    "name": "billing",
    "first": "2h",
    "from_": "2h",
    "what": "history",
    "folder": ".",
}
MORE_CALLS = (
    ("sql", "SELECT * FROM group_states"),
    ("sql", "SELECT nothing FROM group_states"),
    ("sql", "EXPLAIN SELECT * FROM group_states"),
    ("sql", "--engine", "spark", "SELECT * FROM group_states"),
    ("sql", "SELECT * FROM group_states", "--out", "states.csv"),
    ("tables", "group_states"),
    ("check", "--docs", "."),
    ("run", "--once", "--job", "history"),
    ("contracts", "export", "--to", "openlineage"),
    ("digest", "--post", WEBHOOK),
    ("digest", "--post", f"ftp://{CANARY}"),
)
LISTEN = {"exporter": {"listen": "127.0.0.1:0"}}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options of a store that has a warehouse, and one with damaged files, and does not ask for passwords."""
    folder = tmp_path_factory.mktemp("objects")
    lay_sample_history(Config(warehouse=str(folder / "lake")))
    with object_store(folder) as options:
        upload(folder / "lake", options, "lake")
        for file in (folder / "lake").rglob("*.parquet"):
            file.write_bytes(bytes(file.stat().st_size))
        upload(folder / "lake", options, "damaged")
        yield {**options, "aws_secret_access_key": CANARY}


@pytest.fixture(autouse=True)
def ends_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Servers end as soon as they serve, no Spark and no browser is started, and files are written elsewhere."""

    def no_java() -> None:
        raise JavaError("no Java")

    monkeypatch.setattr(signals, "ending", lambda: lambda: 15)
    monkeypatch.setattr(session, "find_java", no_java)
    monkeypatch.setattr(webbrowser, "open", lambda _: True)
    monkeypatch.chdir(tmp_path)


def calls() -> Iterator[tuple[str, ...]]:
    """Every command with the arguments that it needs, and some more."""
    yield from _calls(typer.main.get_command(app))
    yield from MORE_CALLS


def _calls(command: click.Command, *names: str) -> Iterator[tuple[str, ...]]:
    for name, inner in getattr(command, "commands", {}).items():
        yield from _calls(inner, *names, name)
    if names and not hasattr(command, "commands"):
        needed = [one for one in command.params if one.required]
        options = ((one.opts[0], ARGUMENTS[one.name or ""]) for one in needed if isinstance(one, click.Option))
        arguments = (ARGUMENTS[one.name or ""] for one in needed if isinstance(one, click.Argument))
        yield (*names, *itertools.chain.from_iterable(options), *arguments)


def printed(capture: pytest.CaptureFixture[str], *arguments: str, stdin: str = "") -> str:
    """All that a command prints, by Python or below it."""
    result = CliRunner().invoke(app, arguments, input=stdin, prog_name="grouptrail")
    return result.output + "".join(capture.readouterr())


def of(address: str, store: dict[str, str], tmp_path: Path, **sections: dict[str, Any]) -> Path:
    return write(tmp_path / "canaries.toml", planted(address), storage=store, **LISTEN, **sections)


@pytest.mark.parametrize(
    ("address", "debug"),
    [
        pytest.param("readable", (), id="without-debug"),
        *(pytest.param(name, ("--debug",), id=name, marks=MARKS[name]) for name in ADDRESSES),
    ],
)
def test_command_of_any_kind_prints_no_secret(
    address: str, debug: tuple[str, ...], store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = of(ADDRESSES[address], store, tmp_path)
    leaks = {}
    for call in calls():
        configured = () if call == ("decode",) else ("--config", str(file))
        text = printed(capfd, *call, *configured, *debug)
        if CANARY in text:
            leaks[call] = text
    assert leaks == {}
    assert [one for one in tmp_path.rglob("*") if one != file and one.is_file() and CANARY in one.read_text()] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"decode": {"trigger_seconds": CANARY}},
        {"exporter": {"basic_auth_password": [CANARY]}},
        {"exporter": {"basic_auth_password": ""}},
        {"kafka": {"sasl.jaas.config": [CANARY]}},
        {"kafka": {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}},
        {"kafka": {"security.protocol": "SSL", "ssl.keystore.type": "PEM"}},
        {"kafka": {"bootstrap.servers": f"SASL_SSL://{CANARY}:{CANARY}@127.0.0.1:1"}},
        {"spark": {"fs.secret": CANARY}},
        {"storage": {"aws_endpoint_url": f"http://{CANARY}:{CANARY}@127.0.0.1:1/?{CANARY}", "max_retries": "0"}},
        {"unknown": {"password": CANARY}},
        {"web": {"token": CANARY}},
    ],
    ids=str,
)
def test_command_with_wrong_settings_prints_no_secret(
    wrong: dict[str, dict[str, Any]], store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = planted(READABLE)
    sections = {"storage": store, **LISTEN}
    file = write(
        tmp_path / "canaries.toml",
        settings,
        **{name: sections.get(name, {}) | wrong.get(name, {}) for name in {**sections, **wrong}},
    )
    for command in ("config", "doctor", "run", "serve", "tables"):
        assert CANARY not in printed(capfd, command, "--config", str(file), "--debug")


@pytest.mark.parametrize("address", [f"s3://{LOGIN}@lake/%41?{CANARY}", f"s3://{CANARY}@lake/\\?{CANARY}"])
def test_command_with_unusable_address_prints_no_secret(
    address: str, store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = printed(capfd, "tables", "--config", str(of(address, store, tmp_path)), "--debug")
    assert "choose another folder" in text
    assert CANARY not in text


def test_command_with_files_that_are_no_certificates_prints_nothing_of_them(
    store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = planted(READABLE, tmp_path)
    file = write(tmp_path / "canaries.toml", settings, storage=store, **LISTEN)
    for command in ("config", "doctor", "serve", "run"):
        assert CANARY not in printed(capfd, command, "--config", str(file), "--debug")


def test_command_with_secrets_in_a_file_that_others_can_read_warns_once(
    store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """On stderr; `doctor` has it among its findings."""
    file = of(READABLE, store, tmp_path)
    file.chmod(0o644)
    warning = f"{file} has passwords, and other users can read it: chmod go= {file}"
    for command in ("config", "tables", "serve", "doctor"):
        result = CliRunner().invoke(app, [command, "--config", str(file)])
        printed = result.stdout if command == "doctor" else result.stderr
        start = "warn  settings   " if command == "doctor" else "grouptrail: warning: "
        assert f"{start}{warning}\n" in printed
        assert result.output.count(warning) == 1
        assert CANARY not in result.output


def test_command_that_fails_unexpectedly_prints_no_secret_of_an_address(
    monkeypatch: pytest.MonkeyPatch, store: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The message is a library's, in a chain of exceptions."""

    def fail(_config: Config) -> None:
        try:
            raise OSError(f"no file system for ({READABLE}?{CANARY})")
        except OSError as error:
            raise RuntimeError(f"cannot list '{READABLE}': closed") from error

    monkeypatch.setattr("grouptrail.runtime.warehouses.warehouse_of", fail)
    text = printed(capfd, "tables", "--config", str(of(READABLE, store, tmp_path)), "--debug")
    assert "RuntimeError: cannot list 's3://***@lake/lake': closed" in text
    assert "no file system for (s3://***@lake/lake?***)" in text
    assert CANARY not in text


@pytest.mark.parametrize(
    "address",
    [pytest.param(address, id=name, marks=MARKS[name]) for name, address in ADDRESSES.items()],
)
def test_served_pages_metrics_and_log_show_no_secret(address: str, store: dict[str, str], tmp_path: Path) -> None:
    config = load_config(of(address, store, tmp_path), {}, {})
    login = {"Authorization": f"Basic {base64.b64encode(f'prometheus:{CANARY}'.encode()).decode()}"}
    log: list[str] = []
    with contextlib.redirect_stderr(io.StringIO()) as errors, exporter_with_pages([config], log.append) as exporter:
        paths = ["/metrics", "/ready", "/healthz", "/nothing", "/static/nothing"]
        for rule in Site(config).rules():
            paths += [re.sub(r"<.*?>", name, str(rule)) for name in ("billing", "nobody")]
        for query in ("SELECT * FROM group_states", "SELECT nothing FROM group_states", "EXPLAIN SELECT 1"):
            paths += [f"/sql?q={query}", f"/api/v1/sql?q={query}"]
        answers = {path: fetched(exporter.url, path.replace(" ", "%20"), **login) for path in paths}
    assert len(answers) > 15
    assert {200, 404} <= {status for status, _, _ in answers.values()}
    assert {path: answer for path, answer in answers.items() if CANARY in str(answer)} == {}
    assert CANARY not in errors.getvalue() + "\n".join(log)


def test_served_pages_with_a_token_in_a_file_do_not_show_it(store: dict[str, str], tmp_path: Path) -> None:
    token_file = planted(READABLE, tmp_path)["web"]["token_file"]
    config = load_config(of(READABLE, store, tmp_path, web={"token_file": token_file}), {}, {})
    log: list[str] = []
    with exporter_with_pages([config], log.append) as exporter:
        for token in (TOKEN, "another"):
            answer = fetched(exporter.url, "/", Authorization=f"Bearer {token}")
            assert answer[0] == (200 if token == TOKEN else 401)
            assert CANARY not in str(answer)
    assert CANARY not in "\n".join(log)


@pytest.mark.parametrize("address", ADDRESSES.values(), ids=ADDRESSES)
def test_config_as_text_shows_no_secret_of_any_setting(address: str) -> None:
    """Of the settings, and of what the jobs are given."""
    config = Config.model_validate(planted(address))
    table = TableLocation("offset_commits", f"{config.warehouse}/offset_commits", config.storage_options(), "default")
    assert CANARY not in f"{config!r} {config} {config.redacted()} {config.redacted_toml()} {table!r} {table.shown}"
    assert table.shown.endswith("/offset_commits")


@pytest.mark.parametrize(
    ("location", "expected"),
    [
        ("s3://bucket/lake", "s3://bucket/lake"),
        ("/data/user:password@host?query", "/data/user:password@host?query"),
        ("file:///data/a@b", "file:///data/a@b"),
        ("s3://user:secret@bucket/lake?sig=1", "s3://***@bucket/lake?***"),
        ("s3://key/with:slash/and@at@bucket/lake", "s3://***@bucket/lake"),
        ("s3://bucket?sig=a@b", "s3://bucket?***"),
        ("s3:/user:secret@bucket", "s3:/***@bucket"),
        ("hdfs://user@namenode:8020/lake", "hdfs://***@namenode:8020/lake"),
        (
            "abfss://container@account.dfs.core.windows.net/lake",
            "abfss://container@account.dfs.core.windows.net/lake",
        ),
        ("abfss://container:key@account/lake?sas", "abfss://***@account/lake?***"),
    ],
)
def test_shown_uri_with_login_or_query_has_stars(location: str, expected: str) -> None:
    assert shown(location) == expected
    assert shown(expected) == expected
    assert with_locations_shown(f'"{location}":') == (
        f'"{expected}":' if location.partition(":/")[1] else f'"{location}":'
    )


def test_shown_text_of_any_length_takes_linear_time() -> None:
    """The names of groups are in messages: clients choose them."""
    for text in ("a" * 1_000_000, "s3:/" + ":" * 1_000_000, "s3:/" + ":@?" * 300_000, "s3:/" * 300_000):
        assert len(with_locations_shown(text)) > 0
