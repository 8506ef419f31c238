"""Commands of Kafka that move a group's offsets, for people to run: grouptrail changes nothing in Kafka."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from shlex import quote
from typing import NamedTuple

from grouptrail.report.layout import visible
from grouptrail.storage.sql import datafusion_literal

_DEFAULT_BACK = timedelta(hours=1)


class ResetCommand(NamedTuple):
    """What a command is for, and its text; `--dry-run` in it shows what would change."""

    about: str
    text: str


def reset_commands(
    group_id: str, group_kind: str | None, cluster: str, at: datetime | None, newest: datetime
) -> list[ResetCommand]:
    """Return commands that skip what is unread, or go back to a time: `at`, by default an hour before `newest`.

    None for a name that a shell would not show as it is, and for streams groups. The start offsets of share groups
    can be moved, and are no commits to go back to.
    """
    if group_kind == "streams" or visible(group_id) != group_id or visible(cluster) != cluster:
        return []
    time = (at or newest - _DEFAULT_BACK).astimezone(UTC)
    said = f"{time:%Y-%m-%d %H:%M:%S} UTC"
    tool = "kafka-share-groups.sh" if group_kind == "share" else "kafka-consumer-groups.sh"
    reset = f"{tool} --bootstrap-server HOST:PORT --group {quote(group_id)} --reset-offsets"
    query = f"SELECT * FROM offsets_as_of({datafusion_literal(group_id)}, '{time:%Y-%m-%dT%H:%M:%SZ}')"
    stored = f"grouptrail sql --cluster {quote(cluster)} --format reset-offsets -o offsets.csv {quote(query)}"
    commands = [
        ResetCommand("Skip all that is unread", f"{reset} --all-topics --to-latest --dry-run"),
        ResetCommand(
            f"Read again what was written since {said}",
            f"{reset} --all-topics --to-datetime {time:%Y-%m-%dT%H:%M:%S.000} --dry-run",
        ),
    ]
    if group_kind != "share":
        back = f"{stored}\n{reset} --from-file offsets.csv --dry-run"
        commands.append(ResetCommand(f"Go back to the offsets that were committed at {said}", back))
    return commands
