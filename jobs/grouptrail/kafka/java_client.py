"""Settings of logins for the Java client that Spark brings, of Kafka 3.9.

It knows no settings of OAUTHBEARER that are newer, no JWT signed by the client and no proxy; it reads a token's file
once.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from grouptrail.config.jaas import jaas_line
from grouptrail.kafka import kerberos
from grouptrail.kafka.errors import KafkaSettingError
from grouptrail.kafka.msk_iam import MskIam
from grouptrail.kafka.oauthbearer import (
    CLIENT_ID,
    CLIENT_SECRET,
    EXTENSION,
    HANDLER,
    LOGIN_HANDLER,
    PACKAGE,
    SCOPE,
    TIMEOUT_MS,
    TIMEOUTS_MS,
    URL,
    Login,
    tokens_of,
    uses_tokens,
)
from grouptrail.kafka.token_endpoint import Endpoint
from grouptrail.kafka.token_relay import CLIENT, TokenRelay
from grouptrail.kafka.tokens import Tokens

_NEWER = (CLIENT_ID, CLIENT_SECRET, SCOPE, "sasl.oauthbearer.assertion.", "sasl.oauthbearer.jwt.")


def java_settings(settings: Mapping[str, str], *, is_local: bool = True) -> dict[str, str]:
    """Return settings of Kafka's client as those of Spark's, with secrets.

    `is_local`: no executor runs in another process. Raises KafkaSettingError.
    """
    if not uses_tokens(settings):
        return kerberos.java_settings(settings)
    login = Login.of(settings)
    known = {name: value for name, value in settings.items() if not name.startswith(_NEWER) and name != HANDLER}
    if isinstance(login.source, MskIam):
        return {**known, **login.source.java_settings()}
    # By default Java would wait forever for an endpoint that is silent.
    known = {**dict.fromkeys(TIMEOUTS_MS, str(TIMEOUT_MS)), **known, HANDLER: LOGIN_HANDLER}
    if isinstance(login.source, Endpoint) and login.source.client_secret and not (is_local and login.source.proxy):
        client = {"clientId": login.source.client_id or "", "clientSecret": login.source.client_secret}
        client |= {"scope": login.source.scope} if login.source.scope else {}
        client |= dict(login.tls)
    else:
        relay = _relay_of(settings, is_local=is_local)
        client = {"clientId": CLIENT, "clientSecret": relay.secret}
        known[URL] = relay.url
    client |= {f"{EXTENSION}{name}": value for name, value in login.extensions}
    return {**known, "sasl.jaas.config": jaas_line(f"{PACKAGE}.OAuthBearerLoginModule", client)}


def _relay_of(settings: Mapping[str, str], *, is_local: bool) -> TokenRelay:
    tokens = tokens_of(settings)
    if tokens is None or not is_local:
        raise KafkaSettingError(
            "tokens in files and JWTs signed by the client need Spark in grouptrail's own process, since the Kafka "
            "client that executors have knows neither: run it without a cluster (spark.master local[*]), or log in "
            "with the client's id and secret"
        )
    return _relay(tokens)


@cache
def _relay(tokens: Tokens) -> TokenRelay:
    return TokenRelay(tokens)
