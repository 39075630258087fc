"""Which objects a label and a field selector pick, looking at as little as possible.

Without a selector nothing is decoded. Names and namespaces are read off the
store key, labels by a partial decode, other fields only when asked for. A
``Filter`` is made once per list or watch, and refuses there and then a field
its kind does not offer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import msgspec

from bullpen.api.document import decode
from bullpen.api.resources import Resource
from bullpen.errors import BadRequest
from bullpen.kit.selectors import FieldSelector, FieldTerm, Selector
from bullpen.store.base import Change

LABELS_CACHED_MAX = 1_024
"""Changes whose labels are kept for the next watcher of the same change."""

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
"""What built-in kinds can be selected by, besides name and namespace."""

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
        """Whether it asks for anything."""
        return bool(self.selector or self._place or self._deep)

    def matches(self, key: str, value: bytes) -> bool:
        return self.matches_labelled(key, value, labels_of(value) if self.selector else {})

    def matches_labelled(self, key: str, value: bytes, labels: Mapping[str, str]) -> bool:
        """The same for an object whose labels are already known."""
        if self._place and not self._in_place(key):
            return False
        if self.selector and not self.selector.matches(labels):
            return False
        if not self._deep:
            return True
        document = decode(value)
        return all(term.matches(document) for term in self._deep)

    def _in_place(self, key: str) -> bool:
        namespace, _, name = key.removeprefix(self._prefix).partition("/")
        place = {"metadata": {"namespace": namespace, "name": name}}
        return all(term.matches(place) for term in self._place)


class LabelCache:
    """The labels before and after recent changes, so that many watchers decode them once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[dict[str, str], dict[str, str]]] = {}

    def labels(self, change: Change) -> tuple[dict[str, str], dict[str, str]]:
        """The labels before and after ``change``; none before a creation."""
        found = self._known.get(change.revision)
        if found is None:
            before = labels_of(change.previous) if change.previous is not None else {}
            found = before, labels_of(change.value)
            if len(self._known) >= LABELS_CACHED_MAX:
                del self._known[next(iter(self._known))]
            self._known[change.revision] = found
        return found


def labels_of(value: bytes) -> dict[str, str]:
    return _labels.decode(value).metadata.labels


def _offered(resource: Resource, term: FieldTerm) -> FieldTerm:
    """``term`` as it is evaluated, if objects of this kind can be selected by it."""
    offered = _PLACE if resource.custom else (*_PLACE, *_OFFERED.get(resource.kind, ()))
    custom = resource.custom and term.field.startswith(("spec.", "status."))
    if not custom and term.field not in offered:
        raise BadRequest(f"field label not supported: {term.field}")
    return replace(term, field=_ALIASES.get((resource.kind, term.field), term.field))
