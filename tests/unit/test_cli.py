"""The command line: output, errors and exit statuses of each command, mostly in a separate process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.cli.command import EXIT_BUG, EXIT_ERROR, EXIT_PIPE, EXIT_USAGE, report_errors
from grouptrail.config import Config
from grouptrail.errors import GrouptrailError
from support.deadlines import scaled, until

KEY = "0002000167"
COMMANDS = (
    *("run", "decode", "redecode", "rebuild", "sql", "serve-sql", "tables", "timeline", "report", "backtest"),
    *("serve", "open", "doctor", "check", "repair", "maintain", "config"),
)


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test in an empty folder and without GROUPTRAIL_ variables."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("GROUPTRAIL_")]:
        monkeypatch.delenv(name)


def grouptrail(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "grouptrail", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=scaled(60), check=False)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str) -> None:
    """The command is also in the list of `grouptrail --help`."""
    result = CliRunner().invoke(cli.app, [command, "--help"])
    assert result.exit_code == 0
    assert "--debug" in result.output
    assert command in CliRunner().invoke(cli.app, ["--help"]).output


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "decode"])
def test_command_help_lists_the_configuration_options(command: str) -> None:
    """The only command without them is decode: it needs no configuration."""
    text = CliRunner().invoke(cli.app, [command, "--help"]).output
    for option in ("--config", "--cluster", "--warehouse", "--bootstrap-server", "--set"):
        assert option in text


def test_help_lists_commands_and_options_in_groups() -> None:
    """`-h` is `--help`; the options of the configuration come last."""
    text = CliRunner().invoke(cli.app, ["-h"]).output
    assert text == CliRunner().invoke(cli.app, ["--help"]).output
    headings = [line for line in text.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "Options:", "Run the pipeline:", "Look at groups:", "Serve others:", "Records and tables:"
    ]  # fmt: skip
    text = CliRunner().invoke(cli.app, ["show", "lag", "-h"]).output
    assert text.index("Options:") < text.index("--watch") < text.index("Configuration:") < text.index("--warehouse")


def test_every_option_that_takes_a_time_names_the_time_zone() -> None:
    for command in (["show", "group"], ["backtest"], ["timeline"], ["check"]):
        text = " ".join(CliRunner().invoke(cli.app, [*command, "--help"]).output.split())
        assert "03:12, yesterday, '2h ago' or 2026-11-21T14:55:00Z; UTC unless it has an offset" in text


def test_decode_imports_no_spark_arrow_delta_or_configuration() -> None:
    """It starts in a fraction of a second; typer may import pydantic, but no configuration is loaded."""
    program = (
        "import sys; sys.argv = ['grouptrail', 'decode', '0002000167']\n"
        "from grouptrail.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "heavy = {'pyspark', 'pandas', 'numpy', 'pyarrow', 'deltalake', 'kafka', 'rich', 'grouptrail.config'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert run.stderr == "[]\n"
    assert json.loads(run.stdout)["key"]["data"] == {"group": "g"}


def test_cli_module_import_does_not_load_pyspark_or_deltalake() -> None:
    """A misspelt command is reported without waiting for heavy imports."""
    program = "import sys, grouptrail.cli; print('pyspark' in sys.modules or 'deltalake' in sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert run.stdout == "False\n"


def test_decode_hex_arguments_prints_the_decoded_json() -> None:
    """A key without a value is a tombstone; --blob selects the layout of an embedded blob."""
    assert json.loads(grouptrail("decode", KEY).stdout)["value"] is None
    assert json.loads(grouptrail("decode", KEY, "ffff").stdout)["error"]["kind"] == "unknown_version"
    blob = grouptrail("decode", "--blob", "ConsumerProtocolAssignment", "00000000000000000000")
    assert json.loads(blob.stdout)["data"] == {"assignedPartitions": [], "userData": ""}


def test_decode_topic_option_applies_to_hex_arguments_and_to_lines_without_a_topic() -> None:
    tombstone = "0001000167000174" + "00" * 17
    share = {"type": 1, "data": {"groupId": "g", "topicId": "AAF0" + "A" * 18, "partition": 0}}
    topic = ("decode", "--topic", "__share_group_state")
    assert json.loads(grouptrail(*topic, tombstone).stdout)["key"] == share
    assert json.loads(grouptrail(*topic, stdin=f'{{"key_hex": "{tombstone}"}}').stdout)["key"] == share
    assert "'__consumer_offsets', '__share_group_state'" in grouptrail("decode", "--topic", "orders", KEY).stderr


def test_decode_unusable_line_is_counted_on_stderr_and_exits_1() -> None:
    """Every input line has its result on stdout; stderr has one line with the number of invalid ones."""
    run = grouptrail("decode", stdin=f'{{"key_hex": "{KEY}"}}\nnonsense\n{{"key_hex": "{KEY}"}}')
    assert [json.loads(line)["error"] is None for line in run.stdout.splitlines()] == [True, False, True]
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        'grouptrail: 1 line is not valid input: look for "where": "input" in the output'
    ]


def test_decode_too_large_line_is_answered_and_the_message_names_the_option() -> None:
    lines = f'{{"key_hex": "{KEY}"}}\n{{"key_hex": "{"0" * 200_000}"}}\n{{"key_hex": "{KEY}"}}'
    run = grouptrail("decode", "--max-record-bytes", "1000", stdin=lines)
    assert [json.loads(line)["error"] is None for line in run.stdout.splitlines()] == [True, False, True]
    assert run.returncode == 1
    assert run.stderr.splitlines() == [
        "grouptrail: 1 line is not valid input, 1 because of more than 1,000 bytes: "
        'look for "too_large" in the output, or raise --max-record-bytes'
    ]


def test_decode_open_stdin_pipe_answers_each_line_at_once() -> None:
    """A program can read each result without closing the pipe first."""
    command = [sys.executable, "-m", "grouptrail", "decode"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as talk:
        assert talk.stdin is not None
        assert talk.stdout is not None
        for group in ("67", "68"):
            talk.stdin.write(f'{{"key_hex": "00020001{group}"}}\n')
            talk.stdin.flush()
            answer = json.loads(talk.stdout.readline())
            assert answer["key"]["data"]["group"] == bytes.fromhex(group).decode()


@pytest.mark.parametrize(
    ("arguments", "stdin"), [(["decode"], f'{{"key_hex": "{KEY}"}}\n' * 20_000), (["decode", KEY], "")]
)
def test_decode_stdout_closed_exits_without_stderr_output(arguments: list[str], stdin: str) -> None:
    """As in `grouptrail decode | head -1`; also where all output is still in the buffer."""
    command = [sys.executable, "-m", "grouptrail", *arguments]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:  # type: ignore[call-overload]
        run.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            run.stdin.write(stdin)
            run.stdin.close()
        assert run.stderr.read() == ""
        assert run.wait(timeout=scaled(30)) == EXIT_PIPE


def test_decode_sigint_exits_130_without_stderr_output() -> None:
    """Ctrl-C ends the command with 130 and prints nothing."""
    command = [sys.executable, "-m", "grouptrail", "decode"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as run:  # type: ignore[call-overload]
        run.stdin.write(f'{{"key_hex": "{KEY}"}}\n')
        run.stdin.flush()
        assert run.stdout.readline()
        run.send_signal(signal.SIGINT)
        assert run.wait(timeout=scaled(30)) == 130
        assert run.stderr.read() == ""


@pytest.mark.parametrize("imported", ["typer", "grouptrail.cli.metrics", "pydantic", "grouptrail.runtime.pipeline"])
def test_interrupt_while_something_is_imported_ends_without_traceback(imported: str) -> None:
    program = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        f"        if name == '{imported}':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from grouptrail.__main__ import main\n"
        "main()"
    )
    run = subprocess.run([sys.executable, "-c", program, "run"], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (-signal.SIGINT, "", "")


def test_without_a_command_the_help_is_printed_in_lines() -> None:
    for arguments in ((), ("show",)):
        run = grouptrail(*arguments)
        assert run.returncode == EXIT_USAGE
        assert "Options:\n  -" in run.stdout + run.stderr, run


def test_cli_invalid_arguments_exit_with_usage_error_naming_the_option() -> None:
    """The exit status is 2 and the message contains the option's name."""
    for arguments, expected in (
        (["decode", "00", "00", "00"], "KEY_HEX"),
        (["sql"], "--file"),
        (["sql", "SELECT 1", "--format", "xml"], "--format"),
        (["sql", "SELECT 1", "--format", "parquet"], "--out"),
        (["sql", "SELECT 1", "--engine", "duckdb"], "--engine"),
        (["serve-sql", "--thrift-port", "0"], "--thrift-port"),
        (["config", "--set", "cluster"], "--set"),
        (["run", "--job", "nosuchjob"], "--job"),
        (["maintain", "nosuchtable"], "nosuchtable"),
        (["check", "nosuchtable"], "nosuchtable"),
        (["check", "--since", "soon"], "--since"),
        (["nosuchcommand"], "nosuchcommand"),
    ):
        result = CliRunner().invoke(cli.app, arguments)
        assert result.exit_code == EXIT_USAGE, (arguments, result.output)
        assert expected in result.output


