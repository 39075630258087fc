"""Instances of Corellium, as an attended provisioner uses them."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.backends import GRANT_HOLDS, Inventory, Key, Machine, MachineState
from bullpen.drivers.corellium import GRANTED, SNAPSHOT, Grant
from bullpen.drivers.corellium_api import CLOUD
from bullpen.drivers.json_api import ApiError
from bullpen.errors import Cause, NoCapacity, Refused, Unreachable
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.base import Needs, Profile
from bullpen.provisioners.corellium import instances
from bullpen.provisioners.corellium.api import CA, Connect, Limiter, credential
from bullpen.provisioners.corellium.failures import NOT_FOUND, failure
from bullpen.provisioners.corellium.parameters import CorelliumAccount, CorelliumParameters
from bullpen.provisioners.provider import Backend, Order

log = logging.getLogger("bullpen.provisioners")

NAME = "corellium.jumpstarter.dev"
DRIVER = "bullpen.drivers.corellium.Corellium"

EXPORTER_BYTES = 128 << 20
EXPORTER_CPUS = 0.1
CONSOLES_MAX = 16
MODELS_MAX = 64
"""Backends whose models are remembered."""

FEATURES = {"console": True, "powerManagement": True, "snapshots": True, "deviceDelete": False}
"""What the session of an exporter may do with its instance; what is not named it may not."""


class CorelliumProvider:
    """The API of Corellium. It repeats no creation by itself: names are looked for before."""

    name = NAME
    idempotent = False

    def __init__(self, connect: Connect) -> None:
        self._limiter = Limiter(connect)
        self._models: dict[Key, Mapping[str, Any]] = {}
        self._snapshots: dict[Key, frozenset[str]] = {}
        """By backend, the instances that are known to have the snapshot of their beginning."""

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(CorelliumParameters, given)
        return causes or tuple(target_drivers.causes(drivers, DRIVER))

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=EXPORTER_BYTES, cpus=EXPORTER_CPUS)

    def hourly_cost(self, profile: Profile) -> float:
        return float(parameters.read(CorelliumParameters, profile.parameters).hourly_cost or 0)

    def new_keys(self) -> Mapping[str, bytes]:
        return {}

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        wanted = parameters.read(CorelliumParameters, profile.parameters)
        config = {
            "instance": machine.id,
            "console_name": wanted.console,
            "snapshot": SNAPSHOT if _is_reset(profile) else "",
        }
        return target_drivers.exported(profile.drivers, DRIVER, config)

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        """A session for this instance alone; without sessions, addresses of its consoles."""
        sent = {
            "projectId": self._project_id(backend),
            "instanceId": machine.id,
            "expiresIn": int(GRANT_HOLDS.total_seconds()),
            "features": FEATURES,
        }
        token, consoles = "", {}
        try:
            token = (await self._limiter.call(backend, "POST", "/webplayer", body=sent))["token"]
        except ApiError as error:
            if not isinstance(failure(error), Refused):
                raise failure(error) from None
            facts = {"key": backend.key, "cause": str(error)}
            log.info("the account has no sessions for single devices", extra=facts)
            consoles = await self._consoles(backend, machine)
        made = Grant(
            endpoint=backend.endpoint or CLOUD,
            ca=credential(backend, CA),
            session=token,
            consoles=consoles,
        )
        return {GRANTED: json.dumps(asdict(made)).encode()}

    async def _consoles(self, backend: Backend, machine: Machine) -> dict[str, str]:
        place = f"/instances/{machine.id}"
        shown = (await self._call(backend, "GET", place)).get("consoles") or []
        found = {"": (await self._call(backend, "GET", f"{place}/console"))["url"]}
        for each in shown[:CONSOLES_MAX]:
            query = {"type": each["id"].removeprefix("port-")}
            answer = await self._call(backend, "GET", f"{place}/console", query=query)
            found[each["name"]] = answer["url"]
        return found

    async def list_machines(self, backend: Backend) -> Inventory:
        project = await self._project(backend)
        described = await self._described(backend)
        machines = self._read(backend, described)
        reused = frozenset(each["id"] for each in described if instances.is_reused(each))
        self._snapshots[backend.key] = self._snapshots.get(backend.key, frozenset()) & reused
        shown = [
            await self._with_snapshot(backend, machine) if machine.id in reused else machine
            for machine in machines
        ]
        return Inventory(machines=tuple(shown), quota=instances.quota(project))

    async def _with_snapshot(self, backend: Backend, machine: Machine) -> Machine:
        """An instance that is used again runs once it has a snapshot to be restored from."""
        known = self._snapshots[backend.key]
        if machine.state is not MachineState.RUNNING or machine.id in known:
            return machine
        path = f"/instances/{machine.id}/snapshots"
        found = await self._call(backend, "GET", path, absent=Unreachable)
        own = [each for each in found if each.get("name") == SNAPSHOT]
        if not own:
            await self._call(backend, "POST", path, body={"name": SNAPSHOT})
        elif (own[0].get("status") or {}).get("created"):
            self._snapshots[backend.key] = known | {machine.id}
            return machine
        return replace(machine, state=MachineState.STARTING, detail="its snapshot is being taken")

    async def create(self, backend: Backend, order: Order) -> Machine:
        wanted = parameters.read(CorelliumParameters, order.profile.parameters)
        existing = await self._existing(backend, order)
        if existing is not None:
            return existing
        await self._require_room(backend, wanted.device.flavor)
        name = instances.name_of(
            lab=backend.lab,
            key=order.key,
            uid=order.owner_uid,
            hourly_cost=wanted.hourly_cost,
            reused=_is_reset(order.profile),
        )
        sent = instances.request(wanted, name=name, project=self._project_id(backend))
        made = await self._call(backend, "POST", "/instances", body=sent)
        return await self._made(backend, str(made["id"]), name)

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        """Nothing to do: instances of Corellium do not end by themselves."""

    async def delete(self, backend: Backend, machine: Machine) -> None:
        try:
            await self._limiter.call(backend, "DELETE", f"/instances/{machine.id}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise failure(error) from None

    async def _existing(self, backend: Backend, order: Order) -> Machine | None:
        """The instance of an earlier creation whose answer is not known."""
        own = (
            machine
            for machine in self._read(backend, await self._described(backend))
            if (machine.key, machine.owner_uid) == (order.key, order.owner_uid)
            and machine.state is not MachineState.ENDING
        )
        return min(own, key=lambda machine: (machine.created, machine.id), default=None)

    async def _require_room(self, backend: Backend, flavor: str) -> None:
        """Raise ``NoCapacity`` if the quota has no room: how Corellium says it is not known."""
        project, models = await self._project(backend), await self._known_models(backend, flavor)
        quota = instances.quota(project)
        full = instances.no_cores(project, models.get(flavor) or {})
        if quota is not None and quota.used >= quota.instances:
            full = f"{quota.used} of the {quota.instances} instances of its quota exist"
        if full:
            raise NoCapacity(f"project {self._project_id(backend)}: {full}")

    async def _known_models(self, backend: Backend, flavor: str) -> Mapping[str, Any]:
        """The models by flavor. Raises ``Refused`` if there is none of this one."""
        known = self._models.get(backend.key, {})
        if flavor not in known:
            found = await self._call(backend, "GET", "/models")
            known = {model["flavor"]: model for model in found}
            while len(self._models) >= MODELS_MAX:
                del self._models[next(iter(self._models))]
            self._models[backend.key] = known
        if flavor not in known:
            raise Refused(f"Corellium has no device of flavor {flavor!r} for this account")
        return known

    async def _made(self, backend: Backend, instance: str, name: str) -> Machine:
        """The new instance. One whose name was changed would not be found again, so it goes."""
        described = await self._call(backend, "GET", f"/instances/{instance}", absent=Unreachable)
        found = instances.machine(described, lab=backend.lab)
        if found is not None and described["name"] == name:
            return found
        await self._call(backend, "DELETE", f"/instances/{instance}")
        raise Refused(
            f"Corellium has changed the name {name!r} to {described.get('name')!r}; the instance"
            " was deleted. Use a shorter namespace or set name"
        )

    async def _project(self, backend: Backend) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._call(
            backend, "GET", f"/projects/{self._project_id(backend)}"
        )
        return found

    async def _described(self, backend: Backend) -> list[instances.Described]:
        path = f"/projects/{self._project_id(backend)}/instances"
        found: list[instances.Described] = await self._call(backend, "GET", path)
        return found

    def _read(
        self, backend: Backend, described: Iterable[instances.Described]
    ) -> tuple[Machine, ...]:
        try:
            found = [instances.machine(each, lab=backend.lab) for each in described]
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(f"the list of instances cannot be read: {error!r}") from None
        return tuple(each for each in found if each is not None)

    async def _call(
        self,
        backend: Backend,
        method: str,
        path: str,
        *,
        absent: type[Refused | Unreachable] = Refused,
        **sent: Any,
    ) -> Any:
        try:
            return await self._limiter.call(backend, method, path, **sent)
        except ApiError as error:
            if error.status == NOT_FOUND:
                raise absent(str(error)) from None
            raise failure(error) from None

    def _project_id(self, backend: Backend) -> str:
        causes = parameters.causes_of(CorelliumAccount, backend.parameters)
        if causes:
            said = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"ProviderConfig {backend.key[1]}: {said}")
        return parameters.read(CorelliumAccount, backend.parameters).project_id


def _is_reset(profile: Profile) -> bool:
    """Whether the device is used again, and must be as at its beginning for the next lessee."""
    return not profile.single_use and not profile.keep
