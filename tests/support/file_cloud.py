"""A stand-in for a provider: an account is a directory, and a machine is a file in it.

It was checked against nothing but Bullpen's own interface, and shows that a provider in another
package works with the service and its commands, each in a process of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.backends import Inventory, Machine, MachineState
from bullpen.errors import Cause, Unreachable
from bullpen.kit import times
from bullpen.provisioners.base import Needs, Plugin, Profile
from bullpen.provisioners.provider import Backend, Order

NAME = "file-cloud.example.com"
COST = 0.25


class FileCloud:
    name = NAME
    idempotent = True

    def check(
        self, parameters: Mapping[str, object], drivers: tuple[Driver, ...]
    ) -> tuple[Cause, ...]:
        return ()

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=64 << 20, cpus=0.1)

    def hourly_cost(self, profile: Profile) -> float:
        return COST

    def new_keys(self) -> Mapping[str, bytes]:
        return {}

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        return {"power": {"type": "jumpstarter_driver_power.driver.MockPower", "config": {}}}

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        return {}

    async def list_machines(self, backend: Backend) -> Inventory:
        paths = sorted(_account(backend).glob("*.json"))
        found = [(path.stem, json.loads(path.read_text())) for path in paths]
        machines = (_machine(name, made) for name, made in found if made["lab"] == backend.lab)
        return Inventory(machines=tuple(machines))

    async def create(self, backend: Backend, order: Order) -> Machine:
        path = _account(backend) / f"{order.token[:12]}.json"
        made = machine_file(
            backend.lab, order.key, order.owner_uid, created=order.expires, expires=order.expires
        )
        if not path.exists():
            path.write_text(made)
        return _machine(path.stem, json.loads(path.read_text()))

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        path = _account(backend) / f"{machine.id}.json"
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "expires": times.text(expires)})
        )

    async def delete(self, backend: Backend, machine: Machine) -> None:
        (_account(backend) / f"{machine.id}.json").unlink(missing_ok=True)


def machine_file(
    lab: str, key: tuple[str, str], uid: str, *, created: datetime, expires: datetime
) -> str:
    """The content of a machine's file."""
    return json.dumps(
        {
            "lab": lab,
            "key": key,
            "uid": uid,
            "created": times.text(created),
            "expires": times.text(expires),
        }
    )


def _account(backend: Backend) -> Path:
    if not Path(backend.endpoint).is_dir():
        raise Unreachable(f"{backend.endpoint} does not exist")
    if backend.credentials() != {"token": b"of the account"}:
        raise Unreachable("the account is another's")
    return Path(backend.endpoint)


def _machine(name: str, made: Mapping[str, str]) -> Machine:
    return Machine(
        id=name,
        key=(made["key"][0], made["key"][1]),
        owner_uid=made["uid"],
        state=MachineState.RUNNING,
        created=times.parse(made["created"]),
        expires=times.parse(made["expires"]),
        address="192.0.2.1",
        hourly_cost=COST,
    )


PLUGIN = Plugin(name=NAME, provider=FileCloud)


def install(place: Path) -> Path:
    """A directory for PYTHONPATH in which this is an installed provisioner."""
    information = place / "file_cloud-1.0.dist-info"
    information.mkdir(parents=True)
    (place / "file_cloud.py").write_text(Path(__file__).read_text())
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: file-cloud\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        f"[bullpen.provisioners]\n{NAME} = file_cloud:PLUGIN\n"
    )
    return place
