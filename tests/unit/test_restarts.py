"""`grouptrail run` restarts a job that fails and waits for brokers that do not answer; some faults end it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import StreamingQueryException

from grouptrail.config import Config, ConfigError
from grouptrail.decode.progress import BatchError, SourceChangedError
from grouptrail.errors import printable
from grouptrail.history.job import HistoryError
from grouptrail.jobs import Job
from grouptrail.kafka.errors import (
    ClusterError,
    KafkaDeniedError,
    KafkaLoginError,
    KafkaSettingError,
    KafkaUnreachableError,
    TokenEndpointError,
    TopicMissingError,
)
from grouptrail.runtime import checks, pipeline, restarts
from grouptrail.runtime.checks import JobsCheck
from grouptrail.runtime.lease import AlreadyRunningError
from grouptrail.runtime.restarts import Backoff, is_outage, is_refused_login, is_unrecoverable
from grouptrail.runtime.running import JobFailedError, reason, storage_errors_explained
from grouptrail.spark import session
from grouptrail.spark.session import is_lost
from grouptrail.storage.checkpoints import Checkpoint, CheckpointError, CheckpointGoneError
from grouptrail.storage.errors import TableError, TableVersionError
from support.deadlines import until
from support.small_tables import lay

HEAD = "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: "
PYTHON = f"""{HEAD}An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
"""
WORKER = "x: Python worker failed to connect back.\nCaused by: java.net.SocketTimeoutException"
KAFKA = "org.apache.kafka.common.errors"


def failed(text: str, java: str = "") -> JobFailedError:
    """Return what a query that ended with this error raises; `java` is its stack trace in Java."""
    fault = StreamingQueryException(text)
    fault._stackTrace = java
    error = JobFailedError(reason(fault))
    error.__cause__ = fault
    return error


@pytest.mark.parametrize(
    "fault",
    [
        ConfigError("cluster"),
        KafkaSettingError("kafka"),
        SourceChangedError("polled"),
        KafkaDeniedError("READ"),
        KafkaLoginError("token"),
        BatchError("rows"),
        CheckpointError("older"),
        HistoryError("rebuild"),
        TableVersionError("does not fit"),
        AlreadyRunningError("pid 1"),
        failed(f"{PYTHON}grouptrail.decode.progress.BatchError: partition 3 has 2 rows for offsets 0 to 1\n"),
        failed(f"{PYTHON}grouptrail.history.state.StateError: of version 9\n"),
        failed(f"{HEAD}Multiple streaming jobs detected for 7"),
        failed(f"{HEAD}Log file was malformed: failed to read correct log version from x."),
        failed(f"{HEAD}Not authorized", f"x\nCaused by: {KAFKA}.TopicAuthorizationException: Not authorized"),
        failed(f"{HEAD}Authentication failed", f"{KAFKA}.SaslAuthenticationException: Authentication failed"),
        failed(f"{PYTHON}OSError: AccessDenied: PUT s3://lake/x\n"),
    ],
)
def test_fault_that_only_a_change_mends_is_unrecoverable(fault: Exception) -> None:
    assert is_unrecoverable(fault)


@pytest.mark.parametrize(
    "text",
    ["o\n: java.nio.file.AccessDeniedException: s3a://lake/x", 'o\n: x: No FileSystem for scheme "gs"'],
)
def test_storage_without_rights_or_file_system_is_unrecoverable(text: str) -> None:
    with pytest.raises(JobFailedError) as raised, storage_errors_explained():
        raise RuntimeError(text)
    assert is_unrecoverable(raised.value)


@pytest.mark.parametrize(
    "fault",
    [
        failed(f"{HEAD}Python worker failed to connect back.", WORKER),
        failed(f"{HEAD}Timeout of 60000ms expired", f"{KAFKA}.TimeoutException: Timeout of 60000ms expired"),
        failed(f"{HEAD}No space left on device"),
        failed(f"{PYTHON}OSError: SlowDown: reduce your request rate (503)\n"),
        failed(f"{PYTHON}KeyError: 'orders'\n"),
        # The name of a group or topic decides nothing.
        failed(f"{PYTHON}KeyError: '{KAFKA}.TopicAuthorizationException, grouptrail.history.job.HistoryError: x'\n"),
        CheckpointGoneError("is gone"),
        KafkaUnreachableError("no broker"),
        ClusterError("answers LEADER_NOT_AVAILABLE"),
        TableError("cannot be read"),
        JobFailedError("its query was stopped from outside"),
        ValueError(),
    ],
)
def test_any_other_fault_is_temporary(fault: Exception) -> None:
    assert not is_unrecoverable(fault)


def test_backoff_pauses_double_up_to_a_limit_and_start_again_after_a_long_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    backoff = Backoff()
    assert backoff.is_due
    pauses = []
    for _ in range(8):
        backoff.start()
        pauses.append(backoff.fail())
        assert not backoff.is_due
        now[0] += pauses[-1]
        assert backoff.is_due
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    backoff.start()
    now[0] += 301
    assert backoff.fail() == 5


class Query:
    """A query between two batches; it runs until `fault` is set."""

    lastProgress = None  # noqa: N815
    status: ClassVar = {"isTriggerActive": False}

    def __init__(self) -> None:
        self.fault: Exception | None = None
        self.is_stopped = False

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self.fault is None and not self.is_stopped

    def awaitTermination(self) -> None:  # noqa: N802
        if self.fault:
            raise self.fault

    def stop(self) -> None:
        self.is_stopped = True


def checked_now(check: Callable[[], None]) -> Future[None]:
    """Run a check at once, in place of a thread."""
    result: Future[None] = Future()
    try:
        result.set_result(check())
    except Exception as fault:
        result.set_exception(fault)
    return result


class OneJob:
    """A job that records its queries; `check_faults` and `start_faults` are raised by its next checks and starts."""

    writes = ()
    follows = None
    publishes_lag = False

    def __init__(self, name: str) -> None:
        self.name = name
        self.queries: list[Query] = []
        self.start_faults: list[Exception] = []
        self.check_faults: list[Exception] = []

    def settings(self, _config: Config) -> None:
        pass

    def check(self, _context: Any) -> None:
        if self.check_faults:
            raise self.check_faults.pop(0)

    def start(self, *_arguments: Any, **_options: Any) -> Query:
        if self.start_faults:
            raise self.start_faults.pop(0)
        self.queries.append(Query())
        return self.queries[-1]


class Run:
    """The main loop with jobs of fakes; `looks` are called one after the other between its rounds."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, clusters: int = 1) -> None:
        self.jobs = {name: OneJob(name) for name in ("decode", "log-offsets", "lag")}
        self.printed: list[str] = []
        self.shown: dict[str, tuple[bool, int]] = {}
        self.outages: list[str | None] = []
        self.clusters = [
            pipeline._Cluster(
                Config(warehouse=str(folder), cluster=f"c{number}"),
                cast("list[Job]", list(self.jobs.values())),
                self.printed.append,
            )
            for number in range(clusters)
        ]
        self._monkeypatch = monkeypatch

    def show_job(self, _cluster: str, job: str, *, is_running: bool, restarts: int) -> None:
        self.shown[job] = (is_running, restarts)

    def show_outage(self, _cluster: str, reason: str | None) -> None:
        self.outages.append(reason)

    def publish(self, *_rows: Any) -> None:
        """Publish nothing."""

    def of(self, *looks: Callable[[], None]) -> None:
        """Run the loop until the last look, which is followed by a signal."""
        signals: list[int] = []
        steps: Iterator[Callable[[], None]] = iter(looks)

        def step(_seconds: float) -> None:
            if (look := next(steps, None)) is None:
                signals.append(2)
            else:
                look()

        patch = self._monkeypatch
        patch.setattr(pipeline, "time", SimpleNamespace(sleep=step))
        patch.setattr(checks, "_in_background", checked_now)
        patch.setattr(checks, "PAUSE_SECONDS", 0.0)
        patch.setattr(pipeline, "stopped_at_exit", lambda *_: pipeline.contextlib.nullcontext([]))
        patch.setattr(pipeline, "is_lost", lambda *_: False)
        patch.setattr(Checkpoint, "refuse_gone", lambda *_: None)
        patch.setattr(restarts, "FIRST_PAUSE_SECONDS", 0.0)
        patch.setattr(restarts, "LONGEST_PAUSE_SECONDS", 0.0)
        pipeline._run_on(cast("Any", object()), self.clusters, cast("Any", self), signals, self.printed.append)
        for cluster in self.clusters:
            cluster.release()


