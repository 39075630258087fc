"""A pool whose zygote stops answering: the service says so, replaces it, and fills the pool."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from real_placement import alive

from bullpen.cli.connection import Api
from bullpen.cli.status import gather
from bullpen.placements.local import layout
from bullpen.placements.local.layout import Layout
from support.real_service import Service, eventually

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

WAIT_SECONDS_MAX = 180.0
API = "virtualtarget.jumpstarter.dev/v1alpha1"
POOL: tuple[dict[str, Any], ...] = (
    {
        "apiVersion": API,
        "kind": "VirtualTargetClass",
        "metadata": {"name": "mock"},
        "spec": {"provisioner": "mock.jumpstarter.dev"},
    },
    {
        "apiVersion": API,
        "kind": "ExporterSet",
        "metadata": {"name": "few"},
        "spec": {
            "virtualTargetClassName": "mock",
            "minAvailableReplicas": 2,
            "maxReplicas": 2,
            "selector": {"matchLabels": {"board": "few"}},
            "template": {"metadata": {"labels": {"board": "few"}}},
        },
    },
)


@pytest.fixture
def api(fresh_service: Service) -> Iterator[Api]:
    with contextlib.closing(Api.from_data(fresh_service.data)) as found:
        yield found


def test_status_is_red_while_the_zygote_hangs_and_green_when_the_pool_is_back(
    fresh_service: Service, api: Api, tmp_path: Path
) -> None:
    manifest = tmp_path / "pool.yaml"
    manifest.write_text(yaml.safe_dump_all(POOL))
    fresh_service.bullpen("apply", "-f", str(manifest))

    def warm() -> bool:
        (pool,) = gather(api)["pools"]
        return bool(pool["availableReplicas"] == 2)

    eventually(warm, seconds=WAIT_SECONDS_MAX, what="the pool being warm")
    assert gather(api)["healthy"]
    state = layout.read_zygote(Layout(fresh_service.data))
    assert state is not None
    hung = psutil.Process(state.process.pid)
    members = hung.children(recursive=True)

    hung.send_signal(signal.SIGSTOP)

    problems: list[str] = []

    def red() -> bool:
        problems.append(gather(api)["problem"])
        return bool(problems[-1])

    eventually(red, seconds=WAIT_SECONDS_MAX, what="the status being red")
    assert "does not answer" in problems[-1]
    eventually(lambda: alive([hung, *members]) == [], seconds=WAIT_SECONDS_MAX, what="their end")
    eventually(lambda: gather(api)["healthy"] and warm(), seconds=WAIT_SECONDS_MAX)
