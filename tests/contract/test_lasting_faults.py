"""A pool of lasting targets under faults, restarts and random wishes: its promises hold always."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest
from test_lasting_pools import RETAIN, drivers, edit, make, pool, ready, root, targets, template

from bullpen.api.kinds.lease import Lease
from bullpen.api.kinds.virtualdisk import VirtualDisk
from bullpen.api.kinds.virtualtarget import VirtualTarget
from bullpen.api.kinds.virtualtargetpool import VirtualTargetPool, VirtualTargetPoolSpec
from bullpen.api.meta import ObjectMeta
from bullpen.api.scale_down import Removal, ScaleDownPolicy
from bullpen.core.conditions import get
from bullpen.errors import LabError, Unavailable
from bullpen.provisioners.fake import Faults
from support.pool_world import NAMESPACE, World

FAULTS = Faults(
    unreachable=0.05,
    start_failed=0.1,
    crashed=0.1,
    boot_seconds=(1.0, 4.0),
    stop_seconds=(0.0, 5.0),
    crash_seconds_max=60.0,
)
STEPS = 40


class Checker:
    """Looks at every change; each broken promise is one line."""

    def __init__(self, world: World) -> None:
        self.broken: list[str] = []
        self._world = world
        world.views[VirtualTarget].listen(self._target)
        world.views[VirtualDisk].listen(self._disk)
        world.views.leases.listen(self._lease)

    def _lease(self, old: Lease | None, new: Lease | None) -> None:
        found = get(new.status.conditions, "Ready") if new is not None else None
        if new is not None and found is not None and found.reason == "ExporterRemoved":
            self.broken.append(f"the target of lease {new.metadata.name} was removed")

    def _target(self, old: VirtualTarget | None, new: VirtualTarget | None) -> None:
        users: dict[str, list[str]] = {}
        for target in self._world.views[VirtualTarget].all(NAMESPACE):
            for disk in target.status.disks:
                users.setdefault(disk, []).append(target.metadata.name)
        for disk, found in users.items():
            if len(found) > 1:
                self.broken.append(f"{disk} is open in {found}")

    def _disk(self, old: VirtualDisk | None, new: VirtualDisk | None) -> None:
        if new is None and old is not None:
            self.broken.append(f"{old.metadata.name} was deleted, and nothing is ever due")


async def wish(world: World, chance: random.Random, number: int) -> None:
    """Something that a person or a pipeline does."""
    live = sorted(targets(world))
    match chance.randrange(7):
        case 0 | 1:
            await edit(world, replicas=chance.randrange(5))
        case 2:
            await world.ask(f"job-{number}")
        case 3:
            for lease in list(world.views.leases.all(NAMESPACE)):
                await world.release(lease.metadata.name)
        case 4:
            await edit(world, template=template(drivers=drivers(f"d{chance.randrange(3)}")))
        case 5 if live:
            await world.remove(VirtualTarget, chance.choice(live))
        case _ if live and pool(world).spec.replicas:
            found = targets(world)[chance.choice(live)]
            if found.metadata.uid not in {each.uid for each in pool(world).spec.removals}:
                removal = Removal(name=found.metadata.name, uid=found.metadata.uid, when_idle=True)
                spec = pool(world).spec
                await edit(world, replicas=spec.replicas - 1, removals=(*spec.removals, removal))


@pytest.mark.parametrize("seed", range(6))
def test_promises_hold_under_faults_and_the_pool_converges(seed: int) -> None:
    chance = random.Random(seed)

    async def story(world: World) -> None:
        async with world.service():
            await world.make_class()
            fields: dict[str, Any] = {
                "replicas": 3,
                "scale_down_policy": ScaleDownPolicy.OLDEST_FIRST,
                "template": template(),
                "virtual_disk_templates": (root(RETAIN),),
            }
            meta = ObjectMeta(name="p", namespace=NAMESPACE)
            made = VirtualTargetPool(metadata=meta, spec=VirtualTargetPoolSpec(**fields))
            await world.objects.create(made)
        for round_ in range(3):
            async with world.service():
                checker = Checker(world)
                for step in range(STEPS):
                    with contextlib.suppress(LabError):
                        await wish(world, chance, round_ * STEPS + step)
                    await world.sleep(chance.uniform(0.0, 20.0))
                assert checker.broken == []
        async with world.service():
            checker = Checker(world)
            world.provisioner.faults = Faults(boot_seconds=(1.0, 2.0))
            for lease in list(world.views.leases.all(NAMESPACE)):
                await world.release(lease.metadata.name)
            await edit(world, replicas=3)

            def converged() -> bool:
                status = pool(world).status
                return ready(world) == 3 == status.replicas == status.updated_replicas

            await world.until(converged, seconds=900, what=f"seed {seed} converging")
            assert not pool(world).spec.removals
            assert checker.broken == []

    World(seed=seed, faults=FAULTS).run_without_service(story)


def test_a_member_whose_creation_was_not_answered_is_not_created_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The view learns of it only because it is asked for: else the next name would be used."""

    async def story(world: World) -> None:
        await make(world, 1)
        view, born = world.views[VirtualTarget], list[str]()
        create, apply, observe = world.objects.create, view._set, view.observe
        asked = False

        async def unanswered(value: Any) -> Any:
            made = await create(value)
            if isinstance(value, VirtualTarget):
                born.append(value.metadata.name)
                if value.metadata.name == "p-1":
                    raise Unavailable("no answer")
            return made

        def lagging(value: VirtualTarget) -> None:
            if asked or value.metadata.name != "p-1":
                apply(value)

        def observed(value: VirtualTarget) -> None:
            nonlocal asked
            # A watch that lags has not come so far.
            asked, position, view._position = True, view._position, 0
            observe(value)
            asked, view._position = False, position

        monkeypatch.setattr(world.objects, "create", unanswered)
        monkeypatch.setattr(view, "_set", lagging)
        monkeypatch.setattr(view, "observe", observed)
        await edit(world, replicas=3)
        await world.until(lambda: sorted(targets(world)) == ["p-0", "p-1", "p-2"])
        monkeypatch.undo()
        await world.until(lambda: ready(world) == 3)
        await world.sleep(30)
        assert sorted(born) == ["p-1", "p-2"]

    World().run(story)
