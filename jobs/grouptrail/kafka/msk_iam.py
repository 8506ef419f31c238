"""Login to Amazon MSK with AWS IAM: settings as AWS documents them for Java, and tokens by AWS's signer for Python.

A broker of MSK takes both of AWS's mechanisms at one port: Java's client logs in with AWS_MSK_IAM, kafka-python with
OAUTHBEARER, whose token is a presigned URL that lives for 15 minutes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

from grouptrail.config.jaas import jaas_line, jaas_options
from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError, TokenEndpointError
from grouptrail.kafka.tokens import Token

MECHANISM = "AWS_MSK_IAM"

_PACKAGE = "software.amazon.msk.auth.iam"
LOGIN_MODULE = f"{_PACKAGE}.IAMLoginModule"
_CLIENT_HANDLER = f"{_PACKAGE}.IAMClientCallbackHandler"
_OAUTH_HANDLER = f"{_PACKAGE}.IAMOAuthBearerLoginCallbackHandler"
HANDLERS = ("sasl.client.callback.handler.class", "sasl.login.callback.handler.class")

# As AWS names brokers: b-1.orders.abc123.c2.kafka.eu-central-1.amazonaws.com, boot-abc.c1.kafka-serverless.us-east-1…
_REGION = re.compile(r"\.kafka(?:-serverless)?\.([a-z]{2}(?:-[a-z]+)+-\d+)\.")

_KEYS = ("awsRoleAccessKeyId", "awsRoleSecretAccessKey", "awsRoleSessionToken")
_OPTIONS = ("awsProfileName", "awsRoleArn", "awsRoleSessionName", "awsRoleExternalId", "awsStsRegion", *_KEYS)
# These change nothing for kafka-python: retries, and a log of Java's.
_OPTIONS_OF_JAVA = ("awsMaxRetries", "awsMaxBackOffTimeMs", "awsDebugCreds")


def uses_msk_iam(settings: Mapping[str, str]) -> bool:
    """Return whether settings of Kafka's client log in with AWS IAM, in either of the forms that AWS documents."""
    if not settings.get("security.protocol", "").upper().startswith("SASL"):
        return False
    is_oauth = settings.get("sasl.mechanism") == "OAUTHBEARER"
    return settings.get("sasl.mechanism") == MECHANISM or (
        is_oauth and _OAUTH_HANDLER in (settings.get(name) for name in HANDLERS)
    )


@dataclass(frozen=True)
class MskIam:
    """Credentials of AWS for a cluster in a region: `options` of the JAAS line, otherwise the default chain."""

    region: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    timeout: float = 10.0

    @classmethod
    def of(cls, settings: Mapping[str, str], timeout: float) -> MskIam:
        """Return the login that the settings describe. Raises KafkaSettingError."""
        for name in HANDLERS:
            if settings.get(name, _CLIENT_HANDLER) not in (_CLIENT_HANDLER, _OAUTH_HANDLER):
                raise KafkaSettingError(f'kafka."{name}" is {settings[name]}: leave it out')
        options = jaas_options(settings.get("sasl.jaas.config", ""))
        for name in options:
            if name not in (*_OPTIONS, *_OPTIONS_OF_JAVA):
                raise KafkaSettingError(
                    f'kafka."sasl.jaas.config": {name} cannot be followed outside Java: leave it out, and use '
                    f"{', '.join(_OPTIONS[:5])}"
                )
        if "awsProfileName" in options and "awsRoleArn" in options:
            raise KafkaSettingError(
                'kafka."sasl.jaas.config" names awsProfileName and awsRoleArn, of which Java ignores the second: '
                "give one, or a profile with role_arn"
            )
        return cls(_region(settings), tuple(sorted(options.items())), timeout)

    @property
    def shown(self) -> str:
        """What gives the token."""
        return f"AWS IAM for {self.region}"

    @property
    def remedy(self) -> str:
        """What to do if a broker refuses its token."""
        return (
            "allow these credentials kafka-cluster:Connect on the cluster, check that they are of its account and "
            "region, and compare the clocks"
        )

    def java_settings(self) -> dict[str, str]:
        """Return the settings of this login for Java's client."""
        login = jaas_line(LOGIN_MODULE, dict(self.options))
        return {"sasl.mechanism": MECHANISM, "sasl.jaas.config": login, HANDLERS[0]: _CLIENT_HANDLER}

    def request(self) -> Token:
        """Return a new token.

        Raises KafkaLoginError if there are no credentials or AWS refuses them, TokenEndpointError if what gives them
        does not answer, KafkaSettingError if AWS's signer is not installed.
        """
        try:
            from aws_msk_iam_sasl_signer import MSKAuthTokenProvider
            from botocore.exceptions import ClientError
        except ImportError:
            raise KafkaSettingError(
                "the login with AWS IAM needs the package aws-msk-iam-sasl-signer-python: "
                "pip install 'grouptrail[msk]'"
            ) from None
        try:
            token, expires_ms = MSKAuthTokenProvider.generate_auth_token_from_credentials_provider(
                self.region, _provider(self)
            )
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "no reason")
            raise KafkaLoginError(
                f"AWS refuses to give credentials ({error.operation_name}: {code}): check the role and its trust "
                'policy (kafka."sasl.jaas.config", AWS_ROLE_ARN, or the profile)'
            ) from None
        except Exception as error:  # its classes have no common one
            _raise_without_credentials(error)
        return Token(token, expires_ms / 1000)