def test_run_job_that_fails_is_restarted_and_the_others_are_not_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    samples = run.jobs["log-offsets"]

    def fail() -> None:
        assert run.shown == dict.fromkeys(run.jobs, (True, 0))
        samples.queries[0].fault = StreamingQueryException(f"{HEAD}Python worker failed to connect back.")

    def is_waiting() -> None:
        assert run.shown == {"decode": (True, 0), "log-offsets": (False, 1), "lag": (True, 0)}

    def is_running() -> None:
        assert run.shown == {"decode": (True, 0), "log-offsets": (True, 1), "lag": (True, 0)}

    run.of(fail, is_waiting, is_running)
    assert [len(job.queries) for job in run.jobs.values()] == [1, 2, 1]
    assert not any(query.is_stopped for job in run.jobs.values() for query in job.queries)
    assert run.printed == [
        "job log-offsets: Python worker failed to connect back: run grouptrail doctor; "
        "restarting it in 0 s, other jobs continue",
        "job log-offsets: restarted",
    ]


def test_run_job_that_cannot_start_is_tried_again_and_the_others_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)
    run.jobs["decode"].start_faults = [KafkaUnreachableError("no Kafka broker answers"), KeyError("x")]
    run.of(*[lambda: None] * 3)
    assert [len(job.queries) for job in run.jobs.values()] == [1, 1, 1]
    assert [line for line in run.printed if "restarting it in" in line] == [
        "job decode: no Kafka broker answers; restarting it in 0 s, other jobs continue",
        "job decode: KeyError: 'x'; restarting it in 0 s, other jobs continue",
    ]


