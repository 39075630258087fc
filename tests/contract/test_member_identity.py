"""Which exporters are members of which set, whatever labels they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bullpen.api.kinds.exporter import Exporter
from bullpen.api.kinds.exporterset import SET_UID
from bullpen.api.kinds.virtualtarget import Identity
from bullpen.api.meta import LabelSelector
from bullpen.core.pools.members import REVISION
from bullpen.errors import Invalid
from bullpen.kit.selectors import parse_labels
from bullpen.provisioners.fake import Faults
from support.pool_world import NAMESPACE, World


def selected(world: World, name: str) -> list[str]:
    """The exporters that the selector in the status of a set selects."""
    selector = parse_labels(world.status(name).selector)
    exporters = world.views.exporters.all(NAMESPACE)
    return sorted(e.metadata.name for e in exporters if selector.matches(e.metadata.labels))


def test_the_selector_of_a_set_selects_its_members_and_no_others() -> None:
    async def story(world: World) -> None:
        await world.make_class()
        await world.make_set("a", min_available_replicas=2)
        await world.make_set("b", min_available_replicas=1)
        await world.until(lambda: world.available(2, "a") and world.available(1, "b"))
        assert selected(world, "a") == world.names("a")
        assert selected(world, "b") == world.names("b")

    World().run(story)


def test_members_from_before_the_label_get_it_and_keep_their_template() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await world.make_class()
            await world.make_set(min_available_replicas=1)
            await world.ask("job")
            await world.until(lambda: world.got("job") and world.available(1))
        for member in world.members():
            labels = {k: v for k, v in member.metadata.labels.items() if k != SET_UID}
            if member.metadata.name == world.got("job"):
                labels[REVISION] = "older"
            await world.objects.update(
                replace(member, metadata=replace(member.metadata, labels=labels))
            )
        async with world.service():
            await world.until(lambda: selected(world, "qemu") == world.names(), seconds=5)
            old = await world.objects.get(Exporter, NAMESPACE, world.got("job"))
            assert old.metadata.labels[REVISION] == "older"

    World().run_without_service(story)


def test_a_member_has_an_identity_of_its_own_that_restarts_keep() -> None:
    async def story(world: World) -> None:
        async with world.service():
            await world.make_class()
            await world.make_set(min_available_replicas=2)
            await world.until(lambda: world.available(2))
            before = _identities(world)
            assert len(set(before.values())) == 2
            assert {identity.mac[:3] for identity in before.values() if identity} == {"02:"}
        async with world.service():
            await world.sleep(30)
            assert _identities(world) == before
            # The same name is another machine.
            for name in world.names():
                await world.remove(Exporter, name)
            await world.until(lambda: world.available(2) and not {*before} & world.uids())
            assert not {*before.values()} & {*_identities(world).values()}

    World().run_without_service(story)


def test_a_machine_that_is_asked_for_again_has_the_identity_of_before() -> None:
    """The backend lost it before it was ready, so that the same member gets another one."""

    async def story(world: World) -> None:
        await world.make_class()
        world.provisioner.faults = Faults(boot_seconds=(60.0, 60.0))
        await world.make_set(min_replicas=1)
        async with world.service():
            await world.until(lambda: len(world.instances()) == 1)
            before = _identities(world)
        world.provisioner._machines.clear()
        async with world.service():
            await world.until(lambda: len(world.instances()) == 1)
            assert _identities(world) == before

    World().run_without_service(story)


def _identities(world: World) -> dict[str, Identity | None]:
    """What the machines were started with, by the uid of the member."""
    machines = world.provisioner._machines.values()
    return {machine.spec.owner_uid: machine.spec.profile.identity for machine in machines}


def test_the_selector_of_a_set_cannot_be_changed() -> None:
    async def story(world: World) -> None:
        await world.make_set()
        with pytest.raises(Invalid, match=r"spec\.selector: .*cannot be changed"):
            await world.edit_set(selector=LabelSelector(match_labels={}), max_replicas=9)
        await world.edit_set(max_replicas=9)

    World().run(story)
