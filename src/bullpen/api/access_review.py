"""SubjectAccessReview: asks a cluster whether a user may do something.

A request that is answered and not stored. The embedded API server answers it without this
kind (``apiserver.reviews``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from bullpen.api import schema
from bullpen.api.fields import Kind, Struct, about
from bullpen.api.meta import ObjectMeta
from bullpen.api.resource import Resource

GROUP = "authorization.k8s.io"


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
    extra: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict, metadata=about("What else the authenticator said.")
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

    api_version: ClassVar[str] = f"{GROUP}/v1"
    kind: ClassVar[str] = "SubjectAccessReview"

    metadata: ObjectMeta = field(default=ObjectMeta(), metadata=about("Object metadata."))
    spec: SubjectAccessReviewSpec = field(
        default=SubjectAccessReviewSpec(), metadata=about("Who, and what.")
    )
    status: SubjectAccessReviewStatus = field(
        default=SubjectAccessReviewStatus(), metadata=about("The answer.")
    )


RESOURCE = Resource(
    group=GROUP,
    version="v1",
    kind=SubjectAccessReview.kind,
    plural="subjectaccessreviews",
    singular="subjectaccessreview",
    namespaced=False,
    custom=False,
    partial=True,
    schema=schema.of(SubjectAccessReview),
    value=SubjectAccessReview,
)
