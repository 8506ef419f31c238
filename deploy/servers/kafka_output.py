"""Read what Kafka's own tools print about `__consumer_offsets`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from servers.offsets_topic import OFFSETS_TOPIC


def record_type(key: dict[str, Any]) -> int:
    """Return the field `type` of Kafka 4, which Kafka 3 calls `version`."""
    return int(key["type"] if "type" in key else key["version"])


def dumped_rows(output: str) -> Iterator[dict[str, Any]]:
    partition, is_transactional = -1, False
    for line in output.splitlines():
        if opened := re.search(rf"{OFFSETS_TOPIC}-(\d+)/", line):
            partition = int(opened.group(1))
        elif batch := re.match(r"baseOffset: .* isTransactional: (true|false) ", line):
            is_transactional = batch.group(1) == "true"
        elif match := re.match(r"\| offset: (\d+) .*? headerKeys: \[.*?\] key: (.*)$", line):
            of_batch = {"partition": partition, "offset": int(match.group(1)), "is_transactional": is_transactional}
            yield {**of_batch, **_dumped_record(match.group(2))}


def _dumped_record(text: str) -> dict[str, Any]:
    """Parse `{…} payload: {…}`, `{…} payload: <DELETE>`, or a sentence about an error."""
    if not text.startswith("{"):
        return {"key": None, "value": None, "error": text}
    key, end = json.JSONDecoder().raw_decode(text)
    payload = text[end:].removeprefix(" payload: ")
    return {"key": key, "value": None if payload == "<DELETE>" else json.loads(payload), "error": None}


def json_values(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects that the formatters print without separators."""
    decoder, at = json.JSONDecoder(), text.find("{")
    while at >= 0:
        value, end = decoder.raw_decode(text, at)
        yield value
        at = text.find("{", end)


def error_line(output: str) -> str:
    """Return the line of a Java program's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for pattern in (r"(Exception|Error): \S", r"Exception|Error|ERROR|timed out|not found", ""):
        for line in lines:
            if re.search(pattern, line):
                return line
    return "it printed nothing"
