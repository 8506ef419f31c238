"""The verdict on groups of real consumers that were killed, closed or evicted: none that died is EMPTY."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from grouptrail.config import Config
from servers.kafka import Broker
from servers.offsets_topic import ensure_offsets_topic
from support import landed
from support.cli_process import Grouptrail
from support.deadlines import scaled
from support.ending_clients import ClientProcess, EndingClient
from support.kafka_clients import PATIENCE_SECONDS, await_that, in_background, producer
from support.landed import config_of

pytestmark = pytest.mark.full

STOP_SECONDS = 30
SHORT_SESSION = 6
RECORDS_A_SECOND = 10
ENVIRON = {
    "GROUPTRAIL_LOG_OFFSETS__INTERVAL_SECONDS": "2",
    "GROUPTRAIL_LAG__STOP_SECONDS": str(STOP_SECONDS),
    "GROUPTRAIL_EXPORTER__LISTEN": "",
}

Ending = Literal["killed", "closed", "one killed, then the other closed", "evicted, then died"]
_ONE_CLOSED: Ending = "one killed, then the other closed"


@dataclass(frozen=True)
class Case:
    """How the members of a group end, and the verdicts that are right: EMPTY only where a leave is seen."""

    protocol: Literal["classic", "consumer"]
    is_transactional: bool
    session: int
    members: int
    ending: Ending
    verdicts: tuple[Literal["STOP", "EMPTY"], ...]

    @property
    def group(self) -> str:
        """The group's name, which is its topic's, too."""
        commits = "transactional" if self.is_transactional else "plain"
        return (
            f"{self.protocol}-{commits}-{self.session}s-{self.members}-{self.ending.split(',')[0].replace(' ', '-')}"
        )

    def clients(self, bootstrap: str) -> dict[str, list[EndingClient]]:
        """Return the clients by the process that they are in."""
        made = [
            EndingClient(self.group, bootstrap, self.protocol, self.is_transactional, self.session, number)
            for number in range(self.members)
        ]
        if self.ending == "killed":
            return {"killed": made}
        if self.ending == "closed":
            return {"closed": made}
        if self.ending == "evicted, then died":
            return {"stalled": [self._with(made[0], stalls=True, poll_seconds=15)]}
        # The other one closes shortly before the session of the killed one ends.
        return {"killed": made[:1], "closed": [self._with(made[1], stays_seconds=self.session * 0.85)]}

    @staticmethod
    def _with(client: EndingClient, **changes: float) -> EndingClient:
        return EndingClient(**{**vars(client), **changes})


def _cases() -> Iterator[Case]:
    for members in (1, 2):
        for session in (6, 10, 45):
            yield Case("classic", False, session, members, "killed", ("STOP",))
            yield Case("classic", False, session, members, "closed", ("EMPTY",))
        for session in (6, 10):
            yield Case("classic", True, session, members, "killed", ("STOP",))
        # A leave is seen only if it comes sooner after the last join than the session timeout.
        yield Case("classic", True, 45, members, "closed", ("EMPTY", "STOP"))
        for is_transactional in (False, True):
            for ending in ("killed", "closed"):
                yield Case("consumer", is_transactional, SHORT_SESSION, members, ending, ("STOP",))
    for session in (10, 45):
        yield Case("classic", False, session, 2, _ONE_CLOSED, ("STOP",))
    yield Case("consumer", False, SHORT_SESSION, 2, _ONE_CLOSED, ("STOP",))
    yield Case("classic", False, 6, 1, "evicted, then died", ("STOP",))


CASES = tuple(_cases())


@pytest.fixture(scope="module")
def quick_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker whose KIP-848 groups have a session timeout of six seconds."""
    properties = {
        "offsets.topic.num.partitions": "4",
        "group.consumer.min.session.timeout.ms": f"{SHORT_SESSION}000",
        "group.consumer.session.timeout.ms": f"{SHORT_SESSION}000",
        "group.consumer.min.heartbeat.interval.ms": "2000",
        "group.consumer.heartbeat.interval.ms": "2000",
    }
    with Broker(tmp_path_factory.mktemp("kafka"), properties=properties) as started:
        ensure_offsets_topic(started.bootstrap)
        yield started


