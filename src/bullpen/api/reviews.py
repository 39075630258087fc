"""Reviews: ask a cluster who a token belongs to, and whether a user may do something.

They are answered and not stored. The embedded API server answers them without these kinds
(``apiserver.reviews``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api import schema
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource

AUTHENTICATION, AUTHORIZATION = "authentication.k8s.io", "authorization.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceAttributes(Struct):
    """The request in question."""

    verb: str = field(default="", metadata=about("Verb, in lower case."))
    group: str = field(default="", metadata=about("API group."))
    resource: str = field(default="", metadata=about("Plural name of the resource."))
    subresource: str = field(default="", metadata=about("Subresource, if any."))
    namespace: str = field(default="", metadata=about("Namespace of the object."))
    name: str = field(default="", metadata=about("Name of the object."))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReviewSpec(Struct):
    """Who, and what."""

    user: str = field(default="", metadata=about("Name of the user."))
    uid: str = field(default="", metadata=about("Uid of the user."))
    groups: tuple[str, ...] = field(
        default=(), metadata=about("Groups of the user.", list_type="atomic")
    )
    # Not ``extra``: a Struct keeps its unknown fields there.
    extras: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata=about("What else the authenticator said.", name="extra")
    )
    resource_attributes: ResourceAttributes = field(
        default=ResourceAttributes(), metadata=about("The request in question.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReviewStatus(Struct):
    """The answer."""

    allowed: bool = field(default=False, metadata=about("Whether the request is allowed."))
    reason: str = field(default="", metadata=about("Why."))


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectAccessReview(Kind):
    """Whether a user may make a request."""

    api_version: ClassVar[str] = f"{AUTHORIZATION}/v1"
    kind: ClassVar[str] = "SubjectAccessReview"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: SubjectAccessReviewSpec = field(
        default=SubjectAccessReviewSpec(), metadata=about("Who, and what.")
    )
    status: SubjectAccessReviewStatus = field(
        default=SubjectAccessReviewStatus(), metadata=about("The answer.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo(Struct):
    """The user of a token."""

    username: str = field(default="", metadata=about("Name of the user."))
    uid: str = field(default="", metadata=about("Uid of the user."))
    groups: tuple[str, ...] = field(
        default=(), metadata=about("Groups of the user.", list_type="atomic")
    )
    # Not ``extra``: a Struct keeps its unknown fields there.
    extras: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata=about("What else the authenticator said.", name="extra")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReviewSpec(Struct):
    """The token in question."""

    token: str = field(default="", repr=False, metadata=about("A bearer token."))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReviewStatus(Struct):
    """The answer."""

    authenticated: bool = field(default=False, metadata=about("Whether the token is valid."))
    user: UserInfo = field(default=UserInfo(), metadata=about("The user of the token."))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReview(Kind):
    """Who a token belongs to."""

    api_version: ClassVar[str] = f"{AUTHENTICATION}/v1"
    kind: ClassVar[str] = "TokenReview"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: TokenReviewSpec = field(
        default=TokenReviewSpec(), metadata=about("The token in question.")
    )
    status: TokenReviewStatus = field(default=TokenReviewStatus(), metadata=about("The answer."))


def _review(kind: type[Kind], group: str) -> Resource:
    return Resource(
        group=group,
        version="v1",
        kind=kind.kind,
        plural=f"{kind.kind.lower()}s",
        singular=kind.kind.lower(),
        namespaced=False,
        custom=False,
        partial=True,
        schema=schema.of(kind),
        value=kind,
    )


RESOURCES = (
    _review(SubjectAccessReview, AUTHORIZATION),
    _review(TokenReview, AUTHENTICATION),
)
