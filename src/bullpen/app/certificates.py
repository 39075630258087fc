"""The service's own certificate authority and the certificate its servers show.

EC P-256 throughout: clients of this service open a connection per stream, and
handshakes with it cost a tenth of RSA's. Keys are readable by their owner only.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bullpen.app.files import PUBLIC, SECRET, write_atomically
from bullpen.errors import Refused

CA_DAYS = 3650
SERVER_DAYS = 397
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Where the files are; servers load them from there."""

    ca: Path
    server_chain: Path
    server_key: Path

    def ca_pem(self) -> bytes:
        return self.ca.read_bytes()


def ensure(directory: Path, hosts: tuple[str, ...], *, now: datetime) -> Certificates:
    """Make what is missing, renew what runs out or lacks one of ``hosts``.

    The authority is made once and kept: clients pinned it.
    """
    found = Certificates(
        ca=directory / "ca.crt",
        server_chain=directory / "server.crt",
        server_key=directory / "server.key",
    )
    ca_key_path = directory / "ca.key"
    if not found.ca.exists() or not ca_key_path.exists():
        _make_authority(found.ca, ca_key_path, now=now)
    if not _still_good(found, hosts, now=now):
        _issue(found, ca_key_path, hosts, now=now)
    return found


def _make_authority(ca_path: Path, key_path: Path, *, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bullpen CA")])
    certificate = (
        _builder(name, name, key.public_key(), now=now, days=CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(ca=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_atomically(key_path, _pem(key), mode=SECRET)
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    write_atomically(ca_path, pem, mode=PUBLIC)


def _issue(
    found: Certificates, ca_key_path: Path, hosts: tuple[str, ...], *, now: datetime
) -> None:
    authority = _load_certificate(found.ca)
    ca_key = _load_key(ca_key_path)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bullpen")])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    certificate = (
        _builder(name, authority.subject, key.public_key(), now=now, days=SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(ca=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.SubjectAlternativeName([_name(h) for h in hosts]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    write_atomically(found.server_key, _pem(key), mode=SECRET)
    chain = certificate.public_bytes(serialization.Encoding.PEM) + found.ca_pem()
    write_atomically(found.server_chain, chain, mode=PUBLIC)


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


def _still_good(found: Certificates, hosts: tuple[str, ...], *, now: datetime) -> bool:
    if not found.server_chain.exists() or not found.server_key.exists():
        return False
    certificate = _load_certificate(found.server_chain)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lasting = certificate.not_valid_after_utc - RENEW_BEFORE > now
    ours = certificate.issuer == _load_certificate(found.ca).subject
    return lasting and ours and {_name(h) for h in hosts} <= set(names)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _load_certificate(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except ValueError:
        raise Refused(f"{path} is not a certificate; remove it and start again") from None


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError:
        raise Refused(f"{path} is not a private key; restore it from a backup") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Refused(f"{path} is not an elliptic-curve key; restore it from a backup")
    return key
