"""Registered with pytest: the fixture ``claim``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "claim(requests, match=(), duration='30m', timeout='2h', client_config=''):"
        " the targets of the fixture 'claim', such as {'dut': 'board', 'peer': 'can-node'}",
    )


@pytest.fixture
def claim(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The targets that the marker ``claim`` asks for, connected, by the names of the requests."""
    marker = request.node.get_closest_marker("claim")
    if marker is None:
        pytest.fail("say what to claim: @pytest.mark.claim({'dut': 'board'})", pytrace=False)
    from bullpen.client.claimed_targets import claimed

    with claimed(*marker.args, **marker.kwargs) as targets:
        yield targets