def test_run_query_stopped_from_outside_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the kill link of Spark's web UI."""
    run = Run(tmp_path, monkeypatch)

    def stop() -> None:
        run.jobs["lag"].queries[0].stop()

    run.of(stop, *[lambda: None] * 2)
    assert len(run.jobs["lag"].queries) == 2
    assert "job lag: its query was stopped from outside" in run.printed[0]


@pytest.mark.parametrize(
    "fault",
    [
        failed(f"{HEAD}Authentication failed", f"{KAFKA}.SaslAuthenticationException: Authentication failed"),
        failed(f"{PYTHON}grouptrail.kafka.errors.KafkaLoginError: kafka:9092 refuses the token\n"),
        KafkaLoginError("kafka:9092 refuses the token"),
    ],
)
def test_run_job_whose_login_is_refused_is_restarted(
    fault: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A secret may have been renewed; at its start the run ends with the line."""
    run = Run(tmp_path, monkeypatch)

    def fail() -> None:
        run.jobs["decode"].queries[0].fault = fault.__cause__ or fault  # type: ignore[assignment]
        run.jobs["decode"].start_faults = [KafkaLoginError("refused again")]

    run.of(fail, *[lambda: None] * 3)
    assert [len(job.queries) for job in run.jobs.values()] == [2, 1, 1]
    assert [line.endswith("restarting it in 0 s, other jobs continue") for line in run.printed] == [True, True, False]


@pytest.mark.parametrize(
    ("java", "remedy"),
    [
        (
            "javax.security.auth.login.LoginException: An internal error occurred while retrieving token from "
            "callback handler",
            "the token endpoint does not answer, or refuses the client: run grouptrail doctor",
        ),
        (
            'x.IOException: The response code 401 and error response {"invalid_client" - "s3cret\n} s3cret"} was '
            "encountered reading the token endpoint response; will not attempt further retries",
            "and error response ***: the token endpoint does not answer, or refuses the client: run grouptrail",
        ),
        (
            "x.IOException: The token endpoint response did not contain an access_token value. Response: (s3cret)",
            "access_token value. Response: ***: the token endpoint",
        ),
        (f'{KAFKA}.SaslAuthenticationException: {{"status":"invalid_token"}}', "compare its issuer, audience, scope"),
    ],
)
def test_reason_login_of_the_java_client_says_what_to_do(java: str, remedy: str) -> None:
    text = str(failed(f"{HEAD}Failed to construct kafka consumer", f"x\nCaused by: {java}\n\tat X.y(X.java:1)"))
    assert remedy in text
    assert "s3cret" not in text + printable(f"x\nCaused by: {java}\n\tat X.y(X.java:1)")


def test_is_refused_login_missing_right_is_none() -> None:
    assert not is_refused_login(failed("x", f"Caused by: {KAFKA}.TopicAuthorizationException: Not authorized"))
    assert not is_refused_login(KafkaDeniedError("READ"))


def test_run_login_that_is_refused_at_the_start_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, monkeypatch)
    run.jobs["decode"].start_faults = [KafkaLoginError("refused")]
    with pytest.raises(KafkaLoginError):
        run.of(lambda: None)


def test_run_renewed_secret_restarts_the_jobs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(tmp_path, monkeypatch)
    changed = iter([False, True, False, False])
    monkeypatch.setattr(pipeline.KafkaSecrets, "have_changed", lambda _: next(changed, False))
    run.of(*[lambda: None] * 3)
    assert [[query.is_stopped for query in job.queries] for job in run.jobs.values()] == [[True, False]] * 3
    assert run.printed == ["secrets of the Kafka settings were renewed: restarting the jobs with them"]
    assert set(run.shown.values()) == {(True, 0)}


def test_run_unrecoverable_fault_ends_the_run_of_a_single_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch)

    def fail() -> None:
        run.jobs["lag"].queries[0].fault = StreamingQueryException(f"{HEAD}incomplete log file")

    with pytest.raises(JobFailedError, match="a file of the checkpoint is damaged"):
        run.of(fail, lambda: None)
    assert run.printed == []


def test_run_unrecoverable_fault_of_one_of_two_clusters_stops_its_jobs_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, monkeypatch, clusters=2)
    decode, samples, lag = run.jobs.values()

    def fail() -> None:
        lag.queries[0].fault = StreamingQueryException(f"{HEAD}incomplete log file")

    def is_stopped() -> None:
        assert [query.is_stopped for query in decode.queries] == [True, False]

    run.of(fail, is_stopped, *[lambda: None] * 2)
    assert [len(job.queries) for job in (decode, samples, lag)] == [3, 3, 3]
    assert "incomplete log file" in run.printed[0]
    assert run.printed[0].endswith("; retrying in 0 s")


def assert_ends_without_spark(run: Run, fail: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    def end(status: int) -> None:
        raise SystemExit(status)

    monkeypatch.setattr("grouptrail.spark.jvm.end_process", end)
    with pytest.raises(SystemExit) as ended:
        run.of(fail, lambda: None)
    assert ended.value.code == 1
    assert len(run.printed) == 1
    assert run.printed[0].startswith("grouptrail: Spark has ended")


def test_run_without_spark_ends_the_process_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with several clusters: no retry can start another JVM."""
    run = Run(tmp_path, monkeypatch, clusters=2)

    def fail() -> None:
        monkeypatch.setattr(pipeline, "is_lost", lambda *_: True)
        run.jobs["lag"].queries[0].fault = ConnectionRefusedError("py4j")

    assert_ends_without_spark(run, fail, monkeypatch)


def test_run_jvm_that_ends_while_jobs_are_stopped_ends_the_process_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java exits because a broker's answer claims to be a gigabyte long: the first fault does not show it yet."""
    run = Run(tmp_path, monkeypatch, clusters=2)

    class EndingQuery(Query):
        def stop(self) -> None:
            raise Py4JError("An error occurred while calling o9833.getCause")

    def fail() -> None:
        monkeypatch.setattr(pipeline, "is_lost", lambda _spark, fault: isinstance(fault, Py4JError))
        run.jobs["decode"].queries[0].stop = EndingQuery().stop  # type: ignore[method-assign]
        run.jobs["lag"].queries[0].fault = StreamingQueryException(f"{HEAD}incomplete log file")

    assert_ends_without_spark(run, fail, monkeypatch)


class EndingSession:
    """A session that says `answers`, one after the other; then nobody answers any more."""

    def __init__(self, *answers: bool) -> None:
        self._answers = iter(answers)
        self.sparkContext = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: self))

    def isStopped(self) -> bool:  # noqa: N802
        for answer in self._answers:
            return answer
        raise Py4JNetworkError("Answer from Java side is empty")


