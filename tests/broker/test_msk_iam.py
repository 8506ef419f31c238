"""Login to Amazon MSK with AWS IAM: AWS's own libraries for Java and Python, at a real broker that verifies them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from grouptrail.config import Config
from grouptrail.kafka import oauthbearer
from servers.kafka import Broker
from support import landed
from support.cli_in_process import run_cli
from support.cli_process import Grouptrail
from support.login_runs import TOPIC, committed, decode_through_outage, prepare, run_while_committing
from support.msk_broker import ACCESS_KEY, PRINCIPAL, REGION, SECRET_KEY, Verifier, msk_broker, verifier

SESSION_SECONDS = 15
NEW_KEY = "aws-Geheim-4717"
JAVA_FORM = {
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": "software.amazon.msk.auth.iam.IAMLoginModule required;",
    "sasl.client.callback.handler.class": "software.amazon.msk.auth.iam.IAMClientCallbackHandler",
}
OAUTH_HANDLER = "software.amazon.msk.auth.iam.IAMOAuthBearerLoginCallbackHandler"
OAUTH_FORM = {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "sasl.login.callback.handler.class": OAUTH_HANDLER,
    "sasl.client.callback.handler.class": OAUTH_HANDLER,
}


@pytest.fixture(scope="module")
def verifying() -> Iterator[Verifier]:
    with verifier() as served:
        yield served


@pytest.fixture
def logins(verifying: Verifier, monkeypatch: pytest.MonkeyPatch) -> Iterator[Verifier]:
    """What the broker asks, as it is by default: one client is known."""
    monkeypatch.setattr(oauthbearer, "_tokens", {})  # a login that failed before asks for no token for two seconds
    yield verifying
    verifying.keys, verifying.session_seconds = {ACCESS_KEY: SECRET_KEY}, 900
    verifying.logins.clear()
    verifying.refusals.clear()


@pytest.fixture(scope="module")
def broker(verifying: Verifier, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with msk_broker(tmp_path_factory.mktemp("kafka"), verifying) as started:
        prepare(started, PRINCIPAL)
        yield started


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    """A file of credentials as AWS's tools write it."""
    file = tmp_path / "credentials"
    write_credentials(file, SECRET_KEY)
    return file


def write_credentials(file: Path, secret_key: str) -> None:
    file.write_text(f"[default]\naws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {secret_key}\n")


def environment(broker: Broker, credentials: Path, login: dict[str, str] = JAVA_FORM) -> dict[str, str]:
    """Return the settings of a login, and what AWS's tools need, as variables."""
    settings = login | {"security.protocol": "SASL_PLAINTEXT", "bootstrap.servers": broker.sasl_bootstrap}
    variables = {f"GROUPTRAIL_KAFKA__{name.replace('.', '_').upper()}": value for name, value in settings.items()}
    of_aws = {
        "AWS_REGION": REGION,
        "AWS_SHARED_CREDENTIALS_FILE": str(credentials),
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    return variables | of_aws


def finished(config: Config, *arguments: str, environ: dict[str, str]) -> tuple[int, str]:
    """Run a command in a process of its own, whose JVM has these variables, too."""
    run = Grouptrail(config, *arguments, environ=environ)
    try:
        printed = run.finished()
    finally:
        run.kill()
    return run.process.returncode, printed


def assert_no_secret(logins: Verifier, *texts: str) -> None:
    """No text has a secret key or a signature."""
    secrets = [SECRET_KEY, NEW_KEY, *logins.signatures]
    assert not [text for text in texts if any(secret in text for secret in secrets)]


@pytest.mark.parametrize(
    "login",
    [pytest.param(JAVA_FORM, id="java"), pytest.param(OAUTH_FORM, id="oauthbearer", marks=pytest.mark.full)],
)
def test_msk_iam_all_jobs_run_once_with_one_login(
    broker: Broker, logins: Verifier, config: Config, credentials: Path, login: dict[str, str]
) -> None:
    """Both forms that AWS documents log in kafka-python and Spark's Java client, each with AWS's own library."""
    environ = environment(broker, credentials, login)
    status, doctor = finished(config, "doctor", environ=environ)
    assert status == 0, doctor
    assert "ok    records    can be read" in doctor
    assert set(logins.logins) == {"token"}
    status, printed = finished(config, "run", "--once", environ=environ)
    assert status == 0, printed
    assert committed(config) >= {0}
    assert {(row["topic"], row["error"]) for row in landed.rows(config, "log_offsets")} == {(TOPIC, None)}
    assert set(logins.logins) == {"token", "payload"}
    assert not logins.refusals
    files = [path for path in Path(config.warehouse).rglob("*") if path.is_file()]
    assert_no_secret(logins, doctor, printed, *(path.read_bytes().decode("latin-1") for path in files))


@pytest.mark.full
def test_msk_iam_pipeline_outlives_its_sessions_without_an_error(
    broker: Broker, logins: Verifier, config: Config, credentials: Path
) -> None:
    """Through three sessions, at whose end the broker closes what has not logged in again."""
    logins.session_seconds = SESSION_SECONDS
    environ = environment(broker, credentials)
    text = run_while_committing(broker, config, environ, seconds=3 * SESSION_SECONDS, begin=logins.logins.clear)
    assert min(logins.logins.count("token"), logins.logins.count("payload")) >= 2, logins.logins
    assert not logins.refusals
    assert_no_secret(logins, text)


@pytest.mark.full
def test_msk_iam_replaced_keys_are_taken_by_the_running_pipeline(
    broker: Broker, logins: Verifier, config: Config, credentials: Path
) -> None:
    """Refused meanwhile, the job is tried again with one line, and no record is lost."""
    logins.session_seconds = SESSION_SECONDS
    environ = environment(broker, credentials)

    def replace() -> None:
        logins.keys[ACCESS_KEY] = NEW_KEY

    text = decode_through_outage(broker, config, environ, replace, lambda: write_credentials(credentials, NEW_KEY))
    assert_no_secret(logins, text)


@pytest.mark.parametrize(
    "case",
    [
        ("key", "allow these credentials kafka-cluster:Connect on the cluster"),
        ("region", "check that they are of its account and region"),
        ("none", "no AWS credentials were found: set AWS_ACCESS_KEY_ID"),
        ("profile", "AWS credentials cannot be loaded (ProfileNotFound): check the profile"),
        ("role", "what gives AWS credentials does not answer (EndpointConnectionError)"),
    ],
)
def test_msk_iam_login_that_fails_exits_with_one_line(
    broker: Broker, logins: Verifier, config: Config, credentials: Path, case: tuple[str, str]
) -> None:
    what, message = case
    environ = environment(broker, credentials)
    module = "software.amazon.msk.auth.iam.IAMLoginModule"
    if what == "key":
        write_credentials(credentials, "not-the-key")
    elif what == "region":
        environ["AWS_REGION"] = "us-east-1"
    elif what == "none":
        credentials.unlink()
    elif what == "profile":
        environ["GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG"] = f'{module} required awsProfileName="absent";'
    else:
        environ["GROUPTRAIL_KAFKA__SASL_JAAS_CONFIG"] = f'{module} required awsRoleArn="arn:aws:iam::1:role/kafka";'
        environ["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:1"
    failed = run_cli(config, "doctor", environ=environ)
    [line] = [line for line in failed.printed.splitlines() if line.startswith("FAIL")]
    assert failed.returncode == 1
    assert message in line
    assert_no_secret(logins, line)
