"""From a caller's document to the next state of an object, before it is committed.

Pure. Each function returns the whole document as it would be stored, without its
resourceVersion: server metadata, separate status, defaults, generation and field ownership,
all validated. The registry reads, calls one of these functions, and commits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from bullpen.api.limits import oddity
from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.errors import BadRequest
from bullpen.registry import managed_fields, metadata, namespaces, scale
from bullpen.registry.apply import apply
from bullpen.registry.managed_fields import Claimant, Claims, Comparison, compare
from bullpen.registry.messages import conflict, invalid
from bullpen.registry.options import FieldValidation, WriteOptions

OWN_MANAGER = "bullpen-garbage-collector"
"""The manager name of the service's own changes to objects."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The identity of an object about to be created."""

    namespace: str
    name: str
    uid: str


def to_create(
    resource: Resource, document: Document, place: Place, options: WriteOptions, *, time: str
) -> Document:
    """A new object from ``document``."""
    new = _started(resource, resource.pruned(document), place, time=time)
    change = compare(resource.schema, {}, _managed_part(_without_status(resource, new)))
    claims = managed_fields.updated((), change, _claimant(resource, options), time=time)
    return _with_claims(new, claims)


def to_update(
    resource: Resource, document: Document, old: Document, options: WriteOptions, *, time: str
) -> Document:
    """The next state of ``old`` when a caller updates it with ``document``."""
    new = _overlaid(resource, resource.pruned(document), old, options.subresource)
    new = _continued(resource, new, old)
    claims = _claims_before(document, old, options)
    if claims:
        change = _difference(resource, old, new)
        claims = managed_fields.updated(claims, change, _claimant(resource, options), time=time)
    return _with_claims(new, claims)


def to_apply(
    resource: Resource, config: Document, old: Document, options: WriteOptions, *, time: str
) -> Document:
    """The next state of ``old`` when a caller applies ``config`` to it."""
    applied = apply(
        resource.schema,
        _managed_part(old),
        _managed_part(_applicable(resource, config, options.subresource)),
        managed_fields.read(old["metadata"].get("managedFields")),
        replace(_claimant(resource, options), applied=True),
        force=options.force,
        time=time,
    )
    new = metadata.updated(resource, _with_uid(applied.document, config), old)
    return _with_claims(_continued(resource, new, old), applied.claims)


def to_apply_new(
    resource: Resource, config: Document, place: Place, options: WriteOptions, *, time: str
) -> Document:
    """A new object from an applied ``config``."""
    uid = (config.get("metadata") or {}).get("uid")
    if uid:
        raise conflict(
            resource,
            place.name,
            f"uid mismatch: the provided object specified uid {uid},"
            " and no existing object was found",
        )
    applied = apply(
        resource.schema,
        {},
        _managed_part(_applicable(resource, config, options.subresource)),
        (),
        replace(_claimant(resource, options), applied=True),
        force=options.force,
        time=time,
    )
    new = _started(resource, applied.document, place, time=time)
    return _with_claims(new, applied.claims)


def to_maintain(resource: Resource, edited: Document, old: Document, *, time: str) -> Document:
    """The next state of ``old`` when the service itself edits it: not validated again."""
    claims = managed_fields.read(old["metadata"].get("managedFields"))
    change = _difference(resource, old, edited)
    own = Claimant(manager=OWN_MANAGER, api_version=resource.api_version)
    return _with_claims(edited, managed_fields.updated(claims, change, own, time=time))


def check_config(resource: Resource, config: Any, options: WriteOptions) -> Document:
    """Check an apply configuration; raises ``BadRequest``."""
    if not isinstance(config, dict):
        raise BadRequest("an apply configuration is an object")
    check_walkable(config)
    if options.subresource == "scale":
        return config
    version = config.get("apiVersion") or ""
    if version != resource.api_version:
        raise BadRequest(
            "Incorrect version specified in apply patch."
            f" Specified patch version: {version}, expected: {resource.api_version}"
        )
    metadata.checked(resource, config)
    if (config.get("metadata") or {}).get("managedFields") is not None:
        raise BadRequest("metadata.managedFields must be nil")
    return config


def check_walkable(value: Any) -> None:
    """Reject documents that are nested too deeply, or not JSON; raises ``BadRequest``."""
    odd = oddity(value)
    if odd:
        raise BadRequest(f"{odd.field}: {odd.message}" if odd.field else odd.message)


