"""The documents say what is so: commands run or exist, settings are all there, links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import typer

from grouptrail.cli import app
from grouptrail.config import Config, load_config

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*.md", "dashboards/**/*.md", "tests/**/*.md")
    for path in ROOT.glob(pattern)
)
COMMANDS: dict[str, Any] = cast("Any", typer.main.get_command(app)).commands


@dataclass(frozen=True)
class Shown:
    """A command line in a ```console block, and the output that stands below it."""

    document: str
    line: str
    output: str

    @property
    def words(self) -> list[str]:
        """The command's words, without the variables before it."""
        words = shlex.split(self.line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0], re.DOTALL):
            del words[0]
        return words

    @property
    def is_grouptrail(self) -> bool:
        return Path(self.words[0]).name == "grouptrail"


def console_blocks(text: str) -> Iterator[str]:
    for block in re.finditer(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield block[1]


def shown_in(path: Path) -> Iterator[Shown]:
    for block in console_blocks(path.read_text("utf-8")):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, output = _command_and_output(part)
            yield Shown(str(path.relative_to(ROOT)), line, output)


def _command_and_output(part: str) -> tuple[str, str]:
    """A command goes on over the lines that an open quote or a backslash needs."""
    lines = part.splitlines(keepends=True)
    for count in range(1, len(lines) + 1):
        command = "".join(lines[:count])
        if command.endswith("\\\n"):
            continue
        try:
            shlex.split(command, comments=True)
        except ValueError:
            continue
        return command.strip(), "".join(lines[count:])
    raise AssertionError(f"an open quote in {part!r}")


SHOWN = [shown for path in DOCUMENTS for shown in shown_in(path)]
GROUPTRAIL = [shown for shown in SHOWN if shown.is_grouptrail]
# What needs neither a broker nor tables gives the same output everywhere.
QUICK = [shown for shown in GROUPTRAIL if shown.words[1:2] == ["decode"] and shown.output]


def name_of(shown: object) -> str:
    return f"{shown.document}: {shown.line[:60]}" if isinstance(shown, Shown) else str(shown)


def test_the_readme_shows_the_commands() -> None:
    assert QUICK
    assert {shown.words[1] for shown in GROUPTRAIL} >= {"decode", "sql", "tables", "doctor", "run"}


@pytest.mark.parametrize("shown", QUICK, ids=name_of)
def test_shown_output_is_what_is_printed(shown: Shown, tmp_path: Path) -> None:
    grouptrail = tmp_path / "grouptrail"
    grouptrail.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m grouptrail.cli "$@"\n')
    grouptrail.chmod(0o755)
    line = re.sub(r"(\S+/)?grouptrail(?= )", shlex.quote(str(grouptrail)), shown.line)
    printed = subprocess.run(["sh", "-c", line], capture_output=True, text=True, cwd=ROOT, check=True)
    assert printed.stdout == shown.output


@pytest.mark.parametrize("shown", GROUPTRAIL, ids=name_of)
def test_shown_commands_and_flags_exist(shown: Shown) -> None:
    arguments = shown.words[1:]
    if arguments in (["--help"], ["--version"]):
        return
    COMMANDS[arguments[0]].make_context(arguments[0], _before_a_pipe(arguments[1:]))


def _before_a_pipe(words: list[str]) -> list[str]:
    ends = [index for index, word in enumerate(words) if word in ("|", "<", ">", "&&")]
    return words[: ends[0]] if ends else words


def test_every_command_is_in_the_readme() -> None:
    assert [name for name in COMMANDS if f"grouptrail {name}" not in _readme()] == []


def test_the_table_of_settings_is_whole_and_true() -> None:
    table = re.findall(r"^\| `([\w.]+)` \| `(GROUPTRAIL_\w+)`.*? \| (.*?) \|", _readme(), re.MULTILINE)
    plain = {name: (variable, default.strip("`")) for name, variable, default in table}
    sections = ["decode", "log_offsets", "history"]
    names = [name for name in Config.model_fields if name not in {"kafka", "spark", *sections}]
    names += [f"{section}.{name}" for section in sections for name in type(getattr(Config(), section)).model_fields]
    assert list(plain) == names
    for name, (variable, default) in plain.items():
        assert variable == f"GROUPTRAIL_{name.replace('.', '__').upper()}"
        value: object = Config()
        for part in name.split("."):
            value = getattr(value, part)
        if default.startswith("<"):
            assert value is None
        else:
            shown = str(value).lower() if isinstance(value, bool) else str(value)
            assert shown.removeprefix(f"{Path.cwd()}/").removesuffix(".0") == default.replace(",", "")


def test_the_example_configuration_is_valid(tmp_path: Path) -> None:
    examples = re.findall(r"^```toml\n(.*?)^```$", _readme(), re.MULTILINE | re.DOTALL)
    assert examples
    for number, example in enumerate(examples):
        file = tmp_path / f"{number}.toml"
        file.write_text(example)
        load_config(file, {}, {})


def test_make_targets_that_are_named_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        (str(path.relative_to(ROOT)), target)
        for path in DOCUMENTS
        for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text("utf-8"))
    }
    assert named
    assert {(path, target) for path, target in named if target not in targets} == set()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_lead_somewhere(path: Path) -> None:
    text = path.read_text("utf-8")
    links = [link.split("#")[0] for link in re.findall(r"\]\((?!https?:|mailto:|#)([^)]+)\)", text)]
    gone = [link for link in links if not os.path.exists(path.parent / link)]
    named = re.findall(r"`((?:jobs|schemas|deploy|tests|docs|dashboards)/[\w./*-]+)`", text)
    gone += [name for name in named if not list(ROOT.glob(name.rstrip("/")))]
    assert gone == []


def _readme() -> str:
    return (ROOT / "README.md").read_text("utf-8")
