"""Instances as Corellium describes them, and the machines that they are to us. Pure.

Corellium has no tags, so everything is in the name of an instance:
``bullpen:LAB:NAMESPACE/NAME:UID``, its cost per hour if the class says it, and whether it is
used again after a lease.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from bullpen.core.targets.backends import Key, Machine, MachineState, Quota
from bullpen.drivers.corellium import task
from bullpen.kit import times
from bullpen.provisioners.corellium.parameters import CorelliumParameters

PREFIX = "bullpen"
SEPARATOR = ":"
"""In no name, namespace or uid of Kubernetes."""

REUSED = "reused"
"""At the end of the name of an instance that is restored from a snapshot between leases."""

NAME = re.compile(
    rf"{PREFIX}:(?P<lab>[^:/]+):(?P<namespace>[^:/]+)/(?P<name>[^:/]+):(?P<uid>[^:/]+)"
    rf"(:(?P<cost>[0-9]+(\.[0-9]+)?))?(?P<reused>:{REUSED})?"
)

Described = Mapping[str, Any]

ENDING = "deleting"
FAILED = "error"
ON = "on"


def name_of(*, lab: str, key: Key, uid: str, hourly_cost: str, reused: bool) -> str:
    parts = [PREFIX, lab, "/".join(key), uid, hourly_cost, REUSED if reused else ""]
    return SEPARATOR.join(filter(None, parts))


def is_reused(described: Described) -> bool:
    found = NAME.fullmatch(str(described.get("name", "")))
    return found is not None and bool(found["reused"])


def machine(described: Described, *, lab: str) -> Machine | None:
    """The machine; None if its name is not one of this lab's."""
    found = NAME.fullmatch(str(described.get("name", "")))
    if found is None or found["lab"] != lab:
        return None
    state, detail = _state(described)
    return Machine(
        id=described["id"],
        key=(found["namespace"], found["name"]),
        owner_uid=found["uid"],
        state=state,
        created=times.parse(described["created"]),
        address=str(described.get("serviceIp") or ""),
        hourly_cost=float(found["cost"] or 0),
        detail=detail,
    )


def _state(described: Described) -> tuple[MachineState, str]:
    """A device that is switched off, restarts or panics is still there, and may be leased."""
    state = str(described.get("state", ""))
    if state == ENDING:
        return MachineState.ENDING, "it is being deleted"
    if state == FAILED:
        return MachineState.FAILED, str(described.get("error") or "Corellium failed to run it")
    doing = task(described)
    if state == ON and not doing:
        if described.get("panicked"):
            return MachineState.STARTING, "its kernel has panicked"
        return MachineState.RUNNING, ""
    return MachineState.STARTING, f"it is {state}: {doing}" if doing else f"it is {state}"


def quota(project: Described) -> Quota | None:
    """How many instances the project allows, if it says."""
    limit = (project.get("quotas") or {}).get("instances")
    used = (project.get("quotasUsed") or {}).get("instances")
    if limit is None or used is None:
        return None
    return Quota(instances=int(limit), used=int(used))


def no_cores(project: Described, model: Described) -> str:
    """Why a device of this model has no room in the project; empty if it has, or is not known."""
    limit = (project.get("quotas") or {}).get("cores")
    used = (project.get("quotasUsed") or {}).get("cores") or 0
    needed = (model.get("quotas") or {}).get("cores")
    if limit is None or needed is None or used + needed <= limit:
        return ""
    return f"{used:g} of the {limit:g} cores of its quota are used, and a device needs {needed:g}"


def request(wanted: CorelliumParameters, *, name: str, project: str) -> dict[str, Any]:
    """What creates the instance."""
    device = wanted.device
    made: dict[str, Any] = {
        "name": name,
        "project": project,
        "flavor": device.flavor,
        "os": device.os,
        "osbuild": device.build,
        "patches": list(device.patches),
        "snapshot": device.snapshot,
        "fwpackage": device.fwpackage,
        "bootOptions": _boot_options(wanted),
    }
    return {field: value for field, value in made.items() if value}


def _boot_options(wanted: CorelliumParameters) -> dict[str, Any]:
    given = wanted.device.boot_options
    if given is None:
        return {}
    made = {
        "bootArgs": given.boot_args,
        "additionalTags": list(given.additional_tags),
        "screen": given.screen,
    }
    return {field: value for field, value in made.items() if value}
