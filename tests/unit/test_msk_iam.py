"""Login to Amazon MSK with AWS IAM: settings, the region, credentials and errors; AWS's signer makes the tokens."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import botocore.client
import pytest
from moto.server import ThreadedMotoServer

from grouptrail.config.jaas import jaas_options
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError, TokenEndpointError
from grouptrail.kafka.java_client import java_settings
from grouptrail.kafka.msk_iam import MskIam, uses_msk_iam
from grouptrail.kafka.oauthbearer import Login
from grouptrail.kafka.settings import client_arguments
from support.msk_broker import ACCESS_KEY, REGION, SECRET_KEY, RefusedError, Verifier

PACKAGE = "software.amazon.msk.auth.iam"
MODULE = f"{PACKAGE}.IAMLoginModule"
SETTINGS = {
    "bootstrap.servers": f"b-1.orders.abc123.c2.kafka.{REGION}.amazonaws.com:9098",
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "AWS_MSK_IAM",
    "sasl.jaas.config": f"{MODULE} required;",
    "sasl.client.callback.handler.class": f"{PACKAGE}.IAMClientCallbackHandler",
}
HANDLER = f"{PACKAGE}.IAMOAuthBearerLoginCallbackHandler"
OAUTHBEARER = SETTINGS | {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
    "sasl.login.callback.handler.class": HANDLER,
    "sasl.client.callback.handler.class": HANDLER,
}
ROLE = "arn:aws:iam::123456789012:role/kafka"


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Credentials in variables alone."""
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ROLE_ARN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def requested(settings: dict[str, str]) -> str:
    return Login.of(settings).source.request().text


def with_jaas(options: str) -> dict[str, str]:
    return SETTINGS | {"sasl.jaas.config": f"{MODULE} required {options};"}


@pytest.mark.parametrize("settings", [SETTINGS, OAUTHBEARER], ids=["java", "oauthbearer"])
def test_login_of_either_form_is_oauthbearer_in_python_and_aws_msk_iam_in_java(settings: dict[str, str]) -> None:
    assert client_arguments(settings)["sasl_mechanism"] == "OAUTHBEARER"
    assert java_settings(settings) == SETTINGS
    assert uses_msk_iam(settings)
    assert not uses_msk_iam(settings | {"security.protocol": "SSL"})


def test_request_token_lives_for_a_quarter_of_an_hour_and_has_a_signature_that_verifies() -> None:
    source = Login.of(SETTINGS).source
    verifier = Verifier()
    assert verifier.verify("token", source.request().text.encode()).startswith("watcher ")
    with pytest.raises(RefusedError, match="signature"):
        Verifier(keys={ACCESS_KEY: "another"}).verify("token", source.request().text.encode())
    assert SECRET_KEY not in repr(source)


@pytest.mark.parametrize(
    ("server", "region"),
    [
        ("b-1.orders.abc123.c2.kafka.us-gov-west-1.amazonaws.com:9098", "us-gov-west-1"),
        ("boot-abc.c1.kafka-serverless.ap-southeast-2.amazonaws.com:9098", "ap-southeast-2"),
        ("b-1.orders.abc123.c2.kafka.cn-north-1.amazonaws.com.cn:9098", "cn-north-1"),
        ("kafka.internal:9098", "eu-west-3"),
    ],
)
def test_region_is_the_one_of_the_brokers_names_or_of_the_environment(
    server: str, region: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REGION", "eu-west-3")
    source = Login.of(SETTINGS | {"bootstrap.servers": server}).source
    assert isinstance(source, MskIam)
    assert source.region == region


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"bootstrap.servers": "kafka.internal:9098"}, "so set AWS_REGION"),
        ({"sasl.jaas.config": f'{MODULE} required awsMskRegionProvider="x";'}, "awsMskRegionProvider cannot be"),
        ({"sasl.jaas.config": f'{MODULE} required awsProfileName="a" awsRoleArn="b";'}, "Java ignores the second"),
        ({"sasl.client.callback.handler.class": "com.example.Handler"}, "leave it out"),
        ({"sasl.server.callback.handler.class": "x"}, "cannot be followed outside Java"),
    ],
)
def test_login_wrong_setting_raises_one_line(changes: dict[str, str], message: str) -> None:
    with pytest.raises(KafkaSettingError) as caught:
        client_arguments(SETTINGS | changes)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_request_without_the_signer_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(KafkaSettingError, match=r"pip install 'grouptrail\[msk\]'"):
        requested(SETTINGS)


def test_request_credentials_of_a_profile_are_read_again(tmp_path: Path) -> None:
    file, verifier = tmp_path / "credentials", Verifier(keys={"A": "first", "B": "second"})
    login = with_jaas('awsProfileName="kafka"')
    for access_key, secret in verifier.keys.items():
        file.write_text(f"[kafka]\naws_access_key_id = {access_key}\naws_secret_access_key = {secret}\n")
        assert verifier.verify("token", requested(login).encode())


def test_request_without_credentials_raises_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(KafkaLoginError, match="no AWS credentials were found"):
        requested(SETTINGS)
    with pytest.raises(KafkaLoginError, match="cannot be loaded \\(ProfileNotFound\\)"):
        requested(with_jaas('awsProfileName="absent"'))


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """AWS STS on this machine."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://{host}:{port}")
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def test_request_role_is_assumed_with_the_options_of_the_jaas_line(sts: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token then has the session's token, which STS gave."""
    asked: list[dict[str, str]] = []
    call = botocore.client.BaseClient._make_api_call

    def noted(self: object, operation: str, parameters: dict[str, str]) -> object:
        asked.append(parameters)
        return call(self, operation, parameters)

    monkeypatch.setattr(botocore.client.BaseClient, "_make_api_call", noted)
    options = f'awsRoleArn="{ROLE}" awsRoleSessionName="trail" awsRoleExternalId="x-1" awsStsRegion="eu-west-1"'
    token = requested(with_jaas(options))
    assert asked == [{"RoleArn": ROLE, "RoleSessionName": "trail", "ExternalId": "x-1"}]
    verifier = Verifier()
    with pytest.raises(RefusedError, match="access key"):
        verifier.verify("token", token.encode())
    assert jaas_options(java_settings(with_jaas(options))["sasl.jaas.config"])["awsRoleArn"] == ROLE


@contextmanager
def sts_that_answers(status: int, content: bytes) -> Iterator[str]:
    """Serve one answer to whatever is asked, and yield the address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


REFUSAL = f"<ErrorResponse><Error><Code>AccessDenied</Code><Message>{SECRET_KEY}</Message></Error></ErrorResponse>"


@pytest.mark.parametrize(
    ("status", "content", "message"),
    [
        (403, REFUSAL, "AWS refuses to give credentials (AssumeRole: AccessDenied): check the role"),
        (200, "<html>", "AWS credentials cannot be loaded (ResponseParserError)"),
        (0, "", "what gives AWS credentials does not answer (EndpointConnectionError)"),
    ],
)
def test_request_sts_without_an_answer_of_use_raises_one_line(
    monkeypatch: pytest.MonkeyPatch, status: int, content: str, message: str
) -> None:
    login = with_jaas(f'awsRoleArn="{ROLE}" awsRoleAccessKeyId="A" awsRoleSecretAccessKey="{SECRET_KEY}"')
    answering = sts_that_answers(status, content.encode()) if status else nullcontext("http://127.0.0.1:1")
    with answering as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", address)
        with pytest.raises((KafkaLoginError, TokenEndpointError)) as caught:
            requested(login)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert SECRET_KEY not in str(caught.value)
