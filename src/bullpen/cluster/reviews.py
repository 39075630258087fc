"""Asks the API server of a cluster who a caller is and what it may do: its rules, not ours."""

from __future__ import annotations

from bullpen.api.objects import Objects
from bullpen.api.reviews import (
    ResourceAttributes,
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
)
from bullpen.core.rbac.authorization import Attributes, User


async def allows(objects: Objects, user: User, request: Attributes) -> bool:
    """Whether ``user`` may make ``request``."""
    asked = SubjectAccessReviewSpec(
        user=user.name,
        uid=user.uid,
        groups=user.groups,
        extras=user.extra,
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


async def user_of_token(objects: Objects, token: str) -> User | None:
    """The user of a bearer token; None if the cluster does not know it."""
    answer = await objects.create(TokenReview(spec=TokenReviewSpec(token=token)))
    if not answer.status.authenticated:
        return None
    found = answer.status.user
    return User(name=found.username, uid=found.uid, groups=found.groups, extra=found.extras)
