"""A provisioner made of a recipe and a placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bullpen.api.document import encode
from bullpen.api.exporterset import Driver, RecycleStrategy
from bullpen.errors import Cause, Refused
from bullpen.kit import quantities
from bullpen.placements.base import Placement, Workload
from bullpen.provisioners import exports
from bullpen.provisioners.base import Instance, InstanceSpec, Key, Listener, Needs, Recipe, Site


class PlacedProvisioner:
    """Runs ``recipe`` at ``placement``. Several provisioners may share one placement."""

    def __init__(self, recipe: Recipe, placement: Placement) -> None:
        self.name = recipe.name
        self._recipe = recipe
        self._placement = placement

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        return self._recipe.check(parameters, drivers)

    async def ensure(self, spec: InstanceSpec) -> Instance:
        causes = self.check(spec.parameters, spec.drivers)
        if causes:
            problems = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"the parameters for {self.name} are invalid: {problems}")
        return await self._placement.start(
            Workload(
                key=spec.key,
                owner_uid=spec.owner_uid,
                provisioner=self.name,
                needs=requested(self._recipe.needs(spec), spec.requests),
                render=lambda site: self._config(spec, site),
                files=spec.credentials,
                single_use=spec.recycle is RecycleStrategy.EXIT_AND_REPLACE,
                retain=spec.retain,
                hosting=spec.hosting,
            )
        )

    def _config(self, spec: InstanceSpec, site: Site) -> str:
        document = exports.read_config(spec.exporter_config)
        export = self._recipe.export(spec, site)
        return encode({**document, "export": export}).decode()

    async def remove(self, key: Key) -> None:
        if key in await self._keys():
            await self._placement.stop(key)

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