def test_cli_error_prints_one_line_and_a_traceback_only_with_debug() -> None:
    """The exit status is 1; only --debug prints the stack trace."""
    run = grouptrail("sql", "SELECT * FROM offset_commits")
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr.startswith("grouptrail: nothing has landed in offset_commits")
    assert run.stderr.count("\n") == 1
    debugged = grouptrail("sql", "SELECT * FROM offset_commits", "--debug")
    assert "Traceback" in debugged.stderr
    assert debugged.stderr.endswith(run.stderr)


def test_cli_unexpected_exception_prints_one_line_and_exits_with_bug_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has the exception's name; exit status 70 marks a bug to report."""
    from grouptrail.query import sql

    monkeypatch.setattr(sql, "print_columns", lambda *_, **__: 1 / 0)
    result = CliRunner().invoke(cli.app, ["tables", "offset_commits"])
    assert result.exit_code == EXIT_BUG
    [line] = result.stderr.splitlines()
    assert line.startswith("grouptrail: ZeroDivisionError: division by zero; run again with --debug")


def test_config_command_invalid_settings_lists_every_problem() -> None:
    """Problems of flags and file are listed together."""
    Path("grouptrail.toml").write_text("clustr = 'x'\n")
    run = grouptrail("config", "--bootstrap-server", "nowhere", "--set", "decode.trigger_seconds=soon")
    assert run.returncode == 1
    assert run.stderr.splitlines()[0] == "grouptrail: 3 problems in the configuration:"
    for place in ("--bootstrap-server: ", "--set decode.trigger_seconds: ", "grouptrail.toml: clustr: "):
        assert place in run.stderr


