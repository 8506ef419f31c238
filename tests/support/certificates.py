"""Certificates for what tests start on this machine, all in PEM files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)

_THIS_MACHINE = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1")), x509.DNSName("localhost")])


def self_signed(folder: Path, name: str = "exporter") -> tuple[Path, Path]:
    """Create a self-signed certificate for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key.public_key()).add_extension(_THIS_MACHINE, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    (folder / "certificate.pem").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(_private(key, NoEncryption()))
    return folder / "certificate.pem", folder / "key.pem"


def trust_store(certificate: Path, target: Path, password: str) -> None:
    """Write a trust store for Java with a certificate; the JRE from PyPI has no keytool."""
    trusted = pkcs12.PKCS12Certificate(x509.load_pem_x509_certificate(certificate.read_bytes()), b"server")
    target.write_bytes(pkcs12.serialize_java_truststore([trusted], BestAvailableEncryption(password.encode())))


class Authority:
    """A certificate authority; `certificate` is its own certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = folder / f"{name}.pem"
        own = _builder(name, name, self._key.public_key()).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        self.certificate.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def signed(self, subject: str) -> Path:
        """Return one file with a key and a signed certificate for this machine."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(subject, self._name, key.public_key()).add_extension(_THIS_MACHINE, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)
        keystore = self._folder / f"{self._name}-{subject}.pem"
        keystore.write_bytes(_private(key, NoEncryption()) + certificate)
        return keystore


def _builder(subject: str, issuer: str, public: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        _named(issuer),
        _named(subject),
        public,
        x509.random_serial_number(),
        now - timedelta(days=1),
        now + timedelta(days=1),
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _private(key: ec.EllipticCurvePrivateKey, how: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how)
