"""ServiceAccount: an identity for programs, with tokens issued on request."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api.core import ObjectReference
from bullpen.api.fields import Kind, about
from bullpen.api.meta import LocalObjectReference, ObjectMeta

USERNAME_PREFIX = "system:serviceaccount:"
GROUP = "system:serviceaccounts"
"""Every service account is in this group, and in that of its namespace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceAccount(Kind):
    """An identity for programs such as pipelines; its ``token`` subresource makes tokens."""

    api_version: ClassVar[str] = "v1"
    kind: ClassVar[str] = "ServiceAccount"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    secrets: tuple[ObjectReference, ...] = field(
        default=(), metadata=about("Secrets of the account; not used here.", list_type="atomic")
    )
    image_pull_secrets: tuple[LocalObjectReference, ...] = field(
        default=(),
        metadata=about("Secrets for pulling images; not used here.", list_type="atomic"),
    )
    automount_service_account_token: bool | None = field(
        default=None, metadata=about("Whether Pods get a token; not used here.")
    )


def username(namespace: str, name: str) -> str:
    """The user name of the account."""
    return f"{USERNAME_PREFIX}{namespace}:{name}"


def groups(namespace: str) -> tuple[str, ...]:
    """The groups of every service account in ``namespace``."""
    return (GROUP, f"{GROUP}:{namespace}")


def parse_username(user: str) -> tuple[str, str] | None:
    """The namespace and name of the account that ``user`` names; None for other users."""
    parts = user.removeprefix(USERNAME_PREFIX).split(":")
    if not user.startswith(USERNAME_PREFIX) or len(parts) != 2 or not all(parts):
        return None
    return parts[0], parts[1]
