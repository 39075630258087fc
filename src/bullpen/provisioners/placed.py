"""A provisioner made of a recipe and a placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from bullpen.errors import Cause, Refused
from bullpen.kit import quantities
from bullpen.placements.base import Placement, Workload
from bullpen.provisioners import several_targets
from bullpen.provisioners.base import Instance, InstanceSpec, Key, Listener, Needs, Profile, Recipe


class PlacedProvisioner:
    """Runs ``recipe`` at ``placement``. Several provisioners may share one placement."""

    def __init__(self, recipe: Recipe, placement: Placement) -> None:
        self.name = recipe.name
        self._recipe = recipe
        self._placement = placement
        self._valid: Profile | None = None
        """The profile that was validated last."""

    def check(self, profile: Profile) -> tuple[Cause, ...]:
        return several_targets.causes(self._recipe, profile)

    async def ensure(self, spec: InstanceSpec) -> Instance:
        self._refuse_invalid(spec.profile)
        return await self._placement.start(self._workload(spec))

    async def change_disks(self, spec: InstanceSpec) -> None:
        self._refuse_invalid(spec.profile)
        await self._placement.change_disks(self._workload(spec))

    async def update_credentials(self, spec: InstanceSpec) -> None:
        if spec.key in await self._keys():
            await self._placement.update_credentials(spec.key, spec.credentials)

    def _workload(self, spec: InstanceSpec) -> Workload:
        profile = spec.profile
        return Workload(
            spec=spec,
            needs=requested(several_targets.needs(self._recipe, profile), profile.requests),
            export=partial(several_targets.export, self._recipe, profile),
        )

    def _refuse_invalid(self, profile: Profile) -> None:
        """Members of a set share one profile, so a burst of them is validated once."""
        if profile is self._valid:
            return
        causes = self.check(profile)
        if causes:
            problems = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"the parameters for {self.name} are invalid: {problems}")
        self._valid = profile

    async def remove(self, key: Key) -> None:
        if key in await self._keys():
            await self._placement.stop(key)

    async def stop(self, key: Key) -> None:
        """What a lasting target keeps is in its disks, which are no part of the instance."""
        await self.remove(key)

    async def retire(self, key: Key) -> None:
        if key in await self._keys():
            await self._placement.retire(key)

    async def observe_all(self) -> tuple[Instance, ...]:
        every = await self._placement.observe_all()
        return tuple(instance for instance in every if instance.provisioner == self.name)

    def listen(self, listener: Listener) -> None:
        self._placement.listen(listener)

    async def _keys(self) -> set[Key]:
        """Our instances: those of other provisioners must not be touched."""
        return {instance.key for instance in await self.observe_all()}


def requested(needs: Needs, requests: Mapping[str, int | str]) -> Needs:
    """``needs`` with the requests of the class instead of the estimates."""
    memory, cpu = requests.get("memory"), requests.get("cpu")
    return replace(
        needs,
        memory_bytes=needs.memory_bytes if memory is None else quantities.parse(memory).whole(),
        cpus=needs.cpus if cpu is None else float(quantities.parse(cpu).amount),
    )
