"""Limits per client, as the real client and a program of a client's own meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc
import pytest

from support.grpc_caller import calling
from support.lab_helpers import Lab
from support.real_service import running_service

pytestmark = pytest.mark.real

FLOOD = 2_815
"""As many leases of ten years as one client once had."""

WAITING_MAX = 40
AT_ONCE = 50


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("quotas")
    config = directory / "config.yaml"
    config.write_text(f"leases: {{maxWaitingPerClient: {WAITING_MAX}, maxDuration: 24h}}\n")
    with running_service(directory, "--config", str(config)) as service:
        made = Lab(service)
        made.client("flood")
        made.exporter("board", {"board": "b"})
        yield made


async def test_a_client_that_floods_the_lab_with_leases_is_stopped_at_its_limit(lab: Lab) -> None:
    codes: list[grpc.StatusCode] = []
    texts: set[str] = set()
    async with calling(lab.service.home / "client-default-flood.yaml") as caller:

        async def ask(lasts: float) -> None:
            try:
                await caller.create_lease("board=b", lasts=lasts)
            except grpc.aio.AioRpcError as error:
                codes.append(error.code())
                texts.add(str(error.details()))

        for _ in range(FLOOD // AT_ONCE):
            await asyncio.gather(*(ask(3600) for _ in range(AT_ONCE)))
        assert set(codes) == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert len(lab.open_leases("flood")) == WAITING_MAX
        assert any("leases.maxWaitingPerClient" in text for text in texts)
        assert all("can change it" in text for text in texts)
        codes.clear()
        await ask(10 * 365 * 24 * 3600)
        assert codes == [grpc.StatusCode.UNKNOWN], "the code whose text jmp prints as one line"


def test_jmp_says_which_limit_was_reached_and_who_can_change_it(lab: Lab) -> None:
    config = lab.service.home / "client-default-flood.yaml"
    refused = lab.jmp(config, "create", "lease", "-l", "board=b", "--duration", "1h", check=False)
    assert refused.returncode
    assert "the operator of the service can change it" in refused.stderr
    assert "Traceback" not in refused.stderr
