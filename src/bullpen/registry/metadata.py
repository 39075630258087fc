"""The metadata that the server writes, and the start of a deletion.

The server's part of an object: identity, dates, generation, finalizers. Pure: uid, name and
time are arguments. The input is a caller's document, the result is the document to store; a
caller cannot set or change fields of the server. Field ownership is not included:
``managedFields`` is left out here and added by ``preparation``, last.

The effect of deleting an object: which finalizers it must wait for. Pure. Preconditions are
checked here, with Kubernetes' messages; ``garbage`` or a controller carries out the work of
a finalizer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bullpen.api.paths import Document
from bullpen.api.resource import Resource
from bullpen.errors import BadRequest, Cause
from bullpen.kit.ids import SUFFIX_LENGTH
from bullpen.registry import namespaces
from bullpen.registry.managed_fields import same
from bullpen.registry.messages import conflict, forbidden, version_missing
from bullpen.registry.options import DeleteOptions, Propagation

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"

GENERATED_NAME_BASE_MAX = 63 - SUFFIX_LENGTH

SERVER_OWNED = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "resourceVersion",
    "selfLink",
    "uid",
)
NOT_MANAGED = (*SERVER_OWNED, "managedFields")
"""Fields that no manager can own."""

_NOT_KEPT_WHEN_EMPTY = ("annotations", "finalizers", "generateName", "labels", "ownerReferences")


class _OwnerReference(msgspec.Struct):
    apiVersion: str = ""  # noqa: N815
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    blockOwnerDeletion: bool | None = None  # noqa: N815


class _ObjectMeta(msgspec.Struct):
    """The types of the fields the registry itself reads."""

    name: str | None = None
    generateName: str | None = None  # noqa: N815
    namespace: str | None = None
    uid: str | None = None
    resourceVersion: str | None = None  # noqa: N815
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: list[str] | None = None
    ownerReferences: list[_OwnerReference] | None = None  # noqa: N815


def checked(resource: Resource, document: Document) -> Document:
    """``document``, if it is an object of this resource; raises ``BadRequest``."""
    # Typed clients omit both for built-in kinds; the path implies them.
    implied = "" if resource.custom else resource.kind
    kind = document.get("kind") or implied
    version = document.get("apiVersion") or (implied and resource.api_version)
    if version != resource.api_version:
        raise BadRequest(
            f"the API version in the data ({version or ''}) does not match"
            f" the expected API version ({resource.api_version})"
        )
    if kind != resource.kind:
        raise BadRequest(f"the kind in the data ({kind or ''}) is not {resource.kind}")
    check_types(document, kind=resource.kind, version=resource.version)
    return document


def check_types(document: Document, *, kind: str, version: str) -> None:
    """Reject metadata with fields of the wrong type; raises ``BadRequest``."""
    metadata = document.get("metadata")
    try:
        msgspec.convert({} if metadata is None else metadata, _ObjectMeta)
    except msgspec.ValidationError as error:
        raise BadRequest(
            f'{kind} in version "{version}" cannot be handled as a {kind}: metadata: {error}'
        ) from None


def check_place(document: Document, *, namespace: str, name: str = "") -> None:
    """Name and namespace in the document must match the request."""
    metadata = document.get("metadata") or {}
    if name and metadata.get("name", name) != name:
        raise BadRequest(
            f"the name of the object ({metadata['name']}) does not match"
            f" the name on the URL ({name})"
        )
    if namespace and (metadata.get("namespace") or namespace) != namespace:
        raise BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
        )


def check_version(resource: Resource, document: Document, old: Document, *, required: bool) -> None:
    """If the document has a resourceVersion, it must be that of ``old``."""
    metadata = document.get("metadata") or {}
    given = metadata.get("resourceVersion") or "0"
    if given == "0" and required:
        raise version_missing(resource, old["metadata"]["name"])
    if given not in ("0", old["metadata"]["resourceVersion"]):
        raise conflict(resource, old["metadata"]["name"])


def created(
    resource: Resource, document: Document, *, namespace: str, name: str, uid: str, time: str
) -> Document:
    """``document`` as a new object."""
    given = document.get("metadata") or {}
    server: Document = {"name": name, "uid": uid, "creationTimestamp": time}
    if namespace:
        server["namespace"] = namespace
    if resource.custom:
        server["generation"] = 1
    return _ordered(resource, document, {**_callers(given), **server})


def updated(resource: Resource, document: Document, old: Document) -> Document:
    """``document`` as the next state of ``old``: the server's fields are those of ``old``.

    Raises ``Conflict`` if it has another uid: the caller means a deleted object of this name.
    """
    given, current = document.get("metadata") or {}, old["metadata"]
    if given.get("uid") and given["uid"] != current["uid"]:
        raise conflict(
            resource,
            current["name"],
            f"Precondition failed: UID in precondition: {given['uid']},"
            f" UID in object meta: {current['uid']}",
        )
    server = {key: current[key] for key in SERVER_OWNED if key in current}
    place = {key: current[key] for key in ("name", "namespace") if key in current}
    return _ordered(resource, document, {**_callers(given), **place, **server})


def counted(resource: Resource, new: Document, old: Document) -> Document:
    """``new`` with its generation incremented if it differs outside metadata and status."""
    if not resource.custom or same(_desired(resource, new), _desired(resource, old)):
        return new
    generation = int(old["metadata"].get("generation", 0)) + 1
    return {**new, "metadata": {**new["metadata"], "generation": generation}}


def marked_for_deletion(old: Document, finalizers: list[str], *, time: str) -> Document:
    """``old`` with its deletion started and exactly these finalizers."""
    metadata = dict(old["metadata"])
    metadata.setdefault("deletionTimestamp", time)
    metadata["deletionGracePeriodSeconds"] = 0
    metadata["finalizers"] = finalizers
    if not finalizers:
        del metadata["finalizers"]
    return {**old, "metadata": metadata}


def is_deleting(document: Document) -> bool:
    return bool(document["metadata"].get("deletionTimestamp"))


def finalizers(document: Document) -> list[str]:
    return document["metadata"].get("finalizers") or []


def generated_name(prefix: str, suffix: str) -> str:
    return prefix[:GENERATED_NAME_BASE_MAX] + suffix


def finalizer_problems(new: Document, old: Document | None) -> tuple[Cause, ...]:
    """The errors in the finalizers of ``new``, besides the names of each."""
    names = finalizers(new)
    found: list[Cause] = []
    if ORPHAN in names and FOREGROUND in names:
        message = f"Invalid value: finalizer {ORPHAN} and {FOREGROUND} cannot be both set"
        found.append(Cause("metadata.finalizers", message))
    extra = set(names) - set(finalizers(old)) if old and is_deleting(old) else ()
    if extra:
        listed = ", ".join(f'"{name}"' for name in sorted(extra))
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted,"
            f" found new finalizers []string{{{listed}}}"
        )
        found.append(Cause("metadata.finalizers", message, "FieldValueForbidden"))
    return tuple(found)


def _callers(metadata: dict[str, Any]) -> dict[str, Any]:
    """The metadata that a caller may set."""
    return {
        key: value
        for key, value in metadata.items()
        if key not in NOT_MANAGED
        and value is not None
        and (value or key not in _NOT_KEPT_WHEN_EMPTY)
    }


def _ordered(resource: Resource, document: Document, metadata: dict[str, Any]) -> Document:
    rest = {k: v for k, v in document.items() if k not in ("apiVersion", "kind", "metadata")}
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": metadata,
        **rest,
    }


def _desired(resource: Resource, document: Document) -> dict[str, Any]:
    apart = ("metadata", "status") if resource.status else ("metadata",)
    return {key: value for key, value in document.items() if key not in apart}


_FINALIZERS = {Propagation.ORPHAN: ORPHAN, Propagation.FOREGROUND: FOREGROUND}


def check(resource: Resource, old: Document, options: DeleteOptions) -> None:
    """Reject a deletion whose preconditions fail, or of a permanent namespace."""
    current = old["metadata"]
    name = current["name"]
    if namespaces.is_namespace(resource) and name in namespaces.IMMORTAL:
        raise forbidden(resource, name, "this namespace may not be deleted")
    if options.uid and options.uid != current["uid"]:
        raise conflict(
            resource,
            name,
            f"the UID in the precondition ({options.uid}) does not match the UID in record"
            f" ({current['uid']}). The object might have been deleted and then recreated",
        )
    if options.resource_version and options.resource_version != current["resourceVersion"]:
        raise conflict(
            resource,
            name,
            f"the ResourceVersion in the precondition ({options.resource_version}) does not match"
            f" the ResourceVersion in record ({current['resourceVersion']})."
            " The object might have been modified",
        )


def held(
    resource: Resource, old: Document, propagation: Propagation | None, *, time: str
) -> Document | None:
    """``old`` marked as being deleted; None if nothing blocks its immediate removal."""
    new = marked_for_deletion(old, _finalizers(old, propagation), time=time)
    if is_finished(resource, new):
        return None
    return namespaces.terminating(new) if namespaces.is_namespace(resource) else new


def is_finished(resource: Resource, document: Document) -> bool:
    """Whether an object that is being deleted may be removed."""
    if not is_deleting(document) or finalizers(document):
        return False
    return not (namespaces.is_namespace(resource) and namespaces.holders(document))


def _finalizers(old: Document, propagation: Propagation | None) -> list[str]:
    current = finalizers(old)
    if propagation is None:
        return list(current)
    rest = [name for name in current if name not in (ORPHAN, FOREGROUND)]
    added = _FINALIZERS.get(propagation)
    return [*rest, added] if added else rest
