"""What the stand-in for Cuttlefish (``cuttlefish_stand_in.py``) does: its devices, in memory.

Time is that of the clock it is given, so that rounds of faults take place in virtual time.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bullpen.kit.clock import Clock
from bullpen.testing.fake_corellium import Answer
from bullpen.testing.fake_provider import AccountFaults

GROUP = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
DEVICE = re.compile(r"[A-Za-z_0-9]+(-[A-Za-z_0-9]+)*")
FIRST_PORT = 6520
IDS_MAX = 100
ACTIVE = frozenset({"Preparing", "Starting", "Running", "Stopping", "Unreachable"})
"""What has an adb port, and is stopped before it is removed."""

NEVER_BOOTS = "/never-boots"
"""A build of this path fails to start."""


class Failed(Exception):
    """A command of cvd that failed."""


@dataclass(slots=True, kw_only=True)
class Device:
    """A device, alone in its group."""

    group: str
    name: str
    id: int
    created: datetime
    build: str
    switched: datetime
    """When it was started or stopped."""

    on: bool = True
    resets: int = 0


@dataclass(slots=True, kw_only=True)
class Operation:
    """A command of cvd that takes a while."""

    due: datetime
    work: Callable[[], None] | None
    """What it does in the end."""

    error: str = ""


@dataclass(slots=True)
class Cuttlefish:
    """One host."""

    clock: Clock
    happens: Callable[[float], bool] = lambda chance: chance >= 1
    """Whether a fault of some probability takes place."""

    faults: AccountFaults = field(default_factory=AccountFaults)
    devices: dict[str, Device] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    made: int = 0
    first_port: int = FIRST_PORT
    """Of the adb of the first device; real ones have 6520."""

    removals_fail: bool = False
    """As if devices could not be stopped."""

    @property
    def machines(self) -> list[Device]:
        self._work()
        return [*self.devices.values()]

    def answer(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Answer:
        self.calls.append(f"{method} {path}")
        self._work()
        for pattern, methods in ROUTES:
            found = re.fullmatch(pattern, path)
            if found is not None and method in methods:
                handler = getattr(self, methods[method])
                made: Answer = handler(body, *found.groups())
                return made
        return Answer(502)  # everything else is the operator's, which is not there

    # Devices

    def list_all(self, _: object) -> Answer:
        shown = [
            self._shown(each)
            for each in self.devices.values()
            if not self.happens(self.faults.omitted)
        ]
        return Answer(200, {"cvds": shown})

    def list_group(self, _: object, group: str, name: str = "") -> Answer:
        found = self.devices.get(group)
        if found is None:
            return refused(404, f'Group "{group}" not found')
        if name not in ("", found.name):
            return refused(404, f'CVD "{name}" not found in group "{group}"')
        return Answer(200, {"cvds": [self._shown(found)]})

    def create(self, body: Mapping[str, Any] | None) -> Answer:
        config = (body or {}).get("env_config")
        if config is None:
            return refused(400, "invalid CreateCVDRequest", "field EnvConfig is empty")
        return self._begun(self.faults.listed_after, lambda: self._load(config))

    def remove(self, _: object, group: str, name: str = "") -> Answer:
        return self._begun(self.faults.delete_seconds, lambda: self._remove(group))

    def act(self, _: object, group: str, name: str, action: str) -> Answer:
        return self._begun(self.faults.boot_seconds, lambda: self._act(group, name, action))

    # Operations

    def operation(self, _: object, name: str) -> Answer:
        found = self.operations.get(name)
        if found is None:
            return refused(404, "Operation not found")
        return Answer(200, {"name": name, "done": found.work is None})

    def result(self, _: object, name: str) -> Answer:
        found = self.operations.get(name)
        if found is None:
            return refused(404, "Operation not found")
        if found.work is not None:
            return refused(404, "Operation not done")
        return (
            refused(500, "Internal server error", found.error) if found.error else Answer(200, {})
        )

    def status(self, _: object) -> Answer:
        return Answer(200)

    # How it works

    def running(self, number: int) -> Device | None:
        """The device with this number, if it is on."""
        self._work()
        found = (each for each in self.devices.values() if each.id == number)
        return next((each for each in found if self._status(each) == "Running"), None)

    def _load(self, config: Mapping[str, Any]) -> None:
        group, instance = config["common"]["group_name"], config["instances"][0]
        name = instance.get("name", "")
        if not GROUP.fullmatch(group) or not DEVICE.fullmatch(name):
            raise Failed(f"Invalid group name: {group}")
        if group in self.devices:
            raise Failed(f"Group {group} already exists")
        if self.faults.quota and len(self.devices) >= self.faults.quota:
            raise Failed("no unused instance lock")
        now = self.clock.now()
        used = {device.id for device in self.devices.values()}
        self.devices[group] = Device(
            group=group,
            name=name,
            id=next(number for number in range(1, IDS_MAX) if number not in used),
            created=now,
            build=str((instance.get("disk") or {}).get("default_build", "")),
            switched=now,
        )
        self.made += 1

    def _remove(self, group: str) -> None:
        if group not in self.devices:
            raise Failed("no device matched the selector")
        if self.removals_fail and self._status(self.devices[group]) in ACTIVE:
            raise Failed("Group still contains active instances")
        del self.devices[group]

    def _act(self, group: str, name: str, action: str) -> None:
        found = self.devices.get(group)
        if found is None or found.name != name:
            raise Failed("no device matched the selector")
        if action == "powerwash":
            found.resets += 1
            return
        on = action == "start"
        if found.on != on:
            found.on, found.switched = on, self.clock.now() - timedelta(hours=1)

    def _begun(self, seconds: float, work: Callable[[], None]) -> Answer:
        name = secrets.token_hex(8)
        due = self.clock.now() + timedelta(seconds=seconds)
        self.operations[name] = Operation(due=due, work=work)
        self._work()
        return Answer(200, {"name": name, "done": False})

    def _work(self) -> None:
        """Everything that is due by now."""
        now = self.clock.now()
        for operation in self.operations.values():
            if operation.work is not None and operation.due <= now:
                work, operation.work = operation.work, None
                try:
                    work()
                except Failed as failed:
                    operation.error = str(failed)

    def _status(self, device: Device) -> str:
        if device.build == NEVER_BOOTS:
            return "Boot Failed"
        if not device.on:
            return "Stopped"
        age = (self.clock.now() - device.switched).total_seconds()
        return "Running" if age >= self.faults.boot_seconds else "Starting"

    def _shown(self, device: Device) -> dict[str, Any]:
        status = self._status(device)
        port = self.first_port + device.id - 1 if status in ACTIVE else 0
        return {
            "group": device.group,
            "name": device.name,
            "status": status,
            "displays": [],
            "webrtc_device_id": f"cvd-{device.id}" if port else "",
            "adb_serial": f"0.0.0.0:{port}" if port else "",
            "adb_port": port,
        }


def refused(status: int, message: str, details: str = "") -> Answer:
    said = f"{message}: {details}" if details else message
    return Answer(status, {"error": message, "details": said})


ROUTES: tuple[tuple[str, dict[str, str]], ...] = (
    (r"/cvds", {"GET": "list_all", "POST": "create"}),
    (r"/cvds/([^/:]+)", {"GET": "list_group", "DELETE": "remove"}),
    (r"/cvds/([^/:]+)/([^/:]+)", {"GET": "list_group", "DELETE": "remove"}),
    (r"/cvds/([^/]+)/([^/]+)/:(start|stop|powerwash)", {"POST": "act"}),
    (r"/operations/([^/]+)", {"GET": "operation"}),
    (r"/operations/([^/]+)/result", {"GET": "result"}),
    (r"/_debug/statusz", {"GET": "status"}),
)
