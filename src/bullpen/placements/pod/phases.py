"""A Pod as an instance: the meaning of its status. Pure.

An unschedulable Pod is waiting, because Kubernetes keeps trying. A container that cannot
start is a failed start, so that the pool backs off. A Pod that was lost with its node says
nothing about its template or class. In all other cases the exporter's last message decides.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from bullpen.api.meta import OwnerReference
from bullpen.api.pod import (
    MANAGED_BY,
    MANAGER,
    ContainerStatus,
    Pod,
    PodCondition,
    Terminated,
)
from bullpen.core.targets.instances import ExitReason, Instance, InstancePhase
from bullpen.errors import NoCapacity
from bullpen.placements.base import Key
from bullpen.placements.pod import names

DETAIL_LENGTH_MAX = 500

STUCK = frozenset(
    {
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImageInspectError",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    }
)
"""Reasons of a waiting container that will not start. A first failed pull may be transient."""

HOMELESS = frozenset({"Unschedulable", "SchedulingGated"})
"""Why a Pod has no node yet, although the scheduler has considered it."""

REJECTED = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "AppArmor")
"""Prefixes of the reasons with which a node rejects a Pod."""

EXPELLED = frozenset(
    {"Evicted", "NodeLost", "NodeShutdown", "Preempting", "Shutdown", "Terminated"}
)
"""Reasons of Pods that were preempted, evicted or lost with their node."""

GREEDY = ("ephemeral", "emptydir")
"""Words in the message of an eviction that the Pod caused by its own writes."""


class Ending(msgspec.Struct, frozen=True):
    """The message of a container in its termination log."""

    reason: ExitReason
    detail: str = ""


def is_ours(pod: Pod) -> bool:
    labels = pod.metadata.labels
    return labels.get(MANAGED_BY) == MANAGER and names.PROVISIONER in labels and bool(_owner(pod))


def _owner(pod: Pod) -> OwnerReference | None:
    owners = pod.metadata.owner_references
    return next((owner for owner in owners if owner.controller), None)


def instance(pod: Pod) -> Instance:
    """The instance of one of our Pods."""
    owner = _owner(pod)
    assert owner is not None
    state = _state(pod)
    return Instance(
        key=key_of(pod),
        owner_uid=owner.uid,
        provisioner=pod.metadata.labels[names.PROVISIONER],
        phase=state.phase,
        reason=state.reason,
        held=state.held,
        detail=state.detail[:DETAIL_LENGTH_MAX],
        host=str(pod.spec.get("nodeName", "")),
        provider_id=pod.metadata.uid,
        addresses=(pod.status.pod_ip,) if pod.status.pod_ip else (),
    )


def key_of(pod: Pod) -> Key:
    return pod.metadata.namespace, pod.metadata.name


class _State(msgspec.Struct, frozen=True, kw_only=True):
    phase: InstancePhase = InstancePhase.BOOTING
    reason: ExitReason | None = None
    held: str = ""
    detail: str


def _state(pod: Pod) -> _State:
    """Certain facts first: an end, then what prevents the start, then the progress."""
    return _ended(pod) or _lost(pod) or _stuck(pod) or _waiting(pod) or _up(pod)


def _exited(reason: ExitReason, detail: str) -> _State:
    return _State(phase=InstancePhase.EXITED, reason=reason, detail=detail)


def _ended(pod: Pod) -> _State | None:
    status = pod.status
    if status.phase not in ("Succeeded", "Failed"):
        return _exporter_ended(pod)
    if status.reason.startswith(REJECTED):
        return _exited(ExitReason.START_FAILED, _said(status.reason, status.message))
    if status.reason in EXPELLED or _is_disrupted(pod):
        return _expelled(pod)
    return _exporter_ended(pod) or _failed_before(pod) or _unexplained(pod)


def _expelled(pod: Pod) -> _State:
    status = pod.status
    said = _said(status.reason or "Disrupted", status.message)
    greedy = status.reason == "Evicted" and any(w in status.message.lower() for w in GREEDY)
    return _exited(ExitReason.CRASHED if greedy else ExitReason.LOST, said)


def _is_disrupted(pod: Pod) -> bool:
    found = _condition(pod, "DisruptionTarget")
    return found is not None and found.status == "True"


def _exporter_ended(pod: Pod) -> _State | None:
    """The exporter has ended, whatever else may still run."""
    for container in pod.status.container_statuses:
        terminated = container.state.terminated
        if container.name == names.EXPORTER and terminated is not None:
            return _verdict(terminated, ExitReason.CRASHED)
    return None


def _failed_before(pod: Pod) -> _State | None:
    """An init container failed, so the exporter never started."""
    for container in pod.status.init_container_statuses:
        terminated = container.state.terminated
        if terminated is not None and terminated.exit_code:
            found = _verdict(terminated, ExitReason.START_FAILED)
            return _exited(ExitReason.START_FAILED, f"{container.name}: {found.detail}")
    return None


def _unexplained(pod: Pod) -> _State:
    status = pod.status
    if status.phase == "Succeeded":
        return _exited(ExitReason.COMPLETED, "it completed")
    return _exited(ExitReason.LOST, _said(status.reason or "Failed", status.message))


def _verdict(terminated: Terminated, otherwise: ExitReason) -> _State:
    """A container's own message about its end; a killed one has none."""
    try:
        ending = msgspec.json.decode(terminated.message, type=Ending)
    except msgspec.DecodeError:
        pass
    else:
        return _exited(ending.reason, ending.detail)
    if terminated.reason in ("StartError", "ContainerCannotRun"):
        return _exited(ExitReason.START_FAILED, _said(terminated.reason, terminated.message))
    if not terminated.exit_code and not terminated.signal:
        return _exited(ExitReason.COMPLETED, "it completed")
    code = f"{terminated.reason or 'Error'}, exit code {terminated.exit_code}"
    return _exited(otherwise, _said(code, terminated.message))


