"""Login with OAUTHBEARER at a real broker that verifies tokens, with a token endpoint on this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from grouptrail.config import Config
from grouptrail.kafka.cluster import Cluster
from grouptrail.kafka.errors import KafkaLoginError
from servers.kafka import Broker
from support import landed
from support.certificates import Authority
from support.cli_in_process import Cli, run_cli, succeeded
from support.deadlines import scaled
from support.kafka_clients import await_that
from support.login_runs import TOPIC, committed, decode_through_outage, prepare, run_while_committing
from support.token_server import CLIENT, SECRET, TokenServer, oauth_broker, token_server

LIFE_SECONDS = 20


@pytest.fixture(scope="module")
def signer() -> Iterator[TokenServer]:
    """The token endpoint whose keys the broker has."""
    with token_server() as served:
        yield served


@pytest.fixture
def tokens(signer: TokenServer) -> Iterator[TokenServer]:
    """The token endpoint as it answers by default: its tokens live for five minutes."""
    yield signer
    signer.secret, signer.lives_seconds, signer.answer = SECRET, 300, None
    signer.client_key = None
    signer.claims.clear()
    signer.requests.clear()
    signer.refusals.clear()


@pytest.fixture(scope="module")
def broker(signer: TokenServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that closes connections whose token has expired, and a client with the rights of all jobs."""
    folder = tmp_path_factory.mktemp("kafka")
    with oauth_broker(folder, signer, session_seconds=300) as started:
        prepare(started, CLIENT)
        yield started


def environment(broker: Broker, tokens: TokenServer, secret: str = SECRET, **more: str) -> dict[str, str]:
    """Return the settings of a login as variables."""
    return variables(broker, tokens.settings(secret) | more)


def variables(broker: Broker, settings: dict[str, str]) -> dict[str, str]:
    """Return settings of Kafka's client as variables."""
    settings = settings | {"bootstrap.servers": broker.sasl_bootstrap}
    return {f"GROUPTRAIL_KAFKA__{name.replace('.', '_').upper()}": value for name, value in settings.items()}


def assert_no_secret(tokens: TokenServer, *texts: str) -> None:
    """No text has the secret or the signature of a token."""
    secrets = [SECRET, *(token.rpartition(".")[2] for token in tokens.issued)]
    assert not [text for text in texts if any(secret in text for secret in secrets)]