UNANSWERED = [Py4JError("An error occurred while calling o9833.getCause"), ConnectionRefusedError()]


@pytest.mark.parametrize("fault", UNANSWERED, ids=lambda fault: type(fault).__name__)
def test_is_lost_after_an_unanswered_call_waits_for_the_end_of_java(fault: Exception) -> None:
    assert is_lost(cast("Any", EndingSession(False, False)), fault)


def test_is_lost_after_a_fault_that_java_has_answered_does_not_wait() -> None:
    ending = EndingSession(False)
    assert not is_lost(cast("Any", ending), JobFailedError("a batch failed"))
    assert is_lost(cast("Any", ending), JobFailedError("a batch failed"))
    assert is_lost(cast("Any", EndingSession(True)), JobFailedError("a batch failed"))


def test_is_lost_unanswered_call_of_a_session_that_goes_on_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_EXIT_SECONDS", 0.05)
    monkeypatch.setattr(session, "_LOOK_EVERY_SECONDS", 0.01)
    assert not is_lost(cast("Any", EndingSession(*[False] * 100)), UNANSWERED[0])


DOWN = KafkaUnreachableError(
    'no Kafka broker answers at k:9092 (connection refused): check kafka."bootstrap.servers"'
)
WAITS = f"{DOWN}; waiting: the jobs start when a broker answers"


