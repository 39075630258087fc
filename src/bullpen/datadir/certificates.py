"""Certificates: our own CA, the server certificates it signs, and the files they are in.

EC P-256 throughout: clients of this service open a connection per stream, and its
handshakes cost a tenth of RSA's. Keys are readable by their owner only.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bullpen.datadir.directory import PUBLIC, SECRET, write_atomically
from bullpen.errors import Refused

CA_DAYS = 3650
SERVER_DAYS = 397
RENEW_BEFORE = timedelta(days=30)
CLOCK_SKEW = timedelta(minutes=5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate, with its chain if any, and its key. Both are PEM."""

    certificate: bytes
    key: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificates:
    """The paths of the files; servers load them from there."""

    ca: Path
    server_chain: Path
    server_key: Path

    def ca_pem(self) -> bytes:
        return self.ca.read_bytes()


def hosts_of(host: str) -> tuple[str, ...]:
    """The names clients may use for this machine."""
    return tuple(sorted({"localhost", "127.0.0.1", "::1", socket.gethostname(), host}))


def ensure(directory: Path, hosts: tuple[str, ...], *, now: datetime) -> Certificates:
    """Create missing files; renew certificates that expire or lack one of ``hosts``.

    The authority is created once and kept, because clients pin it.
    """
    found = Certificates(
        ca=directory / "ca.crt",
        server_chain=directory / "server.crt",
        server_key=directory / "server.key",
    )
    ca_key = directory / "ca.key"
    if not found.ca.exists() or not ca_key.exists():
        authority = make_authority(now=now)
        write_atomically(ca_key, authority.key, mode=SECRET)
        write_atomically(found.ca, authority.certificate, mode=PUBLIC)
    if not _still_good(found, hosts, now=now):
        _issue(found, ca_key, hosts, now=now)
    return found


def _issue(found: Certificates, ca_key: Path, hosts: tuple[str, ...], *, now: datetime) -> None:
    authority = Pair(certificate=found.ca_pem(), key=ca_key.read_bytes())
    try:
        made = issue(authority, hosts, now=now)
    except ValueError as error:
        raise Refused(f"{ca_key} cannot sign: {error}; restore it from a backup") from None
    write_atomically(found.server_key, made.key, mode=SECRET)
    write_atomically(found.server_chain, made.certificate, mode=PUBLIC)


def _still_good(found: Certificates, hosts: tuple[str, ...], *, now: datetime) -> bool:
    if not found.server_chain.exists() or not found.server_key.exists():
        return False
    try:
        return serves(found.server_chain.read_bytes(), found.ca_pem(), hosts, now=now)
    except ValueError:
        raise Refused(
            f"{found.server_chain} or {found.ca} is not a certificate;"
            " remove it and restart the service"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsFiles:
    """An external server certificate as files, for example renewed by cert-manager."""

    certificate: Path
    key: Path
    ca: Path

    def read(self) -> tuple[bytes, Pair]:
        """The CA, and the certificate with its key; raises ``Refused``."""
        try:
            pair = Pair(certificate=self.certificate.read_bytes(), key=self.key.read_bytes())
            return self.ca.read_bytes(), pair
        except OSError as error:
            raise Refused(f"{error.filename} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def as_files(pair: Pair) -> Iterator[tuple[str, str]]:
    """The paths of a certificate and its key, for libraries that read only files."""
    with tempfile.TemporaryDirectory(prefix="bullpen-") as directory:
        chain, key = Path(directory) / "server.crt", Path(directory) / "server.key"
        chain.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        yield str(chain), str(key)


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
    signer, signing_key = load_certificate(authority.certificate), _load_key(authority.key)
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
    found = load_certificate(certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    lasting = found.not_valid_after_utc - RENEW_BEFORE > now
    ours = found.issuer == load_certificate(authority).subject
    return lasting and ours and {_name(h) for h in hosts} <= set(names)


def load_certificate(certificate: bytes) -> x509.Certificate:
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
