"""The start and the revision of a list: continue tokens and resourceVersions.

A token carries the revision of the first page and the last key it returned, so every page
is read from one snapshot. Tokens are opaque to clients and never trusted: a key from a
token only ever extends the prefix being listed.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

import msgspec

from bullpen.errors import BadRequest, Cause, Gone, Invalid, TimedOut
from bullpen.registry.refusals import invalid_kind

LATEST = -1
"""The revision in a token that continues from the newest state, consistent or not."""

_VERSION = "meta.k8s.io/v1"
_EXPIRED = "The resourceVersion for the provided list is too old."
_CONTINUE_EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can"
    " start a new list without the continue parameter, or use the continue token in this response"
    " to retrieve the remainder of the results. Continuing with the provided token results in an"
    " inconsistent list - objects that were created, modified, or deleted between the time the"
    " first chunk was returned and now may show up in the list."
)


class _Token(msgspec.Struct):
    v: str
    rv: int
    start: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Where to read: after ``after``, at revision ``at`` or else at the newest one."""

    after: str = ""
    at: int | None = None


def start(
    prefix: str, *, current: int, limit: int, token: str, resource_version: str, match: str
) -> Start:
    """Interpret the paging parameters of a list; raises if they contradict each other."""
    _check(limit=limit, token=token, resource_version=resource_version, match=match)
    if token:
        return _resume(prefix, token)
    if resource_version in ("", "0"):
        return Start()
    revision = number(resource_version)
    if revision > current:
        raise TimedOut(
            f"Timeout: Too large resource version: {revision}, current: {current}",
            causes=(Cause("", "Too large resource version", "ResourceVersionTooLarge"),),
        )
    exact = match == "Exact" or (match == "" and limit > 0)
    return Start(at=revision) if exact else Start()


def continue_token(prefix: str, key: str, revision: int) -> str:
    """The token that continues after ``key`` in the snapshot at ``revision``."""
    assert key.startswith(prefix)
    data = msgspec.json.encode(_Token(v=_VERSION, rv=revision, start=key.removeprefix(prefix)))
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def expired(prefix: str, begun: Start) -> Gone:
    """The error when the snapshot has been compacted away.

    With the fact ``continue_token`` a client can continue from the newest state, if it accepts
    an inconsistent list.
    """
    if not begun.after:
        return Gone(_EXPIRED)
    return Gone(_CONTINUE_EXPIRED, continue_token=continue_token(prefix, begun.after, LATEST))


def number(resource_version: str) -> int:
    """A resourceVersion as a revision; raises ``BadRequest``."""
    if (
        not (resource_version.isascii() and resource_version.isdigit())
        or len(resource_version) > 18
    ):
        raise BadRequest(
            f'Invalid value: "{resource_version}": not a resourceVersion of this server'
        )
    return int(resource_version)


def _check(*, limit: int, token: str, resource_version: str, match: str) -> None:
    if limit < 0:
        raise BadRequest("limit must not be negative")
    if token and resource_version not in ("", "0"):
        raise BadRequest("specifying resource version is not allowed when using continue")
    problem = _match_problem(token=token, resource_version=resource_version, match=match)
    if problem:
        raise problem


def _match_problem(*, token: str, resource_version: str, match: str) -> Invalid | None:
    if not match:
        return None
    if token:
        message = "resourceVersionMatch is forbidden when continue is provided"
    elif not resource_version:
        message = "resourceVersionMatch is forbidden unless resourceVersion is provided"
    elif match == "Exact" and resource_version == "0":
        message = 'resourceVersionMatch "Exact" is forbidden for resourceVersion "0"'
    elif match not in ("Exact", "NotOlderThan"):
        message = f'Unsupported value: "{match}": supported values: "Exact", "NotOlderThan"'
        return _invalid(message, "FieldValueNotSupported")
    else:
        return None
    return _invalid(f"Forbidden: {message}", "FieldValueForbidden")


def _invalid(message: str, reason: str) -> Invalid:
    cause = Cause("resourceVersionMatch", message, reason)
    return invalid_kind("ListOptions.meta.k8s.io", "", (cause,))


def _resume(prefix: str, token: str) -> Start:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        found = msgspec.json.decode(data, type=_Token)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise BadRequest("invalid continue token: continue key is not valid") from None
    if found.v != _VERSION or found.rv == 0 or not found.start or found.rv < LATEST:
        raise BadRequest("invalid continue token: continue key is not valid")
    return Start(after=prefix + found.start, at=None if found.rv == LATEST else found.rv)
