"""The effect of deleting an object: which finalizers it must wait for.

Pure. Preconditions are checked here, with Kubernetes' messages; ``garbage`` or a controller
carries out the work of a finalizer.
"""

from __future__ import annotations

from bullpen.api.document import Document
from bullpen.api.resources import Resource
from bullpen.registry import metadata, namespaces
from bullpen.registry.metadata import FOREGROUND, ORPHAN
from bullpen.registry.options import DeleteOptions, Propagation
from bullpen.registry.refusals import conflict, forbidden

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
    new = metadata.marked_for_deletion(old, _finalizers(old, propagation), time=time)
    if is_finished(resource, new):
        return None
    return namespaces.terminating(new) if namespaces.is_namespace(resource) else new


def is_finished(resource: Resource, document: Document) -> bool:
    """Whether an object that is being deleted may be removed."""
    if not metadata.is_deleting(document) or metadata.finalizers(document):
        return False
    return not (namespaces.is_namespace(resource) and namespaces.holders(document))


def _finalizers(old: Document, propagation: Propagation | None) -> list[str]:
    current = metadata.finalizers(old)
    if propagation is None:
        return list(current)
    rest = [name for name in current if name not in (ORPHAN, FOREGROUND)]
    added = _FINALIZERS.get(propagation)
    return [*rest, added] if added else rest
