"""Login with Kerberos at a real broker that closes old sessions, with a KDC on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.errors import KafkaLoginError
from servers.kafka import Broker
from servers.kdc import REALM
from support import landed
from support.cli_in_process import Cli, run_cli, succeeded
from support.deadlines import scaled
from support.kafka_clients import await_that
from support.kerberos_broker import CLIENT, KerberosBroker, kerberos_broker
from support.login_runs import TOPIC, committed, decode_through_outage, prepare, run_while_committing

TICKET_SECONDS, SESSION_SECONDS = 16, 10


@pytest.fixture(scope="module")
def kerberos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KerberosBroker]:
    """A KDC, a broker, and a principal with the rights of all jobs."""
    folder = tmp_path_factory.mktemp("kerberos")
    with kerberos_broker(folder, session_seconds=SESSION_SECONDS) as started:
        prepare(started.broker, CLIENT)
        yield started


@pytest.fixture
def broker(kerberos: KerberosBroker) -> Broker:
    return kerberos.broker


def test_kerberos_all_jobs_run_once_with_one_keytab(kerberos: KerberosBroker, config: Config, cli: Cli) -> None:
    """The same settings log in kafka-python and Spark's Java client, each with tickets of its own."""
    environ = kerberos.environment()
    doctor = succeeded(run_cli(config, "doctor", environ=environ))
    of_python = kerberos.kdc.logins(CLIENT)
    succeeded(cli(config, "run", "--once", environ=environ))
    assert "ok    records    can be read" in doctor
    assert 0 < of_python < kerberos.kdc.logins(CLIENT)
    assert committed(config) >= {0}
    assert {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")} == {(TOPIC, None)}
    assert {row["topic"] for row in landed.rows(config, "topic_configs")} >= {TOPIC}


def test_kerberos_ticket_cache_of_the_user_logs_in_both_clients(
    kerberos: KerberosBroker, config: Config, cli: Cli, tmp_path: Path
) -> None:
    """Without a keytab, and with no principal: that of `kinit`."""
    cache = tmp_path / "cache"
    kerberos.kdc.kinit(kerberos.keytab, CLIENT, cache, "-l", "5m")
    environ = kerberos.environment(useTicketCache="true", ticketCache=str(cache))
    succeeded(run_cli(config, "doctor", environ=environ))
    succeeded(cli(config, "run", "--once", "--job", "decode", environ=environ))
    assert committed(config) >= {0}


def test_kerberos_connection_logs_in_again_with_renewed_tickets_and_a_new_key(
    kerberos: KerberosBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One connection of kafka-python outlives a ticket and a session; a replaced keytab is read again."""
    kdc, lives_seconds = kerberos.kdc, 4
    monkeypatch.setenv("KRB5_CONFIG", str(kdc.config))
    keytab = kdc.keytab("short.keytab", "short")
    kdc.limit("short", lives_seconds)
    with closing(Cluster(kerberos.settings(**kerberos.keytab_options(keytab, "short")))) as cluster:
        first = cluster.brokers()
        connection = cluster._admin
        kdc.keytab("short.keytab", "short")
        kdc.limit("short", lives_seconds)
        issued, ends_at = kdc.logins("short"), time.monotonic() + SESSION_SECONDS + 1
        await_that(lambda: cluster.brokers() == first and time.monotonic() > ends_at, scaled(60))
        assert cluster._admin is connection, "its session has ended"
        assert kdc.logins("short") > issued


def options_of(kerberos: KerberosBroker, what: str, folder: Path) -> dict[str, str]:
    """Return the JAAS options of a login that fails."""
    kdc = kerberos.kdc
    if what == "unknown principal":
        keytab = kdc.keytab("deleted.keytab", "deleted")
        kdc.delete("deleted")
        return kerberos.keytab_options(keytab, "deleted")
    if what == "old key":
        keytab = folder / "old.keytab"
        keytab.write_bytes(kdc.keytab("renewed.keytab", "renewed").read_bytes())
        kdc.keytab("renewed.keytab", "renewed")
        return kerberos.keytab_options(keytab, "renewed")
    if what == "other keytab":
        return kerberos.keytab_options(principal="nobody")
    if what == "no keytab":
        return kerberos.keytab_options(folder / "none")
    cache = folder / "cache"
    if what == "expired ticket":
        kdc.kinit(kerberos.keytab, CLIENT, cache, "-l", "1s")
        ends_at = time.monotonic() + 1.5
        await_that(lambda: time.monotonic() > ends_at, scaled(30))
    return {"useTicketCache": "true", "ticketCache": str(cache)}


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (
            "unknown principal",
            f"no Kerberos login as deleted@{REALM} (Client 'deleted@{REALM}' not found in Kerberos database): create",
        ),
        ("old key", "(Preauthentication failed): the keytab's key is not, or no longer, that of the KDC"),
        ("other keytab", f"has no key of nobody@{REALM}: klist -k shows its keys"),
        ("no keytab", "none cannot be read (No such file or directory): put it there"),
        ("no ticket", "(No credentials cache found): run kinit, or give a keytab"),
        ("expired ticket", "(Ticket expired): run kinit, or give a keytab"),
    ],
)
def test_kerberos_login_that_fails_exits_with_one_line(
    kerberos: KerberosBroker, config: Config, cli: Cli, what: str, message: str
) -> None:
    options = options_of(kerberos, what, Path(config.warehouse).parent)
    assert_refused(cli, config, kerberos.environment(**options), message)


def assert_refused(cli: Cli, config: Config, environ: dict[str, str], message: str) -> None:
    refused = cli(config, "run", environ=environ)
    [line] = refused.printed.strip().splitlines()
    assert refused.returncode == 1
    assert message in line


def test_kerberos_service_that_the_kdc_does_not_know_exits_with_one_line(
    kerberos: KerberosBroker, config: Config, cli: Cli
) -> None:
    environ = kerberos.environment() | {"GROUPTRAIL_KAFKA__SASL_KERBEROS_SERVICE_NAME": "other"}
    message = "(Server other/localhost@GROUPTRAIL.TEST not found in Kerberos database): create it, or check kafka."
    assert_refused(cli, config, environ, message)


def test_kerberos_kdc_down_exits_with_one_line(
    kerberos: KerberosBroker, config: Config, cli: Cli, tmp_path: Path
) -> None:
    # A login of its own, without the ticket of other tests.
    keytab = tmp_path / "keytab"
    keytab.write_bytes(kerberos.keytab.read_bytes())
    down = kerberos.kdc.write_config("down.conf", port=1)
    environ = kerberos.environment(down, **kerberos.keytab_options(keytab))
    assert_refused(
        cli, config, environ, f"no Kerberos login (Cannot contact any KDC for realm '{REALM}'): start the KDC"
    )


def test_kerberos_broker_without_the_key_of_its_principal_refuses_the_ticket(
    kerberos: KerberosBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a keytab from before the principal's key was changed."""
    monkeypatch.setenv("KRB5_CONFIG", str(kerberos.kdc.config))
    kerberos.kdc.keytab("stranger.keytab", "stranger/localhost")
    settings = kerberos.settings() | {"sasl.kerberos.service.name": "stranger"}
    with pytest.raises(KafkaLoginError, match=r"refuses the Kerberos ticket of grouptrail@.*keytab and clocks"):
        Cluster(settings).brokers()


@pytest.fixture
def short_tickets(kerberos: KerberosBroker) -> Iterator[None]:
    """Tickets that live for seconds, for processes that start meanwhile."""
    kerberos.kdc.limit(CLIENT, TICKET_SECONDS)
    yield
    kerberos.kdc.limit(CLIENT, 3600)


@pytest.mark.full
@pytest.mark.usefixtures("short_tickets")
def test_kerberos_pipeline_outlives_its_tickets_without_an_error(kerberos: KerberosBroker, config: Config) -> None:
    """Through three lives of a ticket, and several sessions of a connection."""
    run_while_committing(kerberos.broker, config, kerberos.environment(), seconds=3 * TICKET_SECONDS)


@pytest.mark.full
@pytest.mark.usefixtures("short_tickets")
def test_kerberos_kdc_down_for_longer_than_a_ticket_lives_loses_nothing(
    kerberos: KerberosBroker, config: Config
) -> None:
    """Refused meanwhile, the job is tried again with one line each."""
    try:
        text = decode_through_outage(
            kerberos.broker, config, kerberos.environment(), kerberos.kdc.stop, kerberos.kdc.start
        )
    finally:
        kerberos.kdc.stop()
        kerberos.kdc.start()
    assert "job decode: restarted" in text
