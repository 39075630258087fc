"""Computes the result of a patch.

This covers all types except apply, which also depends on the caller; for apply only the
options are checked here. Pure.
"""

from __future__ import annotations

from typing import Any

from bullpen.api.document import Document
from bullpen.api.resources import Resource
from bullpen.errors import BadRequest, Cause, UnsupportedMediaType
from bullpen.registry.options import PatchType, WriteOptions
from bullpen.registry.patching import json_patch, merge_patch
from bullpen.registry.preparing import check_walkable
from bullpen.registry.refusals import invalid_kind
from bullpen.registry.strategic import strategic_patch


def patched(resource: Resource, current: Document, kind: PatchType, patch: Any) -> Document:
    """``current`` with ``patch`` applied; the result is not validated."""
    check_walkable(patch)
    match kind:
        case PatchType.JSON:
            result = json_patch(current, patch)
        case PatchType.MERGE:
            result = merge_patch(current, patch)
        case PatchType.STRATEGIC:
            result = _strategic(resource, current, patch)
        case PatchType.APPLY:
            raise AssertionError("an apply is not a patch of the current state")
    if not isinstance(result, dict):
        raise BadRequest("the patch would leave something else than an object")
    return result


def check_options(kind: PatchType, options: WriteOptions) -> None:
    """Reject options that do not apply to the type of patch."""
    if kind is PatchType.APPLY and not options.field_manager:
        message = "Required value: is required for apply patch"
        raise _invalid(Cause("fieldManager", message, "FieldValueRequired"))
    if kind is not PatchType.APPLY and options.force:
        message = "Forbidden: may not be specified for non-apply patch"
        raise _invalid(Cause("force", message, "FieldValueForbidden"))


def _invalid(cause: Cause) -> Exception:
    return invalid_kind("PatchOptions.meta.k8s.io", "", (cause,))


def _strategic(resource: Resource, current: Document, patch: Any) -> Document:
    if resource.custom:
        raise UnsupportedMediaType(
            "the body of the request was in an unknown format - accepted media types include:"
            f" {PatchType.JSON}, {PatchType.MERGE}, {PatchType.APPLY}"
        )
    return strategic_patch(resource.schema, current, patch)
