"""JSON Web Tokens (RFC 7519): what the claims of an access token say, and JWTs signed with a private key."""

from __future__ import annotations

import base64
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from grouptrail.kafka.errors import KafkaLoginError, KafkaSettingError
from grouptrail.kafka.tokens import Token

ALGORITHMS = ("RS256", "ES256")
KEY_FILE = "sasl.oauthbearer.assertion.private.key.file"
REMEDY = (
    "compare its issuer, audience, scope and times with what the brokers expect (sasl.oauthbearer.expected.…), and "
    "see their log"
)
"""What to do if a broker refuses a JWT."""


@dataclass(frozen=True)
class ClaimNames:
    """The claims with a token's principal and its scopes."""

    sub: str = "sub"
    scope: str = "scope"

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> ClaimNames:
        """Return the names that the settings of Kafka's client have."""
        prefix = "sasl.oauthbearer"
        return cls(
            settings.get(f"{prefix}.sub.claim.name", cls.sub), settings.get(f"{prefix}.scope.claim.name", cls.scope)
        )


def access_token(text: str, origin: str, names: ClaimNames) -> Token:
    """Return a JWT as a token to log in with. Raises KafkaLoginError for one that Kafka's clients do not accept.

    `origin` is the beginning of a message about it: "the file … has".
    """
    claims = _claims(text)
    if claims is None:
        _raise_unusable(origin, "that is no JWT", "use JWTs, which Kafka's clients need")
    expires_at = claims.get("exp")
    if isinstance(expires_at, bool) or not isinstance(expires_at, int | float) or not math.isfinite(expires_at):
        _raise_unusable(origin, "without exp", "use tokens that expire, as Kafka's clients demand")
    if expires_at <= time.time():
        _raise_unusable(origin, "that has already expired", "compare the clocks, and see whether it is renewed")
    subject = claims.get(names.sub)
    if not isinstance(subject, str) or not subject.strip():
        _raise_unusable(
            origin, f"without {names.sub}", 'check kafka."sasl.oauthbearer.sub.claim.name", the principal'
        )
    if not isinstance(claims.get(names.scope, ""), str | list):
        _raise_unusable(origin, f"whose {names.scope} is no text", 'check kafka."sasl.oauthbearer.scope.claim.name"')
    return Token(text, float(expires_at))


def _raise_unusable(origin: str, what: str, remedy: str) -> NoReturn:
    raise KafkaLoginError(f"{origin} a token {what}: {remedy}")


def _claims(text: str) -> Mapping[str, Any] | None:
    """Return a JWT's claims, which only the brokers verify; None if it is none."""
    parts = text.split(".")
    if len(parts) != 3 or not all(re.fullmatch(r"[\w-]+=*", part, re.ASCII) for part in parts):
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError):
        return None
    return claims if isinstance(claims, dict) else None


def signed_jwt(
    header: Mapping[str, Any], claims: Mapping[str, Any], algorithm: str, key_file: str, passphrase: str | None
) -> str:
    """Return a JWT signed with the private key in a PEM file, by RS256 or ES256.

    Raises KafkaLoginError if the key cannot be used, since it may be replaced just now; KafkaSettingError if the
    package for signatures is missing.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise KafkaSettingError(
            f"kafka.\"{KEY_FILE}\" needs the package cryptography: pip install 'grouptrail[jwt]'"
        ) from None
    kind = {"RS256": "RSA", "ES256": "EC (P-256)"}[algorithm]
    unusable = f'kafka."{KEY_FILE}": {key_file} is no {kind} key in PEM for {algorithm}'
    try:
        with open(key_file, "rb") as file:
            key = load_pem_private_key(file.read(), passphrase.encode() if passphrase else None)
    except OSError as error:
        raise KafkaLoginError(
            f'kafka."{KEY_FILE}": {key_file} cannot be read ({error.strerror}): mount the key there'
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KafkaLoginError(
            f'{unusable}, or its passphrase is wrong: check both (kafka."sasl.oauthbearer.assertion.private.key.…")'
        ) from None
    text = f"{_encoded({**header, 'alg': algorithm, 'typ': 'JWT'})}.{_encoded(claims)}"
    if algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    elif algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.name == "secp256r1":
        pair = decode_dss_signature(key.sign(text.encode(), ec.ECDSA(hashes.SHA256())))
        signature = b"".join(part.to_bytes(32) for part in pair)
    else:
        raise KafkaLoginError(f'{unusable}: give another, or set kafka."sasl.oauthbearer.assertion.algorithm"')
    return f"{text}.{_base64(signature)}"


def _encoded(part: Mapping[str, Any]) -> str:
    return _base64(json.dumps(part).encode())


def _base64(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()
