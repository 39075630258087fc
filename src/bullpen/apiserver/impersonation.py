"""Impersonation of other users: the ``Impersonate-*`` headers that ``kubectl --as`` sends.

Pure. ``requested`` parses the headers, ``required`` returns the rights the caller needs,
one for each part of the requested identity, and ``impersonated`` is the resulting user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from bullpen.api import serviceaccount
from bullpen.core.rbac.authorization import AUTHENTICATED, Attributes, User
from bullpen.errors import BadRequest

PREFIX = "impersonate-"
EXTRA_PREFIX = "extra-"
HEADERS_MAX = 100
AUTHENTICATION = "authentication.k8s.io"
ANONYMOUS = "system:anonymous"


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """The identity a caller asks to act as."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()
    """Keys and values; a key with several values occurs several times."""


def requested(headers: tuple[tuple[str, str], ...]) -> Impersonation | None:
    """The impersonation in the headers; None if there is none. Raises ``BadRequest``."""
    if not headers:
        return None
    if len(headers) > HEADERS_MAX:
        raise BadRequest(f"more than {HEADERS_MAX} Impersonate headers were sent")
    users: list[str] = []
    uids: list[str] = []
    groups: list[str] = []
    extra: list[tuple[str, str]] = []
    for name, value in headers:
        part = name.removeprefix(PREFIX)
        if part == "user":
            users.append(value)
        elif part == "group":
            groups.append(value)
        elif part == "uid":
            uids.append(value)
        elif part.startswith(EXTRA_PREFIX):
            extra.append((unquote(part.removeprefix(EXTRA_PREFIX)), value))
    if not users or not users[0]:
        raise BadRequest("Impersonate headers were sent without Impersonate-User; name a user")
    return Impersonation(
        user=users[0], uid=uids[0] if uids else "", groups=tuple(groups), extra=tuple(extra)
    )


def required(wanted: Impersonation) -> Iterator[Attributes]:
    """The rights a caller needs for this impersonation."""
    account = serviceaccount.parse_username(wanted.user)
    if account is not None:
        namespace, name = account
        yield Attributes(
            verb="impersonate", resource="serviceaccounts", namespace=namespace, name=name
        )
    else:
        yield Attributes(verb="impersonate", resource="users", name=wanted.user)
    for group in wanted.groups:
        yield Attributes(verb="impersonate", resource="groups", name=group)
    for key, value in wanted.extra:
        yield Attributes(
            verb="impersonate",
            group=AUTHENTICATION,
            resource="userextras",
            subresource=key,
            name=value,
        )
    if wanted.uid:
        yield Attributes(verb="impersonate", group=AUTHENTICATION, resource="uids", name=wanted.uid)


def impersonated(wanted: Impersonation) -> User:
    """The user that ``wanted`` describes, with the groups that every such user has."""
    groups = list(wanted.groups)
    account = serviceaccount.parse_username(wanted.user)
    if account is not None and not groups:
        groups.extend(serviceaccount.groups(account[0]))
    if wanted.user != ANONYMOUS:
        groups.append(AUTHENTICATED)
    extra: dict[str, tuple[str, ...]] = {}
    for key, value in wanted.extra:
        extra[key] = (*extra.get(key, ()), value)
    return User(name=wanted.user, uid=wanted.uid, groups=tuple(dict.fromkeys(groups)), extra=extra)
