"""Instances as EC2 describes them, and the machines that they are to us. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from bullpen.core.targets.backends import EXPIRY, Machine, MachineState
from bullpen.kit import times
from bullpen.provisioners.ec2 import launch
from bullpen.provisioners.ec2.parameters import AddressKind

Described = Mapping[str, Any]
"""An instance in the answer of DescribeInstances or RunInstances."""

ENDED = frozenset({"terminated"})
ENDING = frozenset({"shutting-down", "terminated"})
RESTING = {"stopping": MachineState.STOPPING, "stopped": MachineState.STOPPED}
MARKED = "AWS interrupts this spot instance within two minutes"
SHUT_DOWN = "Client.InstanceInitiatedShutdown"

INTERRUPTIONS = {
    "Server.SpotInstanceTermination": "AWS has interrupted the spot instance",
    "Server.SpotInstanceShutdown": "AWS has interrupted the spot instance",
    "Server.InsufficientInstanceCapacity": "AWS had no capacity to start it",
    "Server.InternalError": "AWS failed to start it, or its hardware failed",
    "Client.VolumeLimitExceeded": "the account's limit of volumes is reached",
    "Client.InternalError": "it did not start, mostly because the key of its disk may not be used",
    SHUT_DOWN: "it was shut down from inside",
}
"""Why an instance ends that we have not ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SshServer:
    """Where the SSH server of an instance listens."""

    address: str
    port: int


def state_of(described: Described) -> str:
    name: str = described["State"]["Name"]
    return name


def is_spot(described: Described) -> bool:
    return described.get("InstanceLifecycle") == "spot" and state_of(described) not in ENDING


def run_of(described: Described) -> str:
    """Identifies one run of an instance, from its start to its stop."""
    return f"{described['InstanceId']} {described['LaunchTime']}"


def ssh_server(described: Described) -> SshServer | None:
    """None if it has no address yet."""
    kind, _, port = _tags(described).get(launch.SSH, "").partition(":")
    field = "PublicIpAddress" if kind == AddressKind.PUBLIC else "PrivateIpAddress"
    address = described.get(field, "")
    return SshServer(address=address, port=int(port)) if address and port.isdecimal() else None


def machine(described: Described, *, reachable: bool, marked: bool = False) -> Machine | None:
    """The machine; None if its tags are not ours. ``reachable``: its SSH server has answered.

    ``marked``: AWS has said that it interrupts this spot instance.
    """
    tags = _tags(described)
    namespace, _, name = tags.get(launch.KEY, "").partition("/")
    if not name or launch.UID not in tags:
        return None
    started, found = described["LaunchTime"].astimezone(UTC), ssh_server(described)
    lasting, switchable = launch.LASTING in tags, launch.CONTROL in tags
    state, detail = _state(described, reachable=reachable, kept=lasting or switchable)
    resting = state_of(described) in RESTING
    return Machine(
        id=described["InstanceId"],
        key=(namespace, name),
        owner_uid=tags[launch.UID],
        state=state,
        created=min((started, *_attached(described))),
        started=started,
        address=found.address if found is not None and state is MachineState.RUNNING else "",
        hourly_cost=0.0 if resting else float(tags.get(launch.HOURLY_COST) or 0),
        expires=_expiry(tags) or started + EXPIRY,
        lasting=lasting,
        switchable=switchable,
        settings=tags.get(launch.SETTINGS, ""),
        notice=MARKED if marked else "",
        shut_down=resting and _reason(described) == SHUT_DOWN,
        detail=detail,
    )


def hibernates(described: Described) -> bool:
    return _tags(described).get(launch.LASTING) == launch.HIBERNATES


def _attached(described: Described) -> list[datetime]:
    """When its disks were attached. Its LaunchTime is that of its last start."""
    disks = (mapping.get("Ebs") or {} for mapping in described.get("BlockDeviceMappings", ()))
    return [disk["AttachTime"].astimezone(UTC) for disk in disks if "AttachTime" in disk]


def _reason(described: Described) -> str:
    return str((described.get("StateReason") or {}).get("Code", ""))


def _state(described: Described, *, reachable: bool, kept: bool) -> tuple[MachineState, str]:
    state, why = state_of(described), INTERRUPTIONS.get(_reason(described), "")
    if state in ENDING:
        return (MachineState.FAILED, why) if why else (MachineState.ENDING, "it is being deleted")
    if state in RESTING and kept:
        return RESTING[state], why or f"it is {state}"
    if state in RESTING:
        return MachineState.FAILED, "it was stopped"
    if state == "running" and reachable:
        return MachineState.RUNNING, ""
    waits = "its SSH server does not answer yet" if state == "running" else ""
    return MachineState.STARTING, waits


def _expiry(tags: Mapping[str, str]) -> Any:
    try:
        return times.parse(tags[launch.EXPIRES])
    except (KeyError, ValueError):
        return None


def _tags(described: Described) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
