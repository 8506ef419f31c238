"""`grouptrail digest`: its rows, its forms, and its way to a webhook."""

from __future__ import annotations

import json
import re
import socket
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from grouptrail import cli
from grouptrail.config import Config
from grouptrail.query.errors import QueryError
from grouptrail.report import webhook as sending
from grouptrail.report.digest import Digest, Section, digest_of, render
from grouptrail.report.digest_rows import DigestRows, read_digest
from grouptrail.report.webhook import WebhookError, post
from grouptrail.runtime.warehouses import warehouse_of
from support.from_config import SAMPLE_SECONDS
from support.small_tables import at, lay
from support.terminal import on_terminal
from support.web_hook import webhook

HOSTILE = "<!channel> `x` *b* @here [l](http://evil)|\x1b[2J<script>alert(1)</script>"


AS_OF_SAMPLE = "as of 2026-03-04 12:02:06 UTC (AGE ago)"


def names(rows: list[dict[str, str]] | None) -> list[str]:
    assert rows is not None
    return [row["group_id"] for row in rows]


def of_cluster(config: Config) -> tuple[str, ...]:
    return "--warehouse", config.warehouse, "--cluster", config.cluster


def test_read_digest_returns_what_happened_since_then(example: Config) -> None:
    """The sample history: from its begin on, and without what came before a later time."""
    rows = read_digest(warehouse_of(example), at(0.5), sample_seconds=SAMPLE_SECONDS)
    assert names(rows.worst) == ["replay", "billing", "audit"]
    assert [(row["group_id"], row["rebalances"]) for row in rows.storms or ()] == [("billing", 4)]
    assert {(row["group_id"], row["kind"]) for row in rows.resets or ()} >= {
        ("billing", "rewind"),
        ("replay", "rewind"),
    }
    assert "gone" in names(rows.vanished)
    assert "silent" in names(rows.new)
    assert {"billing", "again"}.isdisjoint(names(rows.new))  # it was deleted, and then created again
    late = read_digest(warehouse_of(example), at(4), sample_seconds=SAMPLE_SECONDS)
    assert (late.storms, late.resets, names(late.vanished), late.new) == ([], [], ["gone"], [])


def test_read_digest_new_groups_are_not_known_before_the_topic_was_read(example: Config) -> None:
    """All groups would seem to be new: compaction leaves only the newest records of each."""
    rows = read_digest(warehouse_of(example), at(-60), sample_seconds=SAMPLE_SECONDS)
    assert rows.new is None
    assert "not known: the topic has been read only since then" in render(digest_of(rows), "markdown")


def test_read_digest_missing_tables_are_named_and_an_empty_warehouse_raises(config: Config) -> None:
    with pytest.raises(QueryError, match="nothing has landed of cluster default"):
        read_digest(warehouse_of(config), at(0), sample_seconds=SAMPLE_SECONDS)
    lay(config, "ingest_progress", {"record_partition": 1})
    assert (
        render(digest_of(read_digest(warehouse_of(config), at(0), sample_seconds=SAMPLE_SECONDS)), "markdown").count(
            "nothing has landed in the tables"
        )
        == 4
    )


def test_digest_command_prints_markdown_or_html(example: Config) -> None:
    command = ["digest", "--since", "2026-03-04 12:00:30", *of_cluster(example)]
    text = re.sub(r"\d+ d \d+ h ago", "AGE ago", CliRunner().invoke(cli.app, command).output)
    assert re.findall(r"^#+ .*$", text, re.MULTILINE) == [
        f"# Consumer groups of cluster {example.cluster}",
        f"## Worst groups {AS_OF_SAMPLE}",
        *("## Rebalance storms", "## Offset resets", "## Vanished groups", "## New groups"),
    ]
    assert "- `replay`: REWIND, lag 5, 0.5 s behind: because REWIND (orders-0)" in text
    html = CliRunner().invoke(cli.app, [*command, "--format", "html"]).output
    assert html.startswith("<!doctype html>")
    assert "<li><code>replay</code>: REWIND, lag 5" in html