def test_config_command_prints_toml_with_secrets_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The output is a valid configuration file."""
    import tomllib

    monkeypatch.setenv("GROUPTRAIL_KAFKA__SSL_KEY_PASSWORD", "hunter2")
    run = CliRunner().invoke(cli.app, ["config", "--cluster", 'a"b', "--bootstrap-server", "b:1"])
    assert "hunter2" not in run.output
    shown = tomllib.loads(run.output)
    assert shown["cluster"] == 'a"b'
    assert shown["kafka"] == {"bootstrap.servers": "b:1", "ssl.key.password": "**********"}


def test_sql_query_is_read_from_argument_file_or_stdin() -> None:
    """The result is the same for all three."""
    Path("query.sql").write_text("SELECT 1 AS one")
    for arguments, stdin in (
        (["SELECT 1 AS one"], ""),
        (["--file", "query.sql"], ""),
        (["-"], "SELECT 1 AS one"),
    ):
        run = grouptrail("sql", *arguments, "--format", "json", stdin=stdin)
        assert run.stdout == '{"one": 1}\n', run.stderr


def test_sql_out_option_writes_the_file_and_nothing_to_stdout() -> None:
    """The result goes to the file only."""
    run = grouptrail("sql", "SELECT 1 AS one", "--format", "csv", "--out", "answer.csv")
    assert (run.returncode, run.stdout, Path("answer.csv").read_text()) == (0, "", "one\n1\n")


def test_sql_without_query_opens_the_prompt_only_on_a_terminal() -> None:
    """Where stdin is not a terminal, a missing query is a usage error."""
    program = (
        "import sys; sys.argv = ['grouptrail', 'sql']; sys.stdin.isatty = lambda: {terminal}\n"
        "from grouptrail import cli; from grouptrail.query import prompt\n"
        "prompt.prompt = lambda context, out: print('prompted', file=out)\n"
        "cli.main()"
    )
    for terminal, ended in ((True, (0, "prompted\n")), (False, (EXIT_USAGE, ""))):
        command = [sys.executable, "-c", program.format(terminal=terminal)]
        run = subprocess.run(
            command, capture_output=True, text=True, timeout=scaled(60), check=False, stdin=subprocess.DEVNULL
        )
        assert (run.returncode, run.stdout) == ended


def test_run_starts_the_selected_jobs_of_the_selected_clusters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default no job is named, and the settings of each of all clusters decide (`jobs.jobs_for`)."""
    from grouptrail import jobs
    from grouptrail.runtime import pipeline

    calls: list[tuple[list[str], tuple[str, ...], bool]] = []

    def run(configs: Sequence[Config], *, jobs: tuple[str, ...], once: bool) -> None:
        calls.append(([config.cluster for config in configs], jobs, once))

    monkeypatch.setattr(pipeline, "run", run)
    monkeypatch.setattr(jobs, "JOBS", (jobs.DECODE, replace(jobs.DECODE, name="other")))
    assert CliRunner().invoke(cli.app, ["run", "--cluster", "c"]).exit_code == 0
    assert CliRunner().invoke(cli.app, ["run", "--job", "other", "--once"]).exit_code == 0
    two = tmp_path / "two.toml"
    two.write_text("[clusters.a]\n[clusters.b]\n")
    assert CliRunner().invoke(cli.app, ["run", "--config", str(two)]).exit_code == 0
    assert CliRunner().invoke(cli.app, ["run", "--config", str(two), "--cluster", "b"]).exit_code == 0
    assert calls == [
        (["c"], (), False), (["default"], ("other",), True), (["a", "b"], (), False), (["b"], (), False),
    ]  # fmt: skip