@cache
def _provider(login: MskIam) -> Any:
    """Return what loads the credentials of a login."""
    from botocore.config import Config
    from botocore.credentials import CredentialProvider, RefreshableCredentials
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    options = dict(login.options)
    limits = Config(connect_timeout=login.timeout, read_timeout=login.timeout, retries={"total_max_attempts": 1})

    class Provider(CredentialProvider):  # type: ignore[misc]
        _renewing: RefreshableCredentials | None = None

        def load(self) -> Any:
            # Those that renew themselves are kept: a broker knows a client that logs in again by the name of its
            # session, which may be another one after the next start. Others are read again, as they may be replaced.
            found: Any = self._renewing  # clients of several threads log in
            if found is None:
                session = Session(profile=options.get("awsProfileName"))
                session.set_default_client_config(limits)
                if arn := options.get("awsRoleArn"):
                    return _assumed(session, arn, options, login.region)
                found = session.get_credentials()
                if found is None:
                    raise NoCredentialsError
                if isinstance(found, RefreshableCredentials):
                    self._renewing = found
            return found.get_frozen_credentials()

    return Provider()


def _assumed(session: Any, arn: str, options: Mapping[str, str], region: str) -> Any:
    """Return the credentials of a role, assumed as AWS's library for Java does it."""
    from botocore.credentials import Credentials

    names = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
    keys = {name: options.get(option) for name, option in zip(names, _KEYS, strict=True)}
    client = session.create_client("sts", region_name=options.get("awsStsRegion", region), **keys)
    # By the name of the session a broker knows a client that logs in again.
    request = {"RoleArn": arn, "RoleSessionName": options.get("awsRoleSessionName", "aws-msk-iam-auth")}
    if "awsRoleExternalId" in options:
        request["ExternalId"] = options["awsRoleExternalId"]
    given = client.assume_role(**request)["Credentials"]
    return Credentials(given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])


def _raise_without_credentials(error: Exception) -> NoReturn:
    from botocore import exceptions as of_aws

    kind = type(error).__name__
    if isinstance(error, of_aws.NoCredentialsError):
        raise KafkaLoginError(
            "no AWS credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or AWS_PROFILE, or let "
            "the machine or pod have a role"
        ) from None
    if isinstance(error, of_aws.ConnectionError | of_aws.HTTPClientError | of_aws.MetadataRetrievalError):
        raise TokenEndpointError(
            f"what gives AWS credentials does not answer ({kind}): check the network to AWS STS or the metadata "
            'service, and awsStsRegion in kafka."sasl.jaas.config"'
        ) from None
    raise KafkaLoginError(
        f"AWS credentials cannot be loaded ({kind}): check the profile and the variables AWS_…"
    ) from None


def _region(settings: Mapping[str, str]) -> str:
    """Return the region as AWS's library for Java finds it, first by the brokers' names."""
    found = _REGION.search(settings.get("bootstrap.servers", ""))
    region = found[1] if found else os.environ.get("AWS_REGION")
    if not region:
        raise KafkaSettingError(
            'the region of the MSK cluster is not known: kafka."bootstrap.servers" has no names of MSK '
            "(….kafka.REGION.amazonaws.com), so set AWS_REGION"
        )
    return region
