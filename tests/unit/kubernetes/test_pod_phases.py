"""Every way a Pod can be has one meaning for its pool: wait, back off, replace, or all is well."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.api import codec
from bullpen.api.pod import Pod, PodStatus
from bullpen.core.targets.instances import ExitReason, InstancePhase
from bullpen.placements.pod import phases, rendering
from support.k8s_workloads import QEMU, SETTINGS

BOOTING, RUNNING, EXITED, _ = InstancePhase
MADE = rendering.pod(QEMU, SETTINGS)


def pod(status: dict[str, Any], *, node: str = "node-1") -> Pod:
    seen = replace(MADE, spec={**MADE.spec, "nodeName": node} if node else MADE.spec)
    return replace(seen, status=codec.decode(PodStatus, status))


def pending(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": "Pending", "containerStatuses": list(containers), **more}


def waiting(reason: str, message: str = "", *, name: str = "exporter") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def running(*, started: bool, name: str = "exporter") -> dict[str, Any]:
    return {"name": name, "started": started, "state": {"running": {"startedAt": "x"}}}


def ended(code: int, message: str = "", *, reason: str = "Error", **more: Any) -> dict[str, Any]:
    terminated = {"exitCode": code, "reason": reason, "message": message, **more}
    return {"name": "exporter", "state": {"terminated": terminated}}


def failed(*containers: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"phase": "Failed", "containerStatuses": list(containers), **more}


def scheduled(status: str, reason: str, message: str = "") -> list[dict[str, Any]]:
    condition = {"type": "PodScheduled", "status": status, "reason": reason, "message": message}
    return [condition]


NO_ROOM = "0/3 nodes are available: 3 Insufficient memory."
SAID = '{"reason":"ResetFailed","detail":"files are left"}'


@pytest.mark.parametrize(
    ("status", "phase", "detail"),
    [
        pytest.param({}, BOOTING, "starting on node-1", id="just taken by a node"),
        pytest.param(
            pending(waiting("ContainerCreating")),
            BOOTING,
            "exporter: ContainerCreating",
            id="its images are pulled or its volumes made",
        ),
        pytest.param(
            pending(waiting("PodInitializing")),
            BOOTING,
            "starting on node-1",
            id="what runs before the exporter runs",
        ),
        pytest.param(
            pending(waiting("ErrImagePull", "connection reset")),
            BOOTING,
            "exporter: ErrImagePull: connection reset",
            id="a first pull that failed is tried again",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [running(started=False)]},
            BOOTING,
            "starting on node-1",
            id="the exporter runs and has not registered",
        ),
        pytest.param(
            {"phase": "Running", "containerStatuses": [running(started=True)]},
            RUNNING,
            "registered",
            id="the exporter has registered",
        ),
        pytest.param(
            {
                "phase": "Running",
                "containerStatuses": [running(started=True)],
                "conditions": [{"type": "Ready", "status": "False", "reason": "x"}],
            },
            RUNNING,
            "registered",
            id="whether it is offline is for the exporter's own connection to say",
        ),
    ],
)
def test_a_pod_that_is_on_its_way(
    status: dict[str, Any], phase: InstancePhase, detail: str
) -> None:
    found = phases.instance(pod(status))
    assert (found.phase, found.detail, found.held) == (phase, detail, "")


@pytest.mark.parametrize("reason", ["Unschedulable", "SchedulingGated"])
def test_a_pod_without_a_place_is_held(reason: str) -> None:
    conditions = scheduled("False", reason, NO_ROOM)
    found = phases.instance(pod({"phase": "Pending", "conditions": conditions}, node=""))
    assert (found.phase, found.held) == (BOOTING, "NoCapacity")
    assert found.detail == f"{reason}: {NO_ROOM}"


def test_a_pod_that_found_a_place_is_held_no_longer() -> None:
    found = phases.instance(pod({"phase": "Pending", "conditions": scheduled("True", "")}))
    assert (found.phase, found.held) == (BOOTING, "")


def test_a_pod_the_scheduler_has_not_looked_at_is_not_held() -> None:
    assert phases.instance(pod({"phase": "Pending"}, node="")).held == ""
    broken = {"phase": "Pending", "conditions": scheduled("False", "SchedulerError")}
    assert phases.instance(pod(broken, node="")).held == ""


START_FAILED, CRASHED, LOST = ExitReason.START_FAILED, ExitReason.CRASHED, ExitReason.LOST


@pytest.mark.parametrize(
    ("status", "reason", "detail"),
    [
        pytest.param(
            pending(waiting("ImagePullBackOff", "not found")),
            START_FAILED,
            "exporter: ImagePullBackOff: not found",
            id="an image that cannot be pulled",
        ),
        pytest.param(
            pending(waiting("InvalidImageName", name="target-runtime")),
            START_FAILED,
            "target-runtime: InvalidImageName",
            id="an image with an impossible name",
        ),
        pytest.param(
            pending(waiting("ErrImageNeverPull")),
            START_FAILED,
            "exporter: ErrImageNeverPull",
            id="an image that is not there and must not be pulled",
        ),
        pytest.param(
            pending(waiting("CreateContainerConfigError", 'secret "x" not found')),
            START_FAILED,
            'exporter: CreateContainerConfigError: secret "x" not found',
            id="a Secret that went away",
        ),
        pytest.param(
            pending(
                initContainerStatuses=[waiting("CrashLoopBackOff", "wait", name="target-runtime")]
            ),
            START_FAILED,
            "target-runtime: CrashLoopBackOff: wait",
            id="a runtime that crashes before anybody used it",
        ),
        pytest.param(
            {
                "phase": "Running",
                "initContainerStatuses": [waiting("CrashLoopBackOff", name="target-runtime")],
                "containerStatuses": [running(started=True)],
            },
            CRASHED,
            "target-runtime: CrashLoopBackOff",
            id="a runtime that crashes under its exporter",
        ),
        pytest.param(
            failed(
                initContainerStatuses=[
                    {
                        "name": "prepare",
                        "state": {
                            "terminated": {
                                "exitCode": 1,
                                "message": '{"reason":"StartFailed","detail":"wrong digest"}',
                            }
                        },
                    }
                ]
            ),
            START_FAILED,
            "prepare: wrong digest",
            id="a file that could not be fetched",
        ),
        pytest.param(
            failed(ended(128, "no such file", reason="StartError")),
            START_FAILED,
            "StartError: no such file",
            id="a command the image does not have",
        ),
        pytest.param(
            failed(ended(1, SAID)), ExitReason.RESET_FAILED, "files are left", id="as it says"
        ),
        pytest.param(
            failed(ended(137, reason="OOMKilled")),
            CRASHED,
            "OOMKilled, exit code 137",
            id="out of memory",
        ),
        pytest.param(
            failed(ended(2, "Traceback …")),
            CRASHED,
            "Error, exit code 2: Traceback …",
            id="without a word of its own",
        ),
        pytest.param(
            failed(reason="Evicted", message="The node was low on resource: memory."),
            LOST,
            "Evicted: The node was low on resource: memory.",
            id="evicted from a node that ran short",
        ),
        pytest.param(
            failed(reason="Evicted", message="Usage of EmptyDir volume exceeds the limit"),
            CRASHED,
            "Evicted: Usage of EmptyDir volume exceeds the limit",
            id="evicted for what it wrote itself",
        ),
        pytest.param(
            failed(
                ended(137),
                conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "x"}],
            ),
            LOST,
            "Disrupted",
            id="preempted by something more important",
        ),
        pytest.param(
            failed(reason="Shutdown", message="Node is shutting down"),
            LOST,
            "Shutdown: Node is shutting down",
            id="its node shut down",
        ),
        pytest.param(
            failed(reason="OutOfcpu", message="Node didn't have enough resource: cpu"),
            START_FAILED,
            "OutOfcpu: Node didn't have enough resource: cpu",
            id="its node would not take it",
        ),
        pytest.param(
            {"phase": "Unknown"}, LOST, "its node node-1 does not answer", id="its node is lost"
        ),
        pytest.param(
            {
                "phase": "Running",
                "reason": "NodeLost",
                "containerStatuses": [running(started=True)],
            },
            LOST,
            "its node node-1 does not answer",
            id="its node is lost, as older releases say it",
        ),
        pytest.param(failed(), LOST, "Failed", id="nobody says why"),
        pytest.param(
            {"phase": "Succeeded", "containerStatuses": [ended(0, reason="Completed")]},
            ExitReason.COMPLETED,
            "it completed",
            id="completed without a word",
        ),
        pytest.param({"phase": "Succeeded"}, ExitReason.COMPLETED, "it completed", id="completed"),
        pytest.param(
            {
                "phase": "Running",
                "containerStatuses": [
                    ended(0, '{"reason":"Completed","detail":"served its lease"}')
                ],
            },
            ExitReason.COMPLETED,
            "served its lease",
            id="completed, and its runtime is still on its way out",
        ),
    ],
)
def test_a_pod_that_ended_or_never_will_start(
    status: dict[str, Any], reason: ExitReason, detail: str
) -> None:
    found = phases.instance(pod(status))
    assert (found.phase, found.reason, found.detail) == (EXITED, reason, detail)


def test_a_pod_that_is_being_deleted_says_so_until_it_is_gone() -> None:
    now = datetime(2026, 11, 16, tzinfo=UTC)
    seen = pod({"phase": "Running", "containerStatuses": [running(started=True)]})
    going = replace(seen, metadata=replace(seen.metadata, deletion_timestamp=now))
    found = phases.instance(going)
    assert (found.phase, found.detail) == (BOOTING, "it is being deleted")


def test_other_peoples_pods_are_not_ours() -> None:
    assert phases.is_ours(MADE)
    meta = MADE.metadata
    for other in (
        replace(meta, labels={}),
        replace(meta, labels={"app.kubernetes.io/managed-by": "bullpen"}),
        replace(meta, owner_references=()),
        replace(meta, labels={**meta.labels, "app.kubernetes.io/managed-by": "Helm"}),
    ):
        assert not phases.is_ours(replace(MADE, metadata=other))


words = st.sampled_from(
    ["", "Evicted", "NodeLost", "OutOfpods", "Unschedulable", "CrashLoopBackOff", "x"]
)
states: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    words.map(lambda reason: {"waiting": {"reason": reason}}),
    st.just({"running": {}}),
    st.tuples(st.sampled_from([0, 1, 137]), st.sampled_from(["", SAID, "{", '{"reason":"?"}'])).map(
        lambda found: {"terminated": {"exitCode": found[0], "message": found[1]}}
    ),
)


def _type(condition: Any) -> str:
    return str(condition["type"])


containers = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["exporter", "target-runtime", "prepare"]),
            "started": st.booleans(),
            "state": states,
        }
    ),
    max_size=3,
)
statuses = st.fixed_dictionaries(
    {
        "phase": st.sampled_from(["", "Pending", "Running", "Succeeded", "Failed", "Unknown"]),
        "reason": words,
        "containerStatuses": containers,
        "initContainerStatuses": containers,
        "conditions": st.lists(
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["PodScheduled", "DisruptionTarget"]),
                    "status": st.sampled_from(["True", "False"]),
                    "reason": words,
                }
            ),
            max_size=2,
            unique_by=_type,
        ),
    }
)


@given(statuses)
def test_every_status_has_a_meaning_and_an_end_is_an_end(status: dict[str, Any]) -> None:
    found = phases.instance(pod(status))
    assert found.owner_uid == "uid-3"
    if status["phase"] in ("Succeeded", "Failed", "Unknown"):
        assert found.phase is EXITED
    if found.phase is EXITED:
        assert found.detail


def test_an_instance_says_which_node_runs_its_pod_and_under_which_address() -> None:
    given = pod({"phase": "Running", "podIP": "10.1.2.3"}, node="worker-1")
    found = phases.instance(given)
    assert (found.host, found.provider_id) == ("worker-1", given.metadata.uid)
    assert found.addresses == ("10.1.2.3",)
