"""The server's TLS: certificates, client certificates, versions and cipher suites, with Go's names for them."""

from __future__ import annotations

import contextlib
import ipaddress
import ssl
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Those of crypto/tls that are not insecure, with OpenSSL's names.
_CIPHER_SUITES = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
}
# TLS 1.3 always has all of these.
_CIPHER_SUITES_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
_CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
_NAMES = ("DNS", "email", "IP Address", "URI")


def tls_context(certificate: Path, key: Path | None, client_ca: Path | None) -> ssl.SSLContext:
    """Return the context of PEM files; with `client_ca`, clients need a certificate. Raises OSError or ValueError."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key, _no_password)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    # Otherwise OpenSSL asks for it at the terminal.
    raise ValueError("the private key is encrypted: decrypt it, and protect its file")


def limit_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow only these cipher suites; those of TLS 1.3 cannot be chosen. Raises ValueError for an unknown one."""
    unknown = [name for name in names if name not in (*_CIPHER_SUITES, *_CIPHER_SUITES_13)]
    if unknown:
        raise ValueError(f"unknown cipher suite {unknown[0]!r}: use one of {', '.join(_CIPHER_SUITES)}")
    older = [_CIPHER_SUITES[name] for name in names if name in _CIPHER_SUITES]
    if older:
        context.set_ciphers(":".join(older))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def limit_curves(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Allow only this curve. Raises ValueError for an unknown one, or several, which Python cannot set."""
    if len(names) != 1 or names[0] not in _CURVES:
        raise ValueError(f"give one of {', '.join(_CURVES)}, or leave curve_preferences out: Python sets one at most")
    context.set_ecdh_curve(_CURVES[names[0]])


def names_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the subject alternative names of a certificate: host names, IP addresses, e-mail addresses and URIs."""
    entries = (certificate or {}).get("subjectAltName", ())
    return frozenset(plain_name(value) for kind, value in entries if kind in _NAMES)


def plain_name(name: str) -> str:
    """Return a subject alternative name, an IP address in its shortest form."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(name.strip()))
    return name
