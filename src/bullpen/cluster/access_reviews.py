"""Asks the API server of a cluster what a user may do, so that its RBAC decides and not ours."""

from __future__ import annotations

from bullpen.api.access_review import (
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
)
from bullpen.api.objects import Objects
from bullpen.core.rbac.authorization import Attributes, User


async def allows(objects: Objects, user: User, request: Attributes) -> bool:
    """Whether ``user`` may make ``request``."""
    asked = SubjectAccessReviewSpec(
        user=user.name,
        uid=user.uid,
        groups=user.groups,
        extra=user.extra,
        resource_attributes=ResourceAttributes(
            verb=request.verb,
            group=request.group,
            resource=request.resource,
            subresource=request.subresource,
            namespace=request.namespace,
            name=request.name,
        ),
    )
    return (await objects.create(SubjectAccessReview(spec=asked))).status.allowed
