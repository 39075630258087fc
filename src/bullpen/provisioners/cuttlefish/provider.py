"""Devices of a Cuttlefish host orchestrator, as an attended provisioner uses them."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Protocol
from urllib.parse import urlsplit

from bullpen.api.exporter_template import Driver
from bullpen.api.paths import written
from bullpen.core.targets.backends import EXPIRY, Inventory, Machine
from bullpen.drivers.cuttlefish import GRANTED, Grant
from bullpen.drivers.json_api import ApiError, JsonApi
from bullpen.errors import Cause, LabError, Refused, Unreachable
from bullpen.kit.ids import Ids
from bullpen.provisioners import parameters, target_drivers
from bullpen.provisioners.android import ADB
from bullpen.provisioners.base import Needs, Profile
from bullpen.provisioners.cuttlefish import groups
from bullpen.provisioners.cuttlefish.parameters import CuttlefishParameters, problems
from bullpen.provisioners.provider import Backend, Order

NAME = "cuttlefish.bullpen.dev"
DRIVER = "bullpen.drivers.cuttlefish.Cuttlefish"

EXPORTER_BYTES = 256 << 20
"""Of the exporter and its adb server; the device is in the orchestrator's memory."""

EXPORTER_CPUS = 0.2

LISTED_SECONDS_MAX = 20.0
"""How long a new group may take to be listed. cvd records it before it fetches anything."""

DELETED_SECONDS_MAX = 120.0
LOOK_SECONDS = 1.0
NOT_FOUND, BAD_REQUEST = 404, 400


class Api(Protocol):
    """The calls of one orchestrator."""

    async def call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any:
        """The decoded answer. Raises ``ApiError``."""


class Connect(Protocol):
    def __call__(self, backend: Backend) -> Api:
        """The calls of a backend. Raises ``Refused`` if it cannot be used."""


def http_api(backend: Backend) -> Api:
    host_of(backend)
    return JsonApi(backend.endpoint.rstrip("/"), headers={})


def host_of(backend: Backend) -> str:
    """The address of the orchestrator and of its devices. Raises ``Refused`` if others reach it."""
    found = urlsplit(backend.endpoint)
    host = found.hostname or ""
    try:
        inside = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if found.scheme != "http" or not inside:
        raise Refused(
            f"ProviderConfig {backend.key[1]}: endpoint must be http:// and a loopback address,"
            " because neither the orchestrator nor adb asks for a password; reach another host"
            " through an SSH tunnel"
        )
    return host


class CuttlefishProvider:
    """The API of the host orchestrator. A group's name is its creation's token."""

    name = NAME
    idempotent = True

    def __init__(self, connect: Connect, ids: Ids) -> None:
        self._connect = connect
        self._ids = ids

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(CuttlefishParameters, given)
        if causes:
            return causes
        wanted = parameters.read(CuttlefishParameters, given)
        wrong = (
            Cause(field=written((parameters.ROOT, *path)), message=f"Invalid value: {problem}")
            for path, problem in problems(wanted)
        )
        return (*wrong, *target_drivers.causes(drivers, DRIVER))

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=EXPORTER_BYTES, cpus=EXPORTER_CPUS, programs=(ADB,))

    def hourly_cost(self, profile: Profile) -> float:
        return float(parameters.read(CuttlefishParameters, profile.parameters).hourly_cost or 0)

    def new_keys(self) -> Mapping[str, bytes]:
        return {}

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        group, device = machine.id.split("/")
        reused = not profile.single_use and not profile.keep
        config = {"group": group, "device": device, "reused": reused}
        return target_drivers.exported(profile.drivers, DRIVER, config)

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        """Where the device is. There are no credentials, and lessees see none of it."""
        host, _, port = machine.address.rpartition(":")
        made = Grant(endpoint=backend.endpoint.rstrip("/"), host=host, adb_port=int(port))
        return {GRANTED: json.dumps(asdict(made)).encode()}

    async def list_machines(self, backend: Backend) -> Inventory:
        found = await self._call(backend, "GET", "/cvds")
        return Inventory(machines=self._read(backend, found))

    async def create(self, backend: Backend, order: Order) -> Machine:
        group = groups.group_name(lab=backend.lab, key=order.key, uid=order.owner_uid)
        existing = await self._find(backend, group)
        if existing is not None:
            return existing
        wanted = parameters.read(CuttlefishParameters, order.profile.parameters)
        device = groups.device_name(
            created=order.expires - EXPIRY,
            suffix=self._ids.suffix(),
            hourly_cost=wanted.hourly_cost,
        )
        sent = {"env_config": groups.request(wanted, group=group, device=device)}
        operation = str((await self._call(backend, "POST", "/cvds", body=sent))["name"])
        refusal = ""
        for _ in range(int(LISTED_SECONDS_MAX / LOOK_SECONDS)):
            refusal = refusal or await self._refusal(backend, operation)
            found = await self._find(backend, group)
            if found is not None:
                return found
            if refusal:
                raise Refused(refusal)
            await asyncio.sleep(LOOK_SECONDS)
        raise Unreachable("the host orchestrator has accepted a device, and does not list it yet")

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        """Nothing to do: Cuttlefish devices do not end by themselves."""

    async def delete(self, backend: Backend, machine: Machine) -> None:
        """Returns when the group is gone: its deletion may fail after it was accepted."""
        group = machine.id.split("/")[0]
        operation = str((await self._call(backend, "DELETE", f"/cvds/{group}"))["name"])
        for _ in range(int(DELETED_SECONDS_MAX / LOOK_SECONDS)):
            refusal = await self._refusal(backend, operation)
            if await self._find(backend, group) is None:
                return
            if refusal:
                raise Unreachable(
                    f"{refusal}; if that does not change, run `cvd reset` on its host, which ends"
                    " all devices there"
                )
            await asyncio.sleep(LOOK_SECONDS)
        raise Unreachable(f"the host orchestrator has not deleted group {group} yet")

    async def _find(self, backend: Backend, group: str) -> Machine | None:
        try:
            found = await self._connect(backend).call("GET", f"/cvds/{group}")
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise failure(error) from None
        return next(iter(self._read(backend, found)), None)

    async def _refusal(self, backend: Backend, operation: str) -> str:
        """Why an operation has failed; empty if it has not, or is not known any more."""
        api = self._connect(backend)
        try:
            if not (await api.call("GET", f"/operations/{operation}"))["done"]:
                return ""
            await api.call("GET", f"/operations/{operation}/result")
        except ApiError as error:
            if not error.status:
                raise failure(error) from None
            return "" if error.status == NOT_FOUND else str(error)
        return ""

    def _read(self, backend: Backend, answer: Any) -> tuple[Machine, ...]:
        host = host_of(backend)
        try:
            found = [groups.machine(each, lab=backend.lab, host=host) for each in answer["cvds"]]
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(f"the list of devices cannot be read: {error!r}") from None
        return tuple(each for each in found if each is not None)

    async def _call(
        self, backend: Backend, method: str, path: str, *, body: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            return await self._connect(backend).call(method, path, body=body)
        except ApiError as error:
            raise failure(error) from None


def failure(error: ApiError) -> LabError:
    """The error of ours. A request that is wrong stays wrong; all else is tried again."""
    return Refused(str(error)) if error.status == BAD_REQUEST else Unreachable(str(error))
