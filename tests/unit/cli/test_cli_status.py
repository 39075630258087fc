"""What ``bullpen status`` says about pools."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from bullpen.cli import status, top
from bullpen.cli.connection import Api

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)


def pool(name: str, *conditions: tuple[str, str, str, str]) -> dict[str, Any]:
    said = [
        {"type": type_, "status": state, "reason": reason, "message": message}
        for type_, state, reason, message in conditions
    ]
    return {
        "metadata": {"namespace": "lab", "name": name},
        "spec": {"minReplicas": 0},
        "status": {"replicas": 2, "conditions": said},
    }


class PlayedApi:
    """An API server with some pools and exporters, and nothing else."""

    server = "https://lab"

    def __init__(
        self,
        *pools: dict[str, Any],
        lasting: tuple[dict[str, Any], ...] = (),
        exporters: tuple[dict[str, Any], ...] = (),
        providers: tuple[dict[str, Any], ...] = (),
    ) -> None:
        self._found = {
            "exportersets": list(pools),
            "virtualtargetpools": list(lasting),
            "exporters": list(exporters),
            "providerconfigs": list(providers),
        }
        self.queries: dict[str, dict[str, str]] = {}

    def problem(self) -> str:
        return ""

    def request(self, method: str, path: str, *, query: dict[str, str]) -> dict[str, Any]:
        plural = path.rpartition("/")[2]
        self.queries[plural] = query
        return {"items": self._found.get(plural, []), "metadata": {}}


HEALTHY = pool("good", ("Degraded", "False", "Healthy", "2 of 2 warm"))
MISSING = pool("bad", ("Degraded", "True", "ProgramMissing", "qemu-img is not installed"))


@pytest.mark.parametrize(
    ("pools", "problem"),
    [
        pytest.param((HEALTHY,), "", id="a healthy pool"),
        pytest.param((pool("new"),), "", id="a pool without conditions yet"),
        pytest.param(
            (HEALTHY, MISSING),
            "pool lab/bad: ProgramMissing: qemu-img is not installed",
            id="a pool that cannot start anything",
        ),
        pytest.param(
            (MISSING, MISSING),
            "pool lab/bad: ProgramMissing: qemu-img is not installed, and 1 more",
            id="two of them",
        ),
    ],
)
def test_a_pool_that_cannot_do_its_job_makes_the_lab_unhealthy(
    pools: tuple[dict[str, Any], ...], problem: str
) -> None:
    report = status.gather(cast(Api, PlayedApi(*pools)))
    assert (report["healthy"], report["problem"]) == (not problem, problem)


def test_every_pool_is_shown_with_its_reason() -> None:
    report = status.gather(cast(Api, PlayedApi(HEALTHY, MISSING)))
    assert [found["reason"] for found in report["pools"]] == ["", "ProgramMissing"]
    shown = status.text(report, now=NOW)
    assert "REASON" in shown
    assert "ProgramMissing" in shown


def test_trouble_says_since_when() -> None:
    bad = {**MISSING, "status": {**MISSING["status"]}}
    (said,) = bad["status"]["conditions"]
    bad["status"]["conditions"] = [{**said, "lastTransitionTime": "2026-05-04T11:55:00Z"}]
    report = status.gather(cast(Api, PlayedApi(bad)))
    assert report["problem"].endswith("is not installed, since 2026-05-04T11:55:00Z")
    assert report["pools"][0]["since"] == "2026-05-04T11:55:00Z"
    assert "ProgramMissing   5m" in status.text(report, now=NOW)


def test_a_lasting_pool_that_cannot_do_its_job_makes_the_lab_unhealthy() -> None:
    failing = pool("fleet", ("ReplicaFailure", "True", "CreateRefused", "quota exceeded"))
    report = status.gather(cast(Api, PlayedApi(lasting=(failing,))))
    assert report["problem"] == "virtualtargetpool lab/fleet: CreateRefused: quota exceeded"
    assert "fleet" in status.text(report, now=NOW)


def test_what_does_not_fit_into_the_terminal_is_said() -> None:
    assert top.fitted("one\ntwo\nthree", columns=2, rows=3) == "on\ntw\nth"
    shown = top.fitted("one\ntwo\nthree\nfour", columns=9, rows=3)
    assert shown.splitlines() == ["one", "two", "… 2 more lines; bullpen status shows all"]


def test_an_exporter_that_hangs_after_its_lease_makes_the_lab_unhealthy() -> None:
    """A hook or driver that hangs: it is connected, has no lease, and does not come back."""
    said = {"type": "Stuck", "status": "True", "reason": "NotAvailable", "message": "for 5m"}
    board = {
        "metadata": {"namespace": "lab", "name": "board"},
        "spec": {},
        "status": {"exporterStatus": "AfterLeaseHook", "conditions": [said]},
    }
    report = status.gather(cast(Api, PlayedApi(HEALTHY, exporters=(board,))))
    assert report["problem"] == "exporter lab/board: Stuck: for 5m"
    board["status"]["conditions"] = [{**said, "status": "False"}]  # type: ignore[index]
    assert status.gather(cast(Api, PlayedApi(HEALTHY, exporters=(board,))))["healthy"]


def test_a_provider_or_host_that_does_not_answer_makes_the_lab_unhealthy() -> None:
    said = {
        "type": "Reachable",
        "status": "False",
        "reason": "NotAnswering",
        "message": "host one: it is off",
    }
    bench = {
        "metadata": {"namespace": "lab", "name": "bench"},
        "spec": {"provisioner": "qemu-baremetal.jumpstarter.dev"},
        "status": {"conditions": [said]},
    }
    report = status.gather(cast(Api, PlayedApi(HEALTHY, providers=(bench,))))
    assert report["problem"] == "provider lab/bench: NotAnswering: host one: it is off"
    bench["status"]["conditions"] = [{**said, "message": ""}]  # type: ignore[index]
    report = status.gather(cast(Api, PlayedApi(HEALTHY, providers=(bench,))))
    assert report["healthy"], "it was not asked yet"
    moved = {"type": "SettingsInEffect", "reason": "MayHoldInstances", "message": "parameters"}
    bench["status"]["conditions"] = [{**said, "message": ""}, {**moved, "status": "False"}]  # type: ignore[index]
    report = status.gather(cast(Api, PlayedApi(HEALTHY, providers=(bench,))))
    assert report["problem"] == "provider lab/bench: MayHoldInstances: parameters"


def test_ended_leases_are_not_read() -> None:
    api = PlayedApi()
    status.gather(cast(Api, api))
    assert api.queries["leases"]["labelSelector"] == "!jumpstarter.dev/lease-ended"