def test_doctor_fails_without_a_broker(tmp_path: Path) -> None:
    """There is one line for each check, passed ones included; checks that need the broker are skipped."""
    started = time.monotonic()
    result = CliRunner().invoke(
        cli.app, ["doctor", "--bootstrap-server", "127.0.0.1:1", "--warehouse", str(tmp_path)]
    )
    assert result.exit_code == 1
    states = {line.split()[1]: line.split()[0] for line in result.stdout.splitlines()}
    assert states["broker"] == "FAIL"
    assert (states["python"], states["versions"], states["warehouse"]) == ("ok", "ok", "ok")
    assert "topic" not in states
    assert time.monotonic() - started < scaled(30)


def test_doctor_unwritable_warehouse_fails_the_warehouse_check(tmp_path: Path) -> None:
    """A file in place of the folder makes it unwritable even for root."""
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(
        cli.app, ["doctor", "--bootstrap-server", "127.0.0.1:1", "--warehouse", str(tmp_path / "file" / "lake")]
    )
    [line] = [line for line in result.stdout.splitlines() if " warehouse " in line]
    assert line.startswith("FAIL")
    assert "--warehouse" in line


def test_cli_grouptrail_error_subclass_exits_with_error_status() -> None:
    """Subclasses of GrouptrailError end with 1, not 70."""

    class KnownError(GrouptrailError):
        pass

    import typer

    with pytest.raises(typer.Exit) as ended, report_errors(debug=False):
        raise KnownError("message")
    assert ended.value.exit_code == EXIT_ERROR


# --- lag ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "3 pm"], "'3 pm' is not a time: use one such as 2026-11-21T14:55:00Z, 03:12 (its last"),
        (["--from", "7d", "--to", "soon"], "'soon' is not a time: use"),
        (["--from", "7d", "--status", "LATE"], "'LATE' is not one of REWIND, STALL, STOP"),
        (["--from", "7d", "--for", "-1"], "-1"),
        ([], "--from"),
    ],
)
def test_backtest_invalid_options_exit_with_usage_error(arguments: list[str], expected: str) -> None:
    """Options are checked before any table is read."""
    result = CliRunner().invoke(cli.app, ["backtest", *arguments])
    assert result.exit_code == EXIT_USAGE
    assert expected in result.stderr


@pytest.mark.parametrize("command", [["show", "lag"], ["backtest", "--from", "7d"]])
def test_lag_commands_without_consumer_lag_table_print_one_line_error(command: list[str], tmp_path: Path) -> None:
    """The line names the missing table and the location searched."""
    result = CliRunner().invoke(cli.app, [*command, "--warehouse", str(tmp_path)])
    assert result.exit_code == EXIT_ERROR
    assert result.stderr.startswith("grouptrail: nothing has landed in consumer_lag under")
    assert result.stderr.count("\n") == 1


