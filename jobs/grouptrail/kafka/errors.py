"""Errors of the Kafka clients."""

from __future__ import annotations

from kafka import errors as client_errors

from grouptrail.errors import GrouptrailError


class ClusterError(GrouptrailError):
    """A request to the cluster failed."""


class KafkaUnreachableError(ClusterError):
    """No Kafka broker answered."""


class LoginServerError(KafkaUnreachableError):
    """The server that a login needs besides the broker does not answer, so that none was tried."""


class TokenEndpointError(LoginServerError):
    """The token endpoint does not answer as one."""


class KdcUnreachableError(LoginServerError):
    """No KDC of the Kerberos realm answers."""


class KafkaDeniedError(ClusterError):
    """The broker rejected the login, or the principal lacks a right."""


class KafkaLoginError(KafkaDeniedError):
    """The broker rejected the login, or the token endpoint or KDC did, or it gave what cannot be used."""


class TopicMissingError(ClusterError):
    """The offsets topic does not exist: brokers create it at the first commit."""


class KafkaSettingError(GrouptrailError):
    """A Kafka setting is wrong, or decides on security and has no counterpart in kafka-python."""


def why_unanswered(error: ClusterError) -> str:
    """Return why a broker gave no answer, as the predicate of a sentence about it."""
    if isinstance(error, (KafkaLoginError, LoginServerError)):
        return "got no valid login"
    return "refuses this principal" if isinstance(error, KafkaDeniedError) else "did not answer"


def error_name(error_code: int) -> str:
    """Return kafka-python's name of an error code of the Kafka protocol."""
    return str(client_errors.for_code(error_code).__name__)
