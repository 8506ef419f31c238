"""The prompt of `grouptrail sql`, typed into through a pipe."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from grouptrail.config import Config
from grouptrail.query.prompt import Names, candidates, prompt
from support.from_config import sql_context


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def typed(config: Config, keys: str) -> str:
    """Return what is printed while these keys are typed."""
    out = io.StringIO()
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        pipe.send_text(keys)
        prompt(sql_context(config), out)
    return out.getvalue()


def test_prompt_continues_after_errors_and_ctrl_c(tmp_path: Path) -> None:
    """An error is one line."""
    printed = typed(
        Config(warehouse=str(tmp_path)),
        "SELECT 1 AS one;\rSELECT * FROM nosuch\rhalf a line\x03\x1b\rSELECT\x1b\r 2 AS two\rtables resets\r\x04",
    )
    assert "one" in printed
    assert "there is no table nosuch" in printed
    assert "half a line" not in printed
    assert "two" in printed
    assert "the difference in offsets" in printed


def test_prompt_tables_lists_the_tables_and_exit_leaves(tmp_path: Path) -> None:
    printed = typed(Config(warehouse=str(tmp_path)), "TABLES\rexit\rSELECT 3 AS three\r")
    assert "offset_commits" in printed
    assert "three" not in printed


def test_prompt_help_prints_the_key_bindings_again(tmp_path: Path) -> None:
    """The same lines as at the start."""
    assert typed(Config(warehouse=str(tmp_path)), "help\r\x04").count("Ctrl-D leaves") == 2


def test_prompt_history_file_is_private_to_the_user(tmp_path: Path) -> None:
    """Queries are stored as they were typed."""
    typed(Config(warehouse=str(tmp_path)), "SELECT 1 AS one;\r\x04")
    [file] = (tmp_path / "state").rglob("sql_history")
    assert "SELECT 1 AS one;" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_prompt_unwritable_history_file_still_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only home folder does not prevent queries."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "one" in typed(Config(warehouse=str(tmp_path)), "SELECT 1 AS one\r\x04")


@pytest.mark.parametrize(
    ("text", "completed"),
    [
        ("SELECT * FROM rebalance_st", {"rebalance_storms("}),
        ("SELECT * FROM wor", {"worst_groups"}),
        ("SELECT * FROM generations JOIN partition_", {"partition_ownership"}),
        ("SELECT wor", {"worst_groups", "worst_skew"}),
        ("tables rebalance_", {"rebalance_storms"}),
        ("SELECT committed_of", {"committed_offset", "committed_offsets"}),
        ("SELECT metadata FROM resets WHERE owner_m", {"owner_member_id"}),
        ("sel", {"SELECT"}),
        ("SELECT ", set()),
    ],
)
def test_completion_suggests_tables_views_columns_and_keywords(text: str, completed: set[str]) -> None:
    completions = Names().get_completions(Document(text), None)  # type: ignore[arg-type]
    assert {completion.text for completion in completions} == completed


def test_completion_columns_are_limited_to_the_named_tables() -> None:
    """Before the query names a table, columns of all tables are suggested."""
    assert "lag_seconds" in candidates("SELECT ")
    assert "lag_seconds" not in candidates("SELECT x FROM group_metadata")
