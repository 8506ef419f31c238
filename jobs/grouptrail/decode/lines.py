"""`grouptrail decode`: read lines of JSON with records in hex, write lines of JSON with the decoded records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from typing import Any, TextIO

from grouptrail.console.text import harmless_json
from grouptrail.wire.blobs import decode_blob, is_blob
from grouptrail.wire.records import decode_record
from grouptrail.wire.text import blob_json, record_json

_CHUNK_BYTES = 1 << 16
_NOT_HEX = re.compile(r"[^0-9a-fA-F\s]")
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class _LineError(Exception):
    """A line without bytes to decode; `answer` is the output line that reports it."""

    def __init__(self, kind: str, position: int = 0) -> None:
        super().__init__(kind)
        self.answer = {
            "key": None,
            "value": None,
            "error": {"where": "input", "kind": kind, "position": position},
        }


def decode_lines(lines: Iterable[str], out: TextIO) -> int:
    """Write one line for each line, in order; return how many had no bytes to decode.

    A line is `{"key_hex", "value_hex"}`, a null or absent value_hex being a tombstone, or `{"blob", "value_hex"}` for
    a blob by the name of its layout; other fields are ignored. A record's answer is `{"key", "value", "error"}`,
    a blob's `{"blob", "version", "data", "error"}`, or `{"blob", "error"}`. The error of a line without bytes is
    "where": "input", with the kind not_json, not_object, no_key, no_value, not_hex or unknown_blob.
    """
    unusable = 0
    for line in lines:
        try:
            answer = _answer(_parsed(line))
        except _LineError as fault:
            answer = fault.answer
            unusable += 1
        out.write(harmless_json(_encode(answer)) + "\n")
    return unusable


def arriving_lines(stream: BufferedIOBase, flush: Callable[[], None]) -> Iterator[str]:
    """Yield the lines of a stream as soon as they arrive; call `flush` before waiting for more."""
    rest = b""
    while chunk := stream.read1(_CHUNK_BYTES):
        *whole, rest = (rest + chunk).split(b"\n")
        yield from (line.decode("utf-8", "replace") for line in whole)
        flush()
    if rest:
        yield rest.decode("utf-8", "replace")


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except json.JSONDecodeError as error:
        raise _LineError("not_json", error.pos) from None
    except (ValueError, RecursionError):
        raise _LineError("not_json") from None
    if not isinstance(parsed, dict):
        raise _LineError("not_object")
    return parsed


def _answer(line: dict[str, Any]) -> dict[str, Any]:
    blob = line.get("blob")
    if blob is not None:
        return _blob_answer(blob, _bytes(line.get("value_hex")))
    if "key_hex" not in line:
        raise _LineError("no_key")
    return record_json(decode_record(_bytes(line["key_hex"]), _bytes(line.get("value_hex")), strict=False))


def _blob_answer(name: Any, content: bytes | None) -> dict[str, Any]:
    if not isinstance(name, str) or not is_blob(name):
        raise _LineError("unknown_blob")
    if content is None:
        raise _LineError("no_value")
    answer = blob_json(decode_blob(name, content, strict=False))
    return answer if answer["error"] is None else {"blob": name, "error": answer["error"]}


def _bytes(text: Any) -> bytes | None:
    if text is None:
        return None
    try:
        return bytes.fromhex(text)
    except TypeError:
        raise _LineError("not_hex") from None
    except ValueError:
        wrong = _NOT_HEX.search(text)
        raise _LineError("not_hex", wrong.start() if wrong else len(text)) from None