def _lost(pod: Pod) -> _State | None:
    if pod.status.phase != "Unknown" and pod.status.reason != "NodeLost":
        return None
    return _exited(ExitReason.LOST, f"its node {pod.spec.get('nodeName', '')} does not answer")


def _stuck(pod: Pod) -> _State | None:
    """A container that waits for something that needs intervention."""
    for container in _containers(pod):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason in STUCK:
            started = any(c.name == names.EXPORTER and c.started for c in _containers(pod))
            reason = ExitReason.CRASHED if started else ExitReason.START_FAILED
            said = _said(waiting.reason, waiting.message)
            return _exited(reason, f"{container.name}: {said}")
    return None


def _waiting(pod: Pod) -> _State | None:
    """Kubernetes has found no node for it, and keeps trying."""
    found = _condition(pod, "PodScheduled")
    if found is None or found.status != "False" or found.reason not in HOMELESS:
        return None
    return _State(held=NoCapacity.reason, detail=_said(found.reason, found.message))


def _up(pod: Pod) -> _State:
    if pod.metadata.deletion_timestamp is not None:
        return _State(detail="it is being deleted")
    if any(c.name == names.EXPORTER and c.started for c in pod.status.container_statuses):
        return _State(phase=InstancePhase.RUNNING, detail="registered")
    waiting = (c for c in _containers(pod) if c.state.waiting is not None)
    for container in waiting:
        assert container.state.waiting is not None
        said = _said(container.state.waiting.reason, container.state.waiting.message)
        if said not in ("PodInitializing", ""):
            return _State(detail=f"{container.name}: {said}")
    node = pod.spec.get("nodeName")
    return _State(detail=f"starting on {node}" if node else "accepted")


def _containers(pod: Pod) -> Iterator[ContainerStatus]:
    yield from pod.status.init_container_statuses
    yield from pod.status.container_statuses


def _condition(pod: Pod, type_: str) -> PodCondition | None:
    return next((found for found in pod.status.conditions if found.type == type_), None)


def _said(reason: str, message: str) -> str:
    return f"{reason}: {message}" if message else reason