@pytest.mark.parametrize(
    "fault",
    [
        DOWN,
        TokenEndpointError("the token endpoint does not answer"),
        ClusterError("answers LEADER_NOT_AVAILABLE: see the broker's log"),
    ],
)
def test_is_outage_of_brokers_that_do_not_answer_yet(fault: Exception) -> None:
    assert is_outage(fault)


@pytest.mark.parametrize(
    "fault",
    [
        KafkaDeniedError("READ"),
        KafkaLoginError("refused"),
        KafkaSettingError("kafka"),
        TopicMissingError("no topic"),
        TableError("the warehouse cannot be written"),
        ConfigError("cluster"),
        KeyError("x"),
    ],
)
def test_is_outage_is_no_mistake_and_no_fault_of_the_warehouse(fault: Exception) -> None:
    assert not is_outage(fault)


def stored_run(folder: Path, monkeypatch: pytest.MonkeyPatch, clusters: int = 1) -> Run:
    """Return a run of clusters of which the last one is in the warehouse."""
    run = Run(folder, monkeypatch, clusters)
    lay(Config(warehouse=str(folder)), "ingest_progress", {"cluster": f"c{clusters - 1}"})
    return run


def test_run_without_a_broker_at_its_start_waits_and_starts_all_jobs_when_one_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log has one line for the begin and one for the end; a job that waits does not run."""
    run = stored_run(tmp_path, monkeypatch)
    run.jobs["decode"].check_faults = [DOWN, DOWN, DOWN]
    pipeline._check(run.clusters, waits=True)

    def is_waiting() -> None:
        assert run.shown == dict.fromkeys(run.jobs, (False, 0))
        assert run.outages[-1] == str(DOWN)
        assert run.printed == [WAITS]

    def is_running() -> None:
        assert run.shown == dict.fromkeys(run.jobs, (True, 0))
        assert run.outages[-1] is None

    run.of(is_waiting, is_waiting, is_running)
    assert [len(job.queries) for job in run.jobs.values()] == [1, 1, 1]
    assert run.printed == [WAITS, "a broker answers after 0 s: the jobs start"]


def test_run_that_waits_keeps_other_drivers_out_and_ends_by_a_signal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, second = (stored_run(tmp_path, monkeypatch) for _ in range(2))
    for one in (run, second):
        one.jobs["decode"].check_faults = [DOWN] * 9
        pipeline._check(one.clusters, waits=True)

    def start_second() -> None:
        with pytest.raises(AlreadyRunningError, match="job decode is already run by pid"):
            second.clusters[0].keep_running(cast("Any", object()), None, [])

    run.of(start_second)
    assert [job.queries for job in run.jobs.values()] == [[], [], []]
    assert run.printed == [WAITS]


@pytest.mark.parametrize(("is_stored", "waits"), [(False, True), (True, False)])
def test_run_without_a_broker_ends_if_nothing_is_stored_or_it_runs_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool, waits: bool
) -> None:
    run = stored_run(tmp_path, monkeypatch) if is_stored else Run(tmp_path, monkeypatch)
    run.jobs["decode"].check_faults = [DOWN]
    with pytest.raises(KafkaUnreachableError):
        pipeline._check(run.clusters, waits=waits)
    assert run.printed == []


@pytest.mark.parametrize("mistake", [KafkaDeniedError("refuses this user"), TopicMissingError("there is no topic")])
def test_run_mistake_that_shows_when_a_broker_answers_ends_it_if_it_lasts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: Exception
) -> None:
    """A broker that has just started may not know its topics and users yet."""
    run = stored_run(tmp_path, monkeypatch)
    run.jobs["decode"].check_faults = [DOWN, mistake, DOWN, mistake, mistake]
    pipeline._check(run.clusters, waits=True)
    rounds: list[None] = []
    with pytest.raises(type(mistake)):
        run.of(*[lambda: rounds.append(None)] * 9)
    assert len(rounds) == 3


def test_run_mistake_at_its_start_ends_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = stored_run(tmp_path, monkeypatch)
    run.jobs["decode"].check_faults = [KafkaDeniedError("refuses this user")]
    with pytest.raises(KafkaDeniedError):
        pipeline._check(run.clusters, waits=True)


def test_run_of_two_clusters_starts_the_one_that_answers_and_waits_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing of the other is stored."""
    run = Run(tmp_path, monkeypatch, clusters=2)
    run.jobs["decode"].check_faults = [DOWN]
    pipeline._check(run.clusters, waits=True)
    run.jobs["decode"].check_faults = [DOWN, DOWN]
    run.of(lambda: None, lambda: None, lambda: None)
    assert [len(job.queries) for job in run.jobs.values()] == [2, 2, 2]
    assert run.printed == [WAITS, "a broker answers after 0 s: the jobs start"]


