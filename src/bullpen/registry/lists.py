"""Lists of objects: selection, pages and continue tokens.

The start and the revision of a list: continue tokens and resourceVersions. A token carries
the revision of the first page and the last key it returned, so every page is read from one
snapshot. Tokens are opaque to clients and never trusted: a key from a token only ever
extends the prefix being listed.

Evaluates label and field selectors, decoding as little as possible. Without a selector
nothing is decoded. Names and namespaces are taken from the store key, labels from a partial
decode, other fields are decoded only if needed. A ``Filter`` is created once per list or
watch, and rejects unsupported fields at that time.

Lists: a page of matching objects, read from one snapshot of the store.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import msgspec

from bullpen.api.kinds.lease import Lease
from bullpen.api.paths import Document, decode
from bullpen.api.resource import Resource
from bullpen.api.resources import RESOURCES
from bullpen.errors import BadRequest, Cause, Gone, Invalid, TimedOut
from bullpen.kit.selectors import FieldSelector, FieldTerm, Selector, parse_labels
from bullpen.registry.messages import invalid_kind
from bullpen.registry.options import Listed
from bullpen.store.base import Entry, Page, Store
from bullpen.store.keys import bucket

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


_OFFERED: Mapping[str, tuple[str, ...]] = {
    "Event": (
        "action",
        "involvedObject.apiVersion",
        "involvedObject.fieldPath",
        "involvedObject.kind",
        "involvedObject.name",
        "involvedObject.namespace",
        "involvedObject.resourceVersion",
        "involvedObject.uid",
        "reason",
        "reportingComponent",
        "source",
        "type",
    ),
    "Namespace": ("status.phase",),
    "Secret": ("type",),
}
"""Field selectors of built-in kinds, besides name and namespace."""

_ALIASES = {("Event", "source"): "source.component"}

_PLACE = ("metadata.name", "metadata.namespace")


class _Labelled(msgspec.Struct):
    labels: dict[str, str] = {}


class _Object(msgspec.Struct):
    metadata: _Labelled


_labels = msgspec.json.Decoder(_Object)


class Filter:
    """A label and a field selector over the objects of one resource."""

    def __init__(
        self, resource: Resource, labels: Selector | None, fields: FieldSelector | None
    ) -> None:
        terms = [_offered(resource, term) for term in fields.terms] if fields else []
        self._prefix = resource.prefix
        self.selector = labels or None
        self._place = tuple(term for term in terms if term.field in _PLACE)
        self._deep = tuple(term for term in terms if term.field not in _PLACE)

    def __bool__(self) -> bool:
        """Whether it has any terms."""
        return bool(self.selector or self._place or self._deep)

    def matches(self, key: str, value: bytes) -> bool:
        """For objects that are not decoded yet: decodes only what is needed."""
        return self._matches(key, value, labels_of, decode)

    def matches_read(self, key: str, value: bytes, read: Callable[[bytes], Document]) -> bool:
        """The same for an object with many watchers, which share what ``read`` decodes."""
        return self._matches(key, value, lambda v: read(v)["metadata"].get("labels") or {}, read)

    def _matches(
        self,
        key: str,
        value: bytes,
        labels: Callable[[bytes], Mapping[str, str]],
        read: Callable[[bytes], Document],
    ) -> bool:
        if not self._in_place(key):
            return False
        if self.selector and not self.selector.matches(labels(value)):
            return False
        if not self._deep:
            return True
        document = read(value)
        return all(term.matches(document) for term in self._deep)

    def _in_place(self, key: str) -> bool:
        if not self._place:
            return True
        namespace, _, name = key.removeprefix(self._prefix).partition("/")
        place = {"metadata": {"namespace": namespace, "name": name}}
        return all(term.matches(place) for term in self._place)


def labels_of(value: bytes) -> dict[str, str]:
    return _labels.decode(value).metadata.labels


def _offered(resource: Resource, term: FieldTerm) -> FieldTerm:
    """``term`` as it is evaluated, if this kind supports it."""
    offered = _PLACE if resource.custom else (*_PLACE, *_OFFERED.get(resource.kind, ()))
    custom = resource.custom and term.field.startswith(("spec.", "status."))
    if not custom and term.field not in offered:
        raise BadRequest(f"field label not supported: {term.field}")
    return replace(term, field=_ALIASES.get((resource.kind, term.field), term.field))


_SELECTED = {RESOURCES.of(kind).prefix: parse_labels(kind.selected) for kind in (Lease,)}
"""By prefix, the objects that views hold of kinds that have many others."""


def is_cold(key: str, value: bytes) -> bool:
    """Whether a stored object is left out by its ``Kind.selected``: it is hardly ever read."""
    selected = _SELECTED.get(bucket(key))
    if selected is None:
        return False
    try:
        return not selected.matches(labels_of(value))
    except msgspec.DecodeError:
        return False


SCANNED_AT_ONCE_MAX = 500
"""Entries examined per step of a list with a filter: cold ones are unpacked for it."""


def list_entries(
    store: Store,
    prefix: str,
    wanted: Filter,
    *,
    limit: int,
    continue_token: str,
    resource_version: str,
    match: str,
) -> Listed:
    """Up to ``limit`` matching entries under ``prefix``; 0 for all."""
    begun = start(
        prefix,
        current=store.revision,
        limit=limit,
        token=continue_token,
        resource_version=resource_version,
        match=match,
    )
    try:
        if not wanted:
            return _plain(store, prefix, begun, limit)
        return _filtered(store, prefix, wanted, begun, limit)
    except Gone:
        raise expired(prefix, begun) from None


def _plain(store: Store, prefix: str, begun: Start, limit: int) -> Listed:
    page = store.scan(prefix, after=begun.after, limit=limit or None, at=begun.at)
    revision = _revision(page, begun)
    if not page.remaining:
        return Listed(entries=page.entries, revision=revision)
    token = continue_token(prefix, page.entries[-1].key, revision)
    return Listed(
        entries=page.entries, revision=revision, continue_token=token, remaining=page.remaining
    )


def _filtered(store: Store, prefix: str, wanted: Filter, begun: Start, limit: int) -> Listed:
    # There is no await in between, so every step sees the same state.
    after = begun.after
    found: list[Entry] = []
    while True:
        page = store.scan(prefix, after=after, limit=SCANNED_AT_ONCE_MAX, at=begun.at)
        revision = _revision(page, begun)
        found += [entry for entry in page.entries if wanted.matches(entry.key, entry.value)]
        if limit and len(found) > limit:
            token = continue_token(prefix, found[limit - 1].key, revision)
            return Listed(entries=tuple(found[:limit]), revision=revision, continue_token=token)
        if not page.remaining:
            return Listed(entries=tuple(found), revision=revision)
        after = page.entries[-1].key


def _revision(page: Page, begun: Start) -> int:
    """The revision of the list: the requested one, however old."""
    return page.revision if begun.at is None else begun.at
