"""The layouts of brokers' logs: the same line in each of them, and lines that are none."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grouptrail.broker_log.layouts import Line, NotALine, parse_line, unwrapped
from grouptrail.console.times import TimeZoneError, time_zone

AT = datetime(2026, 11, 28, 9, 7, 53, 547_000, UTC)
LOGGER = "org.apache.kafka.coordinator.group.GroupMetadataManager"
MESSAGE = "[GroupCoordinator id=1] Stabilized group orders (blue) generation 5 with 1 members."
MILLIS = round(AT.timestamp() * 1000)

LAYOUTS = {
    "kafka": f"[2026-11-28 09:07:53,547] INFO {MESSAGE} ({LOGGER})",
    "kafka with line": f"[2026-11-28 09:07:53,547] INFO {MESSAGE} ({LOGGER}:42)",
    "kafka with thread": f"[2026-11-28 09:07:53,547] INFO {MESSAGE} ({LOGGER}) [group-coordinator-event-processor-0]",
    "thread first": f"[2026-11-28 09:07:53,547] [main] INFO {MESSAGE} ({LOGGER})",
    "iso": f"2026-11-28T09:07:53.547Z INFO {MESSAGE} ({LOGGER})",
    "offset": f"2026-11-28T10:07:53.547+0100 INFO {MESSAGE} ({LOGGER})",
    "logger first": f"2026-11-28 09:07:53,547 INFO {LOGGER} - {MESSAGE}",
    "logger in brackets": f"2026-11-28 09:07:53.547 INFO  [{LOGGER}:42] - {MESSAGE}",
    "thread and logger": f"2026-11-28 09:07:53,547 INFO  [main] {LOGGER}: {MESSAGE}",
    "JsonLayout": json.dumps(
        {
            "instant": {"epochSecond": MILLIS // 1000, "nanoOfSecond": 547_000_000},
            "level": "INFO",
            "loggerName": LOGGER,
            "message": MESSAGE,
            "thread": "main",
        }
    ),
    "JsonLayout of 2.10": json.dumps(
        {"timeMillis": MILLIS, "level": "INFO", "loggerName": LOGGER, "message": MESSAGE}
    ),
    "ECS": json.dumps(
        {"@timestamp": "2026-11-28T09:07:53.547Z", "log.level": "INFO", "message": MESSAGE, "log.logger": LOGGER}
    ),
    "ECS nested": json.dumps(
        {
            "@timestamp": "2026-11-28T09:07:53.547Z",
            "log": {"level": "INFO", "logger": LOGGER},
            "message": MESSAGE,
        }
    ),
    "Logstash": json.dumps(
        {
            "@timestamp": "2026-11-28T10:07:53.547+01:00",
            "level": "INFO",
            "logger_name": LOGGER,
            "message": MESSAGE,
        }
    ),
    "GELF": json.dumps({"timestamp": MILLIS / 1000, "level": 6, "_logger": LOGGER, "short_message": MESSAGE}),
}
PREFIXES = {
    "none": "{}",
    "CRI": "2026-11-28T09:07:53.999999999Z stdout F {}",
    "kubectl": "[pod/kafka-0/kafka] {}",
    "kubectl --timestamps": "2026-11-28T09:07:53.999999999Z {}",
    "compose": "kafka-1  | {}",
}


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_line_in_each_layout_and_container_is_the_same(layout: str, prefix: str) -> None:
    text, goes_on = unwrapped(PREFIXES[prefix].format(LAYOUTS[layout]))
    line = parse_line(text, UTC)
    assert not goes_on
    assert isinstance(line, Line)
    assert (abs(line.at - AT) < timedelta(milliseconds=1), line.logger, line.message) == (True, LOGGER, MESSAGE)
    assert line.is_structured == layout.startswith(("Json", "ECS", "Logstash", "GELF"))


def test_unwrapped_of_dockers_json_is_the_line() -> None:
    text = json.dumps({"log": LAYOUTS["kafka"] + "\n", "stream": "stdout", "time": "2026-11-28T09:07:54Z"})
    assert unwrapped(text) == (LAYOUTS["kafka"], False)


def test_unwrapped_of_a_partial_line_goes_on() -> None:
    assert unwrapped("2026-11-28T09:07:53.9Z stdout P [2026-11-28 09:0") == ("[2026-11-28 09:0", True)
    assert unwrapped(json.dumps({"log": "[2026-11-28 09:0", "stream": "stdout"})) == ("[2026-11-28 09:0", True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\tat java.base/java.lang.Thread.run(Thread.java:840)", "continuation"),
        ("Caused by: java.io.IOException: 2026-11-28 09:07:53,547 INFO x", "continuation"),
        ("", "continuation"),
        ("[2026-13-28 09:07:53,547] INFO x (y)", "malformed"),
        ('{"message": "x"', "malformed"),
        ('{"message": 5, "timeMillis": 5}', "malformed"),
        ('{"message": "x", "timeMillis": 1e300}', "malformed"),
        ("[" * 100_000, "continuation"),
        ("{" + '"a":[' * 50_000, "malformed"),
    ],
)
def test_line_without_a_header_is_none(text: str, why: str) -> None:
    assert parse_line(text, UTC) == NotALine(why)  # type: ignore[arg-type]


def test_line_whose_logger_is_cut_off_has_none() -> None:
    line = parse_line("[2026-11-28 09:07:53,547] INFO [GroupCoordinator id=1] [Group orders] Member x", UTC)
    assert isinstance(line, Line)
    assert line.logger == ""


def test_time_of_a_zone_with_summer_time_is_in_utc() -> None:
    line = parse_line("[2026-07-28 09:07:53,547] INFO x (y)", ZoneInfo("Europe/Berlin"))
    assert isinstance(line, Line)
    assert line.at == datetime(2026, 7, 28, 7, 7, 53, 547_000, UTC)


@pytest.mark.parametrize("time", ["2026-10-25 02:30:00,000", "2026-03-29 02:30:00,000"])
def test_time_that_came_twice_or_never_is_dropped(time: str) -> None:
    zone = ZoneInfo("Europe/Berlin")
    assert parse_line(f"[{time}] INFO x (y)", zone) == NotALine("ambiguous_time")
    assert isinstance(parse_line(f"[{time}+01:00] INFO x (y)", zone), Line)


def test_time_zone_of_a_name_or_an_offset_is_known() -> None:
    assert time_zone("utc") is UTC
    assert time_zone("-05:30") == timezone(-timedelta(hours=5, minutes=30))
    assert time_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("name", ["Mars/Olympus", "+25:00", "", "../etc/passwd", "+1"])
def test_time_zone_of_another_text_names_the_remedy(name: str) -> None:
    with pytest.raises(TimeZoneError, match="use a name such as Europe/Berlin"):
        time_zone(name)


@given(st.text())
def test_any_text_gives_a_line_or_none(text: str) -> None:
    unwrapped_text, _ = unwrapped(text)
    assert isinstance(parse_line(unwrapped_text, UTC), Line | NotALine)