@pytest.mark.parametrize("is_stored", [True, False])
def test_run_of_two_clusters_that_are_down_waits_if_one_of_them_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stored: bool
) -> None:
    run = stored_run(tmp_path, monkeypatch, 2) if is_stored else Run(tmp_path, monkeypatch, 2)
    run.jobs["decode"].check_faults = [DOWN, DOWN]
    if is_stored:
        pipeline._check(run.clusters, waits=True)
        assert run.printed == [WAITS, WAITS]
    else:
        with pytest.raises(JobFailedError, match=r"^c0: no Kafka broker .*; c1: no Kafka broker "):
            pipeline._check(run.clusters, waits=True)


def test_jobs_check_of_a_broker_that_hangs_does_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signals and other clusters are looked at meanwhile."""
    monkeypatch.setattr(checks, "PAUSE_SECONDS", 0.0)
    answers = threading.Event()
    printed: list[str] = []
    check = JobsCheck(lambda: cast("None", answers.wait(60)), printed.append)
    check.await_brokers(DOWN)
    assert [check.has_passed() for _ in range(100)] == [False] * 100
    answers.set()
    until(check.has_passed)
    assert check.outage is None


def test_jobs_check_in_an_outage_is_repeated_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    checked: list[float] = []

    def fail() -> None:
        checked.append(now[0])
        raise DOWN

    monkeypatch.setattr(checks, "_in_background", checked_now)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    check = JobsCheck(fail, lambda _line: None)
    for _ in range(100):
        assert not check.has_passed()
        now[0] += 0.2
    assert checked == pytest.approx([1000.0, 1005.0, 1010.0, 1015.0], abs=0.3)