# --- serve --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def serving(
    *command: str, warehouse: Path, ended_by: signal.Signals = signal.SIGINT, environ: Mapping[str, str] = os.environ
) -> Iterator[Callable[[], str]]:
    """Run a command that serves on a free port, until the block's end; yield what reads a line of its stderr."""
    options = ["--listen", "127.0.0.1:0", "--warehouse", str(warehouse)]
    run = [sys.executable, "-m", "grouptrail", *command, *options]
    with subprocess.Popen(run, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            assert process.stderr is not None
            yield process.stderr.readline
            process.send_signal(ended_by)
            assert process.wait(timeout=scaled(60)) == 128 + ended_by
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()


def test_serve_answers_healthz_until_sigint(tmp_path: Path) -> None:
    """/healthz answers even while the warehouse has no tables yet."""
    with serving("serve", "--also-as", "kminion,burrow", warehouse=tmp_path) as next_line:
        url = next_line().removeprefix("serving ").split("/metrics")[0]
        with urllib.request.urlopen(f"{url}/healthz", timeout=scaled(60)) as answer:
            assert answer.status == 200


def opening(tmp_path: Path, browser: str) -> tuple[str, list[str]]:
    """Run `grouptrail open` with a browser; return the address that it got, and what the command reported."""
    visited = tmp_path / "visited"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > "{visited}.part" && /bin/mv "{visited}.part" "{visited}"\n')
    script.chmod(0o755)
    environ = {**os.environ, "BROWSER": browser.format(script=script), "PATH": str(tmp_path), "DISPLAY": ""}
    with serving("open", warehouse=tmp_path, environ=environ) as next_line:
        lines = [next_line()]
        if "{script}" in browser:
            until(visited.exists)
        else:
            lines.append(next_line())
    return visited.read_text().strip() if visited.exists() else "", lines


def test_open_serves_and_opens_the_address_in_the_browser(tmp_path: Path) -> None:
    url, [line] = opening(tmp_path, "{script} %s")
    assert url.startswith("http://127.0.0.1:")
    assert line.startswith(f"serving {url}")


def test_open_without_a_browser_says_the_address(tmp_path: Path) -> None:
    _, [line, hint] = opening(tmp_path, "no-such-browser")
    url = line.removeprefix("serving ").split("metrics")[0]
    assert hint == f"no browser could be opened here: open {url}\n"


def test_serve_port_in_use_or_unknown_also_as_exits_1_with_message(tmp_path: Path) -> None:
    """--also-as rejects exporters whose names are not supported."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        result = grouptrail("serve", "--listen", listen, "--warehouse", str(tmp_path))
    assert result.returncode == 1
    assert (
        result.stderr
        == f"grouptrail: cannot listen on {listen} (Address already in use): choose another with --listen\n"
    )
    result = grouptrail("serve", "--also-as", "telegraf")
    assert result.returncode == 1
    assert result.stderr.startswith("grouptrail: --set exporter.also_as: Input should be 'kafka_exporter'")


def test_serve_sigterm_exits_143_without_traceback(tmp_path: Path) -> None:
    """SIGTERM is how systemd and Kubernetes stop a service: it is not an error."""
    with serving("serve", warehouse=tmp_path, ended_by=signal.SIGTERM) as next_line:
        next_line()


@pytest.mark.parametrize(
    "arguments",
    [
        ["\x1b[31mred"],
        ["sql", "--\x1b[31mred"],
        ["--\x1b[31mred"],
        ["run", "--job", "\x1b[31mred"],
        ["show", "\x1b[31mred"],
        ["show", "lag", "--format", "\x1b[31mred"],
        ["decode", "--max-record-bytes", "\x1b[31mred"],
        ["config", "--set", "\x1b[31mred=1"],
    ],
    ids=lambda arguments: arguments[0].strip("\x1b"),
)
def test_usage_error_repeats_no_control_character_of_an_argument(arguments: list[str]) -> None:
    run = CliRunner().invoke(cli.app, arguments)
    assert run.exit_code in (1, 2)
    assert "\x1b" not in run.output
    assert "\\x1b[31mred" in run.stderr


def test_check_of_a_mistyped_warehouse_creates_no_folder(tmp_path: Path) -> None:
    """Before Spark is started; so do the other commands that need tables."""
    mistyped = tmp_path / "mistyped"
    for command in (["check"], ["repair"], ["recover"], ["rebuild", "history"], ["maintain", "--dry-run"]):
        run = CliRunner().invoke(cli.app, [*command, "--warehouse", str(mistyped)])
        assert run.exit_code == 1
        assert run.stderr.splitlines() == [
            f"grouptrail: there is no warehouse {mistyped}: check --warehouse, or run grouptrail run first"
        ]
        assert list(tmp_path.iterdir()) == []


def test_debug_logs_which_engine_reads(example: Config) -> None:
    """Only for the command that it is given to."""
    run = grouptrail("show", "lag", "--warehouse", example.warehouse, "--debug")
    assert run.returncode == 0, run.stderr
    assert f"engine: {example.warehouse}: 0 rows, 0 bytes: delta-rs" in run.stderr
    assert "engine:" not in grouptrail("show", "lag", "--warehouse", example.warehouse).stderr
