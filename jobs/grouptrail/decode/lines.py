"""`grouptrail decode`: read lines of JSON with records in hex, write lines of JSON with the decoded records."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from io import BufferedIOBase
from typing import Any, Literal, TextIO

from grouptrail.console.text import harmless_json
from grouptrail.wire.blobs import decode_blob, is_blob
from grouptrail.wire.layout import Coordinator
from grouptrail.wire.records import decode_record
from grouptrail.wire.text import blob_json, record_json

# Kafka's own limit of a record is 1 MB by default (message.max.bytes). Decoded, a record takes thirty times its size.
MAX_RECORD_BYTES = 10_000_000

Topic = Literal["__consumer_offsets", "__share_group_state"]
_CHUNK_BYTES = 1 << 16
# Bytes of a line in addition to key and value.
_OTHER_BYTES = 1 << 16
_NOT_HEX = re.compile(r"[^0-9a-fA-F\s]")
_encode = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


class _LineError(Exception):
    """A line without bytes to decode; `answer` is the output line that reports it."""

    def __init__(self, kind: str, position: int = 0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.answer = {
            "key": None,
            "value": None,
            "error": {"where": "input", "kind": kind, "position": position},
        }


def decode_lines(
    lines: Iterable[str | None],
    out: TextIO,
    max_record_bytes: int = MAX_RECORD_BYTES,
    topic: Topic = "__consumer_offsets",
) -> Counter[str]:
    """Write one line for each line, in order; return how many had no bytes to decode, by kind.

    A line is `{"key_hex", "value_hex"}`, a null or absent value_hex being a tombstone, or `{"blob", "value_hex"}` for
    a blob by the name of its layout. `"topic"` overrides `topic`: a record of `__share_group_state`, or, by any other
    name, of `__consumer_offsets`. Other fields are ignored. A record's answer is `{"key", "value", "error"}`,
    a blob's `{"blob", "version", "data", "error"}`, or `{"blob", "error"}` if nothing of it can be read. The error of
    a line without bytes is "where": "input", with the kind not_json, not_object, no_key, no_value, not_hex,
    unknown_blob or too_large (a key or value of more than `max_record_bytes`, or a line that `arriving_lines` yields
    as None).
    """
    unusable: Counter[str] = Counter()
    for line in lines:
        try:
            if line is None:
                raise _LineError("too_large", max_record_bytes)
            answer = _answer({"topic": topic, **_parsed(line)}, max_record_bytes)
        except _LineError as fault:
            answer = fault.answer
            unusable[fault.kind] += 1
        out.write(harmless_json(_encode(answer)) + "\n")
    return unusable


def arriving_lines(
    stream: BufferedIOBase, flush: Callable[[], None], max_record_bytes: int = MAX_RECORD_BYTES
) -> Iterator[str | None]:
    """Yield the lines of a stream as soon as they arrive; call `flush` before waiting for more.

    None stands for a line too long for a key and a value of `max_record_bytes` each; it is not kept in memory.
    """
    most = 4 * max_record_bytes + _OTHER_BYTES  # two hexadecimal digits a byte
    pieces: list[bytes] = []
    size = 0
    while chunk := stream.read1(_CHUNK_BYTES):
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield None if size + len(end) > most else b"".join([*pieces, end]).decode("utf-8", "replace")
            pieces, size = [], 0
        size += len(rest)
        if size <= most:
            pieces.append(rest)
        else:
            pieces.clear()
        flush()
    if size:
        yield None if size > most else b"".join(pieces).decode("utf-8", "replace")


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


def _answer(line: dict[str, Any], max_bytes: int) -> dict[str, Any]:
    blob = line.get("blob")
    if blob is not None:
        return _blob_answer(blob, _bytes(line.get("value_hex"), max_bytes))
    if "key_hex" not in line:
        raise _LineError("no_key")
    key, value = (_bytes(line.get(part), max_bytes) for part in ("key_hex", "value_hex"))
    coordinator: Coordinator = "share" if line["topic"] == "__share_group_state" else "group"
    return record_json(decode_record(key, value, coordinator=coordinator, strict=False))


def _blob_answer(name: Any, content: bytes | None) -> dict[str, Any]:
    if not isinstance(name, str) or not is_blob(name):
        raise _LineError("unknown_blob")
    if content is None:
        raise _LineError("no_value")
    answer = blob_json(decode_blob(name, content, strict=False))
    return {"blob": name, "error": answer["error"]} if answer["data"] is None else answer


def _bytes(text: Any, max_bytes: int) -> bytes | None:
    if text is None:
        return None
    try:
        content = bytes.fromhex(text)
    except TypeError:
        raise _LineError("not_hex") from None
    except ValueError:
        wrong = _NOT_HEX.search(text)
        raise _LineError("not_hex", wrong.start() if wrong else len(text)) from None
    if len(content) > max_bytes:
        raise _LineError("too_large", max_bytes)
    return content
