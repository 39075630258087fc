"""Checks a request against its object, and renders the response.

An object and its subresources share one stored document. This module decides which of them
a request is about, whether its document fits, and how the response looks. Pure.
"""

from __future__ import annotations

from bullpen.api.paths import Document, decode, encode
from bullpen.api.resource import Resource
from bullpen.errors import NotFound
from bullpen.registry import metadata, preparation, scale
from bullpen.registry.options import WriteOptions


def check_subresource(resource: Resource, subresource: str) -> None:
    """Reject a subresource the resource does not have."""
    known = (
        not subresource
        or (subresource == "status" and resource.status)
        or (subresource == "scale" and resource.scale is not None)
    )
    if not known:
        raise NotFound("the server could not find the requested resource")


def check_document(
    resource: Resource,
    document: Document,
    old: Document,
    options: WriteOptions,
    *,
    applied: bool = False,
) -> None:
    """Check that the document is about this object, and its version.

    A configuration that is applied, and a scale, may leave the version out for all kinds.
    """
    current = old["metadata"]
    required = resource.versioned_updates and not applied and options.subresource != "scale"
    if options.subresource == "scale":
        metadata.check_types(document, kind=scale.KIND, version=scale.VERSION)
    else:
        metadata.checked(resource, document)
    metadata.check_place(document, namespace=current.get("namespace", ""), name=current["name"])
    metadata.check_version(resource, document, old, required=required)


def warnings_about(
    resource: Resource, document: Document, options: WriteOptions
) -> tuple[str, ...]:
    """Warnings about unknown fields; raises ``BadRequest`` when strict."""
    if options.subresource == "scale":
        return ()
    if options.subresource:
        # The rest of the object is ignored, so there are no warnings about it either.
        document = {key: document[key] for key in (options.subresource,) if key in document}
    return preparation.unknown_fields(
        resource, document, options.field_validation, options.duplicate_fields
    )


def rendered(resource: Resource, value: bytes, subresource: str) -> bytes:
    """A stored object as the subresource shows it."""
    return encode(scale.to_scale(resource, decode(value))) if subresource == "scale" else value
