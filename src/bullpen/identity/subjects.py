"""Names of callers: the subject of a token, and the object it represents."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

PREFIX = "internal:"
"""Prefix of the subject of our own tokens, which no outside issuer can produce."""

NAME_MAX = 63

MIGRATED_NAMESPACE = "jumpstarter.dev/migrated-namespace"
MIGRATED_UID = "jumpstarter.dev/migrated-uid"


class Role(StrEnum):
    """The two kinds of caller, spelled as in the ``jumpstarter-kind`` header."""

    CLIENT = "Client"
    EXPORTER = "Exporter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The object one of our tokens was issued for."""

    role: Role
    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.role.lower()}:{self.namespace}:{self.name}:{self.uid}"


def subject(
    role: Role, *, namespace: str, name: str, uid: str, annotations: Mapping[str, str]
) -> Subject:
    """The subject of an object's token; a migrated object keeps its old identity."""
    return Subject(
        role=role,
        namespace=annotations.get(MIGRATED_NAMESPACE, namespace),
        name=name,
        uid=annotations.get(MIGRATED_UID, uid),
    )


def groups(subject: Subject) -> tuple[str, ...]:
    """The groups of a subject, to which roles can be bound.

    Not system:authenticated: Jumpstarter's identities have no rights at the API server unless a
    binding names them or their groups.
    """
    group = f"jumpstarter:{subject.role.lower()}s"
    return (group, f"{group}:{subject.namespace}")


def usernames(expected: Subject, username: str) -> frozenset[str]:
    """All identities that may act as an object: its own token, and ``spec.username`` if set."""
    own = f"{PREFIX}{expected}"
    return frozenset({own, username}) if username else frozenset({own})


def object_name(username: str) -> str:
    """The name of the object for an outside identity.

    ``dex:Alice.B@example.com`` becomes ``alice-b-example-com``.
    """
    _, _, rest = username.partition(":")
    name = re.sub(r"[^-a-zA-Z0-9]", "-", rest.lower())
    name = re.sub(r"-+", "-", name)
    return name.removeprefix("-").removesuffix("-")[:NAME_MAX]


def secret_name(role: Role, name: str) -> str:
    """Name of the Secret with the token; `jmp admin` looks for exactly this."""
    return f"{name}-{role.lower()}"