def unknown_fields(
    resource: Resource,
    document: Document,
    validation: FieldValidation,
    duplicates: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """Warnings about unknown and duplicate fields; raises ``BadRequest`` when strict."""
    if validation is FieldValidation.IGNORE:
        return ()
    # ``managedFields`` is the largest part of many objects, and no schema describes it.
    paths = resource.unknown_fields(_without_managers(document))
    found = tuple(f'unknown field "{path}"' for path in paths)
    found += tuple(f'duplicate field "{path}"' for path in duplicates)
    if found and validation is FieldValidation.STRICT:
        raise BadRequest(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a'
            f" {resource.kind}: strict decoding error: {', '.join(found)}"
        )
    return found


def _started(resource: Resource, document: Document, place: Place, *, time: str) -> Document:
    new = metadata.created(
        resource,
        _without_status(resource, document),
        namespace=place.namespace,
        name=place.name,
        uid=place.uid,
        time=time,
    )
    new = _checked(resource, resource.default(new))
    return namespaces.opened(new) if namespaces.is_namespace(resource) else new


def _continued(resource: Resource, document: Document, old: Document) -> Document:
    """``document`` as the next state after ``old``: complete, valid, with its generation."""
    new = _checked(resource, resource.default(document, old), old)
    if namespaces.is_namespace(resource):
        new = namespaces.kept(new, old)
    return metadata.counted(resource, new, old)


def _overlaid(resource: Resource, document: Document, old: Document, subresource: str) -> Document:
    """``old`` with only the part of ``document`` that this write may change."""
    new = metadata.updated(resource, document, old)
    if subresource == "status":
        # The metadata of a custom resource is not written through its status.
        return _with_status(old if resource.custom else {**old, "metadata": new["metadata"]}, new)
    if subresource == "scale":
        wanted = scale.replicas(resource, old["metadata"]["name"], document)
        return scale.with_replicas(resource, old, wanted)
    return _with_status(new, old) if resource.status else new


def _applicable(resource: Resource, config: Document, subresource: str) -> Document:
    """The part of an apply configuration that applies to the subresource."""
    identity = {"apiVersion": resource.api_version, "kind": resource.kind}
    if subresource == "scale":
        wanted = scale.replicas(resource, "", config)
        return scale.with_replicas(resource, {**identity, "metadata": {}}, wanted)
    if subresource == "status":
        return _with_status({**identity, "metadata": {}}, config)
    return {**_without_status(resource, config), **identity}


def _claims_before(document: Document, old: Document, options: WriteOptions) -> Claims:
    """The claims a write starts from.

    A caller may send its own ``managedFields`` with the object itself: kubectl does so to take
    over what it applied earlier, and an empty list resets them. Any other invalid value is
    ignored.
    """
    stored = old["metadata"].get("managedFields")
    given = (document.get("metadata") or {}).get("managedFields")
    if options.subresource or given is None or given == stored:
        return managed_fields.read(stored)
    if given in ([], [{}]):
        return ()
    well_formed = managed_fields.is_well_formed(given)
    return managed_fields.read(given if well_formed else stored)


def _claimant(resource: Resource, options: WriteOptions) -> Claimant:
    return Claimant(
        manager=options.field_manager or managed_fields.UNKNOWN_MANAGER,
        api_version=resource.api_version,
        subresource=options.subresource,
    )


def _difference(resource: Resource, old: Document, new: Document) -> Comparison:
    """The fields a manager can own that ``new`` changes. Most writes do not change metadata."""
    before = _managed_part(old)
    if new["metadata"] is old["metadata"]:
        return compare(resource.schema, before, {**new, "metadata": before["metadata"]})
    return compare(resource.schema, before, _managed_part(new))


def _managed_part(document: Document) -> Document:
    """The document without fields that no manager can own."""
    kept = {
        key: value
        for key, value in (document.get("metadata") or {}).items()
        if key not in metadata.NOT_MANAGED
    }
    return {**document, "metadata": kept}


def _without_managers(document: Document) -> Document:
    kept = {k: v for k, v in (document.get("metadata") or {}).items() if k != "managedFields"}
    return {**document, "metadata": kept}


def _with_claims(document: Document, claims: Claims) -> Document:
    managed = managed_fields.write(claims)
    return {**document, "metadata": {**document["metadata"], "managedFields": managed}}


def _with_uid(document: Document, config: Document) -> Document:
    """The uid in a caller's configuration, so that it is compared with the object's."""
    uid = (config.get("metadata") or {}).get("uid")
    return {**document, "metadata": {**document["metadata"], "uid": uid}}


def _with_status(document: Document, source: Document) -> Document:
    rest = {key: value for key, value in document.items() if key != "status"}
    return {**rest, "status": source["status"]} if source.get("status") is not None else rest


def _without_status(resource: Resource, document: Document) -> Document:
    if not resource.status or "status" not in document:
        return document
    return {key: value for key, value in document.items() if key != "status"}


def _checked(resource: Resource, new: Document, old: Document | None = None) -> Document:
    causes = resource.validate(new, old) or metadata.finalizer_problems(new, old)
    if causes:
        raise invalid(resource, new["metadata"]["name"], causes)
    return new
