"""Groups of devices as cvd describes them, and the machines that they are to us. Pure.

cvd has no labels. The name of a group says whose it is, and no two groups have the same name, so a
creation that is repeated creates nothing. The name of the one device in it says when it was
ordered, and what it costs. It is another one in each attempt: of several attempts one succeeds, and
a group that appears late is not taken for one of its name that was deleted.

    bullpen__LAB__NAMESPACE__EXPORTER__UID / t1763590000_x7k2m_c0p5
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from bullpen.core.targets.backends import Key, Machine, MachineState
from bullpen.provisioners.cuttlefish.parameters import CuttlefishParameters

PREFIX = "bullpen"
SEPARATOR = "__"
ESCAPES = {"-": "_d", ".": "_p"}
"""Of what names of Kubernetes have, and those of groups must not. They have no underscore."""

DEVICE = re.compile(r"t(?P<created>[0-9]{1,12})_[a-z0-9]+(_c(?P<cost>[0-9]+(p[0-9]+)?))?")

Described = Mapping[str, Any]

RUNNING = "Running"
FAILURES = frozenset({"Prepare Failed", "Boot Failed", "Cancelled"})


def group_name(*, lab: str, key: Key, uid: str) -> str:
    return SEPARATOR.join((PREFIX, *(_escaped(part) for part in (lab, *key, uid))))


def device_name(*, created: datetime, suffix: str, hourly_cost: str) -> str:
    cost = f"_c{hourly_cost.replace('.', 'p')}" if hourly_cost else ""
    return f"t{int(created.timestamp())}_{suffix}{cost}"


def request(wanted: CuttlefishParameters, *, group: str, device: str) -> dict[str, Any]:
    """What creates the group."""
    given: Mapping[str, Any] = wanted.env_config
    common = {**given.get("common", {}), "group_name": group}
    return {**given, "common": common, "instances": [{**given["instances"][0], "name": device}]}


def machine(described: Described, *, lab: str, host: str) -> Machine | None:
    """The machine; None if the names are not those of this lab's."""
    parts = str(described.get("group", "")).split(SEPARATOR)
    device = DEVICE.fullmatch(str(described.get("name", "")))
    if len(parts) != 5 or parts[0] != PREFIX or device is None or parts[1] != _escaped(lab):
        return None
    _, _, namespace, name, uid = (_plain(part) for part in parts)
    state, detail = _state(described)
    return Machine(
        id=f"{described['group']}/{described['name']}",
        key=(namespace, name),
        owner_uid=uid,
        state=state,
        created=datetime.fromtimestamp(int(device["created"]), UTC),
        address=f"{host}:{described['adb_port']}" if described.get("adb_port") else "",
        hourly_cost=float((device["cost"] or "0").replace("p", ".")),
        detail=detail,
    )


def _state(described: Described) -> tuple[MachineState, str]:
    """A device that is switched off is still there, and may be leased."""
    status = str(described.get("status", ""))
    if status in FAILURES:
        return MachineState.FAILED, f"cvd says: {status}"
    if status == RUNNING and described.get("adb_port"):
        return MachineState.RUNNING, ""
    return MachineState.STARTING, f"cvd says: {status}"


def _escaped(text: str) -> str:
    for plain, escape in ESCAPES.items():
        text = text.replace(plain, escape)
    return text


def _plain(text: str) -> str:
    for plain, escape in ESCAPES.items():
        text = text.replace(escape, plain)
    return text
