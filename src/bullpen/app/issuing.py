"""Certificates as PEM: our own CA, and the server certificates it signs.

EC P-256 throughout: clients of this service open a connection per stream, and its
handshakes cost a tenth of RSA's. Nothing is stored here: see ``certificates`` for files,
``sharing`` for Secrets.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
SERVER_DAYS = 397
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate, with its chain if any, and its key. Both are PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


def make_authority(*, now: datetime) -> Pair:
    """Create a self-signed CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bullpen CA")])
    certificate = (
        _builder(name, name, key.public_key(), now=now, days=CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Pair(certificate=_pem(certificate), key=_key_pem(key))


def issue(authority: Pair, hosts: tuple[str, ...], *, now: datetime) -> Pair:
    """A server certificate for ``hosts``; raises ``ValueError`` for an invalid CA."""
    signer, signing_key = load(authority.certificate), _load_key(authority.key)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bullpen")])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    certificate = (
        _builder(name, signer.subject, key.public_key(), now=now, days=SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(h) for h in hosts]), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    return Pair(certificate=_pem(certificate) + authority.certificate, key=_key_pem(key))


def serves(certificate: bytes, authority: bytes, hosts: tuple[str, ...], *, now: datetime) -> bool:
    """Whether a certificate may stay in use: not expiring, signed by the CA, for all hosts."""
    found = load(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lasting = found.not_valid_after_utc - RENEW_BEFORE > now
    ours = found.issuer == load(authority).subject
    return lasting and ours and {_name(h) for h in hosts} <= set(names)


def load(certificate: bytes) -> x509.Certificate:
    """The first certificate in a PEM; raises ``ValueError``."""
    return x509.load_pem_x509_certificate(certificate)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    *,
    now: datetime,
    days: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, ca: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=ca,
        crl_sign=ca,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("the authority's key is not an elliptic-curve key")  # noqa: TRY004
    return key
