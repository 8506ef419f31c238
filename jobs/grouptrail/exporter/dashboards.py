"""The dashboards and alert rules for these metrics, as files: the contents of `dashboards/`, which the wheel has."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from grouptrail.exporter.errors import ExporterError
from grouptrail.query.formats import whole_file

# In the folder of the export: the digest of each file as it was written.
RECORD = ".grouptrail-export.json"

_REMEDY = "choose another folder"
_RUNBOOK = re.compile(r'^( +)runbook: "docs/runbooks\.md(#\w+)"$', re.MULTILINE)
# No braces: Prometheus expands annotations as templates.
_URL = re.compile(r"https?://[^\s{}<>\"#]+")


def exported_files(*, runbook_url: str | None = None, datasource_uid: str | None = None) -> dict[str, str]:
    """Return the text of each file by its path in an export.

    `runbook_url` is the address of docs/runbooks.md as it is published, which the alerts then link to.
    `datasource_uid` is the Prometheus data source that the dashboards show at first. Raises ExporterError for an
    address that is no URL.
    """
    if runbook_url is not None and not _URL.fullmatch(runbook_url):
        raise ExporterError(
            f"{runbook_url!r} is not the URL of a page: give one such as https://docs.example/runbooks"
        )
    boards = {f"dashboards/{name}": _board(text, datasource_uid) for name, text in _contents("built", ".json")}
    alerts = {f"alerts/{name}": _rules(text, runbook_url) for name, text in _contents("alerts", ".yaml")}
    return boards | alerts


def export_files(content: Mapping[str, str], folder: Path, *, overwrites: bool) -> dict[str, str]:
    """Write files into a folder, and return for each path `new`, `updated` or `unchanged`.

    A file that an earlier export wrote is updated. Raises ExporterError, before anything is written, if another one
    would be overwritten, unless `overwrites`; and if a file cannot be written.
    """
    try:
        written = _record(folder)
        found = {path: _digest_of(folder / path) for path in content}
        ours = {path: (None, written.get(path), _digest(text)) for path, text in content.items()}
        others = [path for path, digest in found.items() if digest not in ours[path]]
        if others and not overwrites:
            raise ExporterError(
                f"{', '.join(others)} in {folder}: not written by an export, or changed since: "
                "choose another folder, or give --overwrite"
            )
        for path, text in content.items():
            if found[path] != _digest(text):
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                with whole_file(folder / path, _REMEDY) as partial:
                    partial.write_text(text, "utf-8")
        with whole_file(folder / RECORD, _REMEDY) as partial:
            partial.write_text(json.dumps({path: _digest(text) for path, text in content.items()}, indent=2) + "\n")
    except OSError as error:
        place = error.filename or folder
        raise ExporterError(f"{place} cannot be written ({error.strerror}): {_REMEDY}") from error
    return {path: _change(found[path], text) for path, text in content.items()}


def _contents(name: str, ending: str) -> Iterator[tuple[str, str]]:
    entries = (files("grouptrail.dashboards") / name).iterdir()
    texts = {entry.name: entry.read_text("utf-8") for entry in entries if entry.name.endswith(ending)}
    yield from sorted(texts.items())


def _board(text: str, datasource_uid: str | None) -> str:
    if datasource_uid is None:
        return text
    board = json.loads(text)
    for variable in board["templating"]["list"]:
        if variable["type"] == "datasource":
            variable["current"] = {"text": datasource_uid, "value": datasource_uid}
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def _rules(text: str, runbook_url: str | None) -> str:
    return text if runbook_url is None else _RUNBOOK.sub(rf'\1runbook_url: "{runbook_url}\2"', text)


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _digest_of(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _change(found: str | None, text: str) -> str:
    if found is None:
        return "new"
    return "unchanged" if found == _digest(text) else "updated"
