"""Evaluates label and field selectors, decoding as little as possible.

Without a selector nothing is decoded. Names and namespaces are taken from the store key,
labels from a partial decode, other fields are decoded only if needed. A ``Filter`` is
created once per list or watch, and rejects unsupported fields at that time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec

from bullpen.api.document import Document, decode
from bullpen.api.resources import Resource
from bullpen.errors import BadRequest
from bullpen.kit.selectors import FieldSelector, FieldTerm, Selector

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