def test_digest_command_after_the_newest_data_ends_with_one_line_error(example: Config) -> None:
    """It prints no period that ends before it begins, and not that no group is behind."""
    command = ["digest", "--since", "1h", "--warehouse", example.warehouse]
    result = CliRunner().invoke(cli.app, command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(
        r"grouptrail: nothing has been recorded since [-\d]+ [:\d]+ UTC: the newest data are as of "
        r"2026-03-04 12:05:00 UTC \(\d+ d \d+ h ago\); see whether `grouptrail run` runs, "
        r"or give an earlier --since\n",
        result.stderr,
    )


def test_digest_post_after_the_newest_data_says_so_in_the_chat_and_fails(example: Config) -> None:
    """A chat in which nothing appears would look as if all were well."""
    with webhook() as hook:
        command = ["digest", "--since", "1h", "--warehouse", example.warehouse, "--post", hook.url]
        result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 1
    [(_, _, body)] = hook.received
    text = json.loads(body)["text"]
    assert text.startswith("*Consumer groups of cluster default*, nothing has been recorded since ")
    assert "the newest data are as of 2026-03-04 12:05:00 UTC (" in text
    assert "behind" not in text


def test_digest_of_a_pipeline_that_stopped_says_when(example: Config) -> None:
    text = render(digest_of(read_digest(warehouse_of(example), at(0.5), sample_seconds=SAMPLE_SECONDS)), "markdown")
    assert "2026-03-04 12:00 to 2026-03-04 12:05 UTC; as of 2026-03-04 12:05:00 UTC (" in text
    assert "nothing has been recorded since" in text


def test_digest_without_a_sample_in_the_period_does_not_know_the_worst_groups(example: Config) -> None:
    text = render(digest_of(read_digest(warehouse_of(example), at(3), sample_seconds=SAMPLE_SECONDS)), "markdown")
    assert "## Worst groups\n\nnot known: the newest samples of lag are as of 2026-03-04 12:02:06 UTC (" in text


@pytest.mark.parametrize(
    ("age", "said"),
    [
        (None, "not known: no lag has been sampled"),
        (timedelta(hours=2), "no group was behind, stopped or unknown then"),
        (timedelta(0), "no group is behind, stopped or unknown"),
    ],
)
def test_digest_says_that_no_group_is_behind_only_of_new_samples(
    config: Config, age: timedelta | None, said: str
) -> None:
    row = {"status": "OK", "topic": "orders", "lag": 0}
    samples = [] if age is None else [row | {"sampled_at": datetime.now(UTC) - age}]
    lay(config, "consumer_lag", *samples)
    lay(config, "group_states", {"state": "Stable", "started_at": at(0)})
    lay(config, "ingest_progress", {"landed_at": datetime.now(UTC)})
    text = render(
        digest_of(
            read_digest(warehouse_of(config), datetime.now(UTC) - timedelta(days=1), sample_seconds=SAMPLE_SECONDS)
        ),
        "markdown",
    )
    assert text.partition("## Worst groups")[2].splitlines()[2] == said


@pytest.mark.parametrize(("since", "message"), [("soon", "is not a time"), ("2999-01-01", "is in the future")])
def test_digest_command_wrong_since_exits_with_usage_error(since: str, message: str) -> None:
    result = CliRunner().invoke(cli.app, ["digest", "--since", since])
    assert result.exit_code == 2
    assert message in result.stderr


def a_digest(name: str = "billing", count: int = 1) -> Digest:
    worst = {
        "status": "STOP",
        "status_reason": name,
        "topic": name,
        "partition": 0,
        "lag": 1,
        "max_lag_seconds": None,
    }
    rows = [{"group_id": name, **worst} for _ in range(count)]
    return digest_of(DigestRows("c", at(0), at(1), rows, [], [], [], [], at(1)))


def test_digest_hostile_names_are_no_markup_in_any_form() -> None:
    digest = a_digest(HOSTILE)
    assert "\x1b" not in "".join(render(digest, form) for form in ("markdown", "html", "chat"))  # type: ignore[arg-type]
    assert "<script" not in render(digest, "html").replace("&lt;script", "")
    chat = render(digest, "chat")
    assert "<" not in chat
    assert "@here" not in chat
    [line] = [line for line in chat.splitlines() if line.startswith("•")]
    assert line.count("`") == 2
    markdown = render(digest, "markdown")
    assert "``" in markdown
    assert r"\[l\](http" in markdown


def test_digest_huge_names_and_many_groups_are_cut() -> None:
    digest = a_digest("x" * 100_000, 500)
    for form in ("markdown", "html", "chat"):
        text = render(digest, form)  # type: ignore[arg-type]
        assert len(text) < 10_000
        assert "and 490 more" in text


def test_digest_post_sends_one_json_message_and_prints_no_url(example: Config) -> None:
    command = ["digest", "--since", "2026-03-04 12:00:30", *of_cluster(example)]
    with webhook() as hook:
        result = CliRunner().invoke(cli.app, [*command, "--post", hook.url])
        from_stdin = CliRunner().invoke(cli.app, [*command, "--post", "-"], input=f"{hook.url}\n")
    assert (result.exit_code, result.output) == (0, "the digest was posted\n")
    assert (from_stdin.exit_code, from_stdin.output) == (0, "the digest was posted\n")
    [(path, content_type, body), again] = hook.received
    assert path == "/services/T000/B000/hunter2"
    assert content_type.startswith("application/json")
    assert again == (path, content_type, body)
    message = json.loads(body)
    assert list(message) == ["text"]
    assert message["text"].startswith(f"*Consumer groups of cluster {example.cluster}*, 2026-03-04 12:00")
    assert "• `replay`: REWIND" in message["text"]


@pytest.mark.parametrize(
    ("status", "phrase"), [(404, "Not Found"), (500, "Internal Server Error"), (299 + 400, "unknown")]
)
def test_post_refused_raises_with_the_status_and_without_the_url(status: int, phrase: str) -> None:
    with webhook(status=status) as hook, pytest.raises(WebhookError) as raised:
        post(hook.url, "hello")
    assert str(raised.value).startswith(f"the webhook answered {status} ({phrase}")
    assert "hunter2" not in str(raised.value)


def test_post_redirect_is_not_followed() -> None:
    with webhook() as other, webhook(status=307, location=other.url) as hook, pytest.raises(WebhookError) as raised:
        post(hook.url, "hello")
    assert other.received == []
    assert len(hook.received) == 1
    assert "it redirects, which is not followed" in str(raised.value)


def test_post_silent_server_raises_in_time() -> None:
    with webhook(silent=True) as hook, pytest.raises(WebhookError, match=r"did not answer within 0\.3 s"):
        post(hook.url, "hello", timeout_seconds=0.3)


def refused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("file:///etc/passwd", "not an http:// or https:// URL"),
        ("hunter2", "not an http:// or https:// URL"),
        ("http://[hunter2", "not an http:// or https:// URL"),
        ("http://127.0.0.1:99999/hunter2", "not an http:// or https:// URL"),
        ("http://127.0.0.1:{port}/hunter2", "cannot be reached (Connection refused)"),
        ("http://hunter2.invalid/x", "cannot be reached ("),
        ("http://127.0.0.1:{port}/a b\nhunter2", "did not answer as a web server does (InvalidURL)"),
    ],
)
def test_post_wrong_url_raises_one_line_without_it(url: str, message: str) -> None:
    with pytest.raises(WebhookError) as raised:
        post(url.format(port=refused_port()), "hello", timeout_seconds=5)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_digest_post_error_with_debug_shows_no_url(example: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in the one line nor in the stack trace."""
    monkeypatch.setattr(sending, "_TIMEOUT_SECONDS", 2.0)
    url = f"http://127.0.0.1:{refused_port()}/hunter2"
    status, printed = on_terminal("digest", "--since", "2026-03-04", *of_cluster(example), "--post", url, "--debug")
    assert status == 1
    assert "Traceback" in printed
    assert "hunter2" not in printed


def test_sections_without_groups_say_so() -> None:
    digest = Digest("t", "p", [Section("Offset resets", (), "none")])
    assert render(digest, "markdown").endswith("## Offset resets\n\nnone\n")
    assert "<p>none</p>" in render(digest, "html")
    assert render(digest, "chat").endswith("*Offset resets*\nnone")