def test_verdict_on_groups_whose_members_died_is_stop_and_never_empty(quick_sessions: Broker, tmp_path: Path) -> None:
    """The groups are watched until each has had a verdict for a while. Where one of two members closed by itself, its
    partition is EMPTY, and the group STOP as soon as records have waited for long enough in the other one."""
    broker, config = quick_sessions, config_of(quick_sessions.bootstrap, tmp_path / "warehouse")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(case.group, 2, 1) for case in CASES]).values():
        created.result(PATIENCE_SECONDS)
    by_process: dict[str, list[EndingClient]] = defaultdict(list)
    for case in CASES:
        for name, clients in case.clients(broker.bootstrap).items():
            by_process[name] += clients
    run = Grouptrail(config, "run", environ=ENVIRON)
    with records(broker, [case.group for case in CASES]):
        try:
            processes = {name: ClientProcess(clients) for name, clients in by_process.items()}
            for process in processes.values():
                process.await_ready()
            await_that(lambda: len(_statuses(config)) == len(CASES), scaled(240))
            time.sleep(20)  # groups of two share their partitions by now
            ended_at = datetime.now(UTC)
            processes["killed"].kill()
            processes["closed"].end()
            processes["stalled"].end()
            longest = max(case.session for case in CASES) + 2 * STOP_SECONDS
            await_that(lambda: (datetime.now(UTC) - ended_at).total_seconds() > longest + 20, scaled(600))
        finally:
            run.kill()
            for process in processes.values():
                process.kill()
    statuses = _statuses(config)
    lines, wrong = [], []
    for case in CASES:
        after = [(at, status) for at, status in statuses[case.group] if at > ended_at]
        last = after[-1][1]
        since = next(at for at, status in after if status == last)
        is_quiet = case.ending != _ONE_CLOSED and any(status == "EMPTY" for _, status in after)
        lines.append(
            f"| {case.protocol} | {'transactional' if case.is_transactional else 'plain'} | {case.session} s | "
            f"{case.members} | {case.ending} | {last} | {(since - ended_at).total_seconds():.0f} s |"
        )
        if last not in case.verdicts or (is_quiet and "EMPTY" not in case.verdicts):
            wrong.append(f"{lines[-1]} expected {case.verdicts}, EMPTY in between: {is_quiet}")
    folder = Path("artifacts")
    folder.mkdir(exist_ok=True)
    (folder / "verdicts.md").write_text("\n".join(lines) + "\n", "utf-8")
    assert not wrong, "\n".join(wrong)


def _statuses(config: Config) -> dict[str, list[tuple[datetime, str]]]:
    """Return the times of samples and the worst of the verdicts on a group's partitions, by group."""
    worst = ("OK", "EMPTY", "UNKNOWN", "WARN", "STOP", "STALL", "REWIND")
    statuses: dict[str, dict[datetime, str]] = defaultdict(dict)
    for row in landed.rows(config, "consumer_lag"):
        of_group = statuses[row["group_id"]]
        at = row["sampled_at"].replace(microsecond=0)
        of_group[at] = max(of_group.get(at, "OK"), row["status"], key=worst.index)
    return {group: sorted(samples.items()) for group, samples in statuses.items()}


@contextmanager
def records(broker: Broker, topics: list[str]) -> Iterator[None]:
    """Write records to both partitions of the topics until the block ends."""

    def write(ended: threading.Event) -> None:
        with producer(broker) as producing:
            while not ended.wait(1 / RECORDS_A_SECOND):
                for topic in topics:
                    for partition in (0, 1):
                        producing.produce(topic, b"x", partition=partition)
                producing.poll(0)

    with in_background(write):
        yield
