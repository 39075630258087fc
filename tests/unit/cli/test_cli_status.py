"""What ``bullpen status`` says about pools."""

from __future__ import annotations

from typing import Any, cast

import pytest
from click.testing import CliRunner

from bullpen.cli import status
from bullpen.cli.connection import Api


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
        exporters: tuple[dict[str, Any], ...] = (),
        providers: tuple[dict[str, Any], ...] = (),
    ) -> None:
        self._found = {
            "exportersets": list(pools),
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
    with CliRunner().isolation() as (out, *_):
        status._echo(report)
        shown = out.getvalue().decode()
    assert "REASON" in shown
    assert "ProgramMissing" in shown


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


def test_ended_leases_are_not_read() -> None:
    api = PlayedApi()
    status.gather(cast(Api, api))
    assert api.queries["leases"]["labelSelector"] == "!jumpstarter.dev/lease-ended"
