"""The users that client certificates name. It verifies none: the TLS handshake has done that."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from cryptography import x509
from cryptography.x509.oid import NameOID

from bullpen.core.rbac.authorization import AUTHENTICATED, User
from bullpen.errors import Unauthorized

RESERVED = "system:"
"""Names and groups with this prefix are assigned by API servers only, not by outside issuers."""

CERTIFICATES_CACHED_MAX = 1_000


@lru_cache(maxsize=CERTIFICATES_CACHED_MAX)
def user_of_certificate(certificate: bytes) -> User:
    """The user of a client certificate (DER) that the TLS handshake has verified.

    The common name is the user, each organization a group, as in Kubernetes.
    """
    try:
        subject = x509.load_der_x509_certificate(certificate).subject
    except ValueError:
        raise Unauthorized("the client certificate cannot be read") from None
    names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if not names or not names[0]:
        raise Unauthorized("the client certificate has no common name, so it names no user")
    organizations = subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    user = User(name=names[0], groups=tuple(str(item.value) for item in organizations))
    return replace(user, groups=(*dict.fromkeys((*user.groups, AUTHENTICATED)),))
