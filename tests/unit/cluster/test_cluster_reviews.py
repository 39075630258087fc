"""Whether a user may do something, as an API server answers it."""

from __future__ import annotations

from dataclasses import replace

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
