"""Whether a user may do something, as an API server answers it."""

from __future__ import annotations

from dataclasses import replace

from bullpen.api import codec
from bullpen.api.reviews import (
    SubjectAccessReview,
    SubjectAccessReviewSpec,
    TokenReview,
    TokenReviewSpec,
)
from bullpen.cluster import reviews
from bullpen.core.rbac.authorization import MASTERS, Attributes, User
from support.objects_homes import http_home

WANTED = Attributes(
    verb="get",
    group="virtualtarget.jumpstarter.dev",
    resource="virtualtargetpools",
    namespace="lab",
    name="runners",
)


async def test_the_api_server_decides_by_user_and_group() -> None:
    async with http_home() as home:
        nobody = User(name="eve")
        assert not await reviews.allows(home.objects, nobody, WANTED)
        master = User(name="root", groups=(MASTERS,))
        assert await reviews.allows(home.objects, master, replace(WANTED, verb="delete"))


def test_what_an_authenticator_adds_to_a_user_is_read_and_passed_on() -> None:
    """Kubernetes adds it to every service account; the attribute once hid another of its name."""
    extra = {"authentication.kubernetes.io/credential-id": ["JTI=1"]}
    answer = {"authenticated": True, "user": {"username": "robot", "extra": extra}}
    document = {**codec.encode(TokenReview(spec=TokenReviewSpec(token="t"))), "status": answer}
    found = codec.decode(TokenReview, document).status.user
    assert {key: [*values] for key, values in found.extras.items()} == extra
    asked = SubjectAccessReview(spec=SubjectAccessReviewSpec(user="robot", extras=found.extras))
    assert codec.encode(asked)["spec"]["extra"] == extra