def test_oauthbearer_all_jobs_run_once_with_one_login(
    broker: Broker, tokens: TokenServer, config: Config, cli: Cli
) -> None:
    """The same settings log in kafka-python and Spark's Java client, and nothing shows a secret."""
    environ = environment(broker, tokens)
    doctor = succeeded(run_cli(config, "doctor", environ=environ))
    shown = succeeded(run_cli(config, "config", environ=environ))
    printed = succeeded(cli(config, "run", "--once", environ=environ))
    assert "ok    records    can be read" in doctor
    assert committed(config) >= {0}
    assert {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")} == {(TOPIC, None)}
    assert {row["topic"] for row in landed.rows(config, "topic_configs")} >= {TOPIC}
    assert {request["scope"] for request in tokens.requests} == {"kafka.read"}
    files = [path for path in Path(config.warehouse).rglob("*") if path.is_file()]
    assert_no_secret(tokens, doctor, shown, printed, *(path.read_bytes().decode("latin-1") for path in files))


def test_private_key_jwt_logs_in_both_clients_without_a_secret(
    broker: Broker, tokens: TokenServer, config: Config, cli: Cli, tmp_path: Path
) -> None:
    """The endpoint takes each signed JWT once; Spark's Java client gets its tokens from grouptrail."""
    environ = variables(broker, with_key(tokens, tmp_path))
    doctor = succeeded(run_cli(config, "doctor", environ=environ))
    printed = succeeded(cli(config, "run", "--once", "--job", "decode", environ=environ))
    assert "ok    records    can be read" in doctor
    assert committed(config) >= {0}
    assert not tokens.refusals
    assert {request["Authorization"] for request in tokens.requests} == {""}
    assert_no_secret(tokens, doctor, printed)


def with_key(tokens: TokenServer, folder: Path) -> dict[str, str]:
    """Let the endpoint demand JWTs signed with a new key; return the settings of a login with it."""
    key = ec.generate_private_key(ec.SECP256R1())
    file = folder / "client.pem"
    file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tokens.client_key = key.public_key()
    return tokens.settings_with_key(file, "ES256")


@pytest.mark.full
@pytest.mark.parametrize("login", ["secret", "private key", "file"])
def test_oauthbearer_pipeline_outlives_its_tokens_without_an_error(
    broker: Broker, tokens: TokenServer, config: Config, tmp_path: Path, login: str
) -> None:
    """Through three lives of a token, after each of which the broker closes what has not logged in again."""
    tokens.lives_seconds = LIFE_SECONDS
    with settings_of(login, tokens, tmp_path) as settings:
        outlive_tokens(broker, tokens, config, variables(broker, settings))


@contextmanager
def settings_of(login: str, tokens: TokenServer, folder: Path) -> Iterator[dict[str, str]]:
    """Yield the settings of a login of some kind."""
    if login == "secret":
        yield tokens.settings()
    elif login == "private key":
        yield with_key(tokens, folder)
    else:
        with renewed_file(tokens, folder / "token"):
            yield tokens.settings_with_file(folder / "token")


@contextmanager
def renewed_file(tokens: TokenServer, file: Path) -> Iterator[None]:
    """Put a new token into a file whenever two thirds of the last one's life are over, as platforms do."""
    ended = threading.Event()

    def write() -> None:
        tokens.issued.append(tokens.token())
        (file.parent / "next").write_text(f"{tokens.issued[-1]}\n")
        (file.parent / "next").rename(file)

    def renew() -> None:
        while not ended.wait(tokens.lives_seconds * 2 / 3):
            write()

    write()
    thread = threading.Thread(target=renew)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def outlive_tokens(broker: Broker, tokens: TokenServer, config: Config, environ: dict[str, str]) -> None:
    """Commit while the pipeline runs, and compare what has landed."""
    first: list[int] = []
    text = run_while_committing(
        broker, config, environ, seconds=3 * LIFE_SECONDS, begin=lambda: first.append(len(tokens.issued))
    )
    renewed = len(tokens.issued) - first[0]
    assert 3 <= renewed <= 40, f"{renewed} tokens in three lives"
    assert_no_secret(tokens, text)


@pytest.mark.full
def test_oauthbearer_renewed_secret_of_a_mount_is_taken_by_the_running_pipeline(
    broker: Broker, tokens: TokenServer, config: Config, tmp_path: Path
) -> None:
    """Refused meanwhile, the jobs are tried again with one line each, and no record is lost."""
    mounted = tmp_path / "client-secret"
    mounted.write_text(f"{SECRET}\n")
    tokens.lives_seconds = 8
    provider = {
        "config.providers": "mounted",
        "config.providers.mounted.class": "org.apache.kafka.common.config.provider.DirectoryConfigProvider",
    }

    def renew() -> None:
        tokens.secret = f"{SECRET}-renewed"

    def mount() -> None:
        mounted.write_text(tokens.secret)

    environ = environment(broker, tokens, f"${{mounted:{tmp_path}:client-secret}}", **provider)
    text = decode_through_outage(broker, config, environ, renew, mount)
    assert "refuses the client" in text
    assert "secrets of the Kafka settings were renewed: restarting the jobs with them\n" in text
    assert_no_secret(tokens, text)


@pytest.mark.full
def test_oauthbearer_endpoint_down_for_longer_than_a_token_lives_loses_nothing(
    broker: Broker, tokens: TokenServer, config: Config
) -> None:
    tokens.lives_seconds = 8

    def fail() -> None:
        tokens.answer = lambda: (503, "text/html", f"<html>{SECRET}".encode())

    def recover() -> None:
        tokens.answer = None

    text = decode_through_outage(broker, config, environment(broker, tokens), fail, recover)
    assert "job decode: restarted" in text
    assert_no_secret(tokens, text)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("secret", "refuses the client (401 invalid_client): check the client's id, secret and scope"),
        ("audience", "compare its issuer, audience, scope and times with what the brokers expect"),
        ("down", "does not answer (connection refused): start it, or check kafka."),
        ("html", "answers without a token (text/html): check kafka."),
        ("exp", "gives a token without exp: use tokens that expire"),
    ],
)
def test_oauthbearer_login_that_fails_exits_with_one_line(
    broker: Broker, tokens: TokenServer, config: Config, what: str, message: str
) -> None:
    environ = environment(broker, tokens)
    if what == "secret":
        environ = environment(broker, tokens, f"not-{SECRET}")
    elif what == "audience":
        tokens.claims["aud"] = "another"
    elif what == "down":
        environ = environment(broker, tokens, **{"sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"})
    elif what == "html":
        tokens.answer = lambda: (200, "text/html", b"<html>")
    else:
        tokens.claims["exp"] = None
    # Its login is another one than that of other tests, whose tokens are still valid.
    environ["GROUPTRAIL_KAFKA__SASL_OAUTHBEARER_SCOPE"] = what
    refused = run_cli(config, "run", environ=environ)
    [line] = refused.printed.strip().splitlines()
    assert refused.returncode == 1
    assert message in line
    assert_no_secret(tokens, line)


def test_oauthbearer_broker_refuses_a_later_token_and_takes_the_next(broker: Broker, tokens: TokenServer) -> None:
    """A connection that must log in again is refused with one line; the client then logs in with a new token."""
    tokens.lives_seconds = 4
    settings = tokens.settings() | {"bootstrap.servers": broker.sasl_bootstrap, "sasl.oauthbearer.scope": "again"}

    def is_refused(cluster: Cluster) -> bool:
        try:
            cluster.brokers()
        except KafkaLoginError as error:
            return "refuses the token of" in str(error)
        return False

    with closing(Cluster(settings)) as cluster:
        assert cluster.brokers() == [broker.sasl_bootstrap]
        tokens.claims["aud"] = "another"
        await_that(lambda: is_refused(cluster), scaled(30))
        tokens.claims.clear()
        assert cluster.brokers() == [broker.sasl_bootstrap]


def test_oauthbearer_token_endpoint_with_tls_is_trusted_by_the_ca_of_the_jaas_line(
    broker: Broker, tokens: TokenServer, config: Config, cli: Cli, tmp_path: Path
) -> None:
    """By both clients, with the older settings of id and secret in the line."""
    authority = Authority(tmp_path, "authority")
    with token_server(authority.signed("idp")) as secure:
        secure.key = tokens.key
        login = f'clientId="{CLIENT}" clientSecret="{SECRET}" ssl.truststore.type="PEM"'
        module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        jaas = f'{module} required {login} ssl.truststore.location="{authority.certificate}";'
        environ = environment(broker, secure, "", **{"sasl.jaas.config": jaas})
        del environ["GROUPTRAIL_KAFKA__SASL_OAUTHBEARER_CLIENT_CREDENTIALS_CLIENT_SECRET"]
        succeeded(cli(config, "run", "--once", "--job", "decode", environ=environ))
        assert len(secure.requests) >= 2
    assert committed(config) >= {0}
