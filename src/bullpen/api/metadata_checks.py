"""Validation of metadata and label selectors.

Validates the label selectors inside documents.

Validates the metadata of an object, whatever its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from bullpen.api import codec
from bullpen.api.meta import LabelSelector
from bullpen.api.paths import Document, shown, walk
from bullpen.errors import BadRequest, Cause
from bullpen.kit.names import dns_label_problem, label_key_problem, label_value_problem
from bullpen.kit.selectors import Selector


def selector_causes(document: Document, *pattern: str) -> Iterator[Cause]:
    """The errors in each selector at ``pattern``; assumes that the schema is satisfied."""
    for path, raw in walk(document, pattern):
        try:
            codec.decode(LabelSelector, raw).selector()
        except BadRequest as error:
            yield Cause(field=path, message=f"Invalid value: {error.message}")


def selector_in(raw: Any) -> Selector | None:
    """The selector in ``raw``, or None if it is invalid."""
    try:
        return codec.decode(LabelSelector, raw).selector()
    except BadRequest:
        return None


ANNOTATIONS_BYTES_MAX = 256 * 1024
FINALIZERS_MAX = 100
OWNERS_MAX = 100

_STANDARD_FINALIZERS = frozenset({"orphan", "foregroundDeletion"})
_Problem = Callable[[str], str | None]


def metadata_causes(document: Document, name_problem: _Problem) -> Iterator[Cause]:
    """The errors in ``document``'s metadata; assumes that its schema is satisfied.

    ``name_problem`` returns the error in a name of this kind, if any.
    """
    metadata: Mapping[str, Any] = document.get("metadata") or {}
    yield from _name_causes(metadata, name_problem)
    yield from _text_causes(metadata, "namespace", dns_label_problem)
    yield from _label_causes(metadata.get("labels", {}))
    yield from _annotation_causes(metadata.get("annotations", {}))
    yield from _finalizer_causes(metadata.get("finalizers", []))
    yield from _owner_causes(metadata.get("ownerReferences", []))


def _name_causes(metadata: Mapping[str, Any], problem: _Problem) -> Iterator[Cause]:
    if not metadata.get("name") and not metadata.get("generateName"):
        yield Cause(
            field="metadata.name",
            message="Required value: name or generateName is required",
            reason="FieldValueRequired",
        )
    yield from _text_causes(metadata, "name", problem)
    # The suffix the server adds ends in a letter or digit, so a dash before it is valid.
    yield from _text_causes(metadata, "generateName", lambda prefix: problem(f"{prefix}x"[-253:]))


def _text_causes(metadata: Mapping[str, Any], name: str, problem: _Problem) -> Iterator[Cause]:
    text = metadata.get(name)
    why = problem(text) if text else None
    if why:
        yield Cause(field=f"metadata.{name}", message=f"Invalid value: {shown(text)}: {why}")


def _label_causes(labels: Mapping[str, str]) -> Iterator[Cause]:
    for key, value in labels.items():
        for text, why in ((key, label_key_problem(key)), (value, label_value_problem(value))):
            if why:
                yield Cause(field="metadata.labels", message=f"Invalid value: {shown(text)}: {why}")


def _annotation_causes(annotations: Mapping[str, str]) -> Iterator[Cause]:
    size = 0
    for key, value in annotations.items():
        size += len(key.encode()) + len(value.encode())
        why = label_key_problem(key.lower())
        if why:
            yield Cause(field="metadata.annotations", message=f"Invalid value: {shown(key)}: {why}")
    if size > ANNOTATIONS_BYTES_MAX:
        yield Cause(
            field="metadata.annotations",
            message=f"Too long: must be no more than {ANNOTATIONS_BYTES_MAX} bytes in all",
            reason="FieldValueTooLong",
        )


def _finalizer_causes(finalizers: list[str]) -> Iterator[Cause]:
    if len(finalizers) > FINALIZERS_MAX:
        yield _too_many("metadata.finalizers", FINALIZERS_MAX)
        return
    for index, finalizer in enumerate(finalizers):
        why = label_key_problem(finalizer)
        if why is None and "/" not in finalizer and finalizer not in _STANDARD_FINALIZERS:
            why = "must have a domain before it, such as 'example.com/cleanup'"
        if why:
            field = f"metadata.finalizers[{index}]"
            yield Cause(field=field, message=f"Invalid value: {shown(finalizer)}: {why}")


def _owner_causes(owners: list[Mapping[str, Any]]) -> Iterator[Cause]:
    if len(owners) > OWNERS_MAX:
        yield _too_many("metadata.ownerReferences", OWNERS_MAX)
        return
    for index, owner in enumerate(owners):
        for name in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(name):
                yield Cause(
                    field=f"metadata.ownerReferences[{index}].{name}",
                    message="Required value: must not be empty",
                    reason="FieldValueRequired",
                )
    controllers = [owner for owner in owners if owner.get("controller")]
    if len(controllers) > 1:
        yield Cause(
            field="metadata.ownerReferences",
            message="Invalid value: only one reference can have controller set to true",
        )


def _too_many(field: str, maximum: int) -> Cause:
    return Cause(
        field=field,
        message=f"Too many: must have at most {maximum} items",
        reason="FieldValueTooMany",
    )
