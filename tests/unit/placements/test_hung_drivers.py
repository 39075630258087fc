"""A driver that hangs after a lease holds up neither its exporter nor the next lessee."""

from __future__ import annotations

import threading

import pytest
from jumpstarter.exporter.hooks import HookExecutionError

from bullpen.placements.local import exporter
from bullpen.placements.local.exporter import Recycler


class Device:
    def __init__(self, error: Exception | None = None, *, hangs: bool = False) -> None:
        self._error, self._hangs = error, hangs
        self.goes_on = threading.Event()

    def close(self) -> None:
        if self._hangs:
            self.goes_on.wait(60)
        if self._error is not None:
            raise self._error


async def test_a_driver_that_closes_is_closed() -> None:
    assert await exporter.closed(Device())


async def test_a_driver_that_fails_to_close_says_why() -> None:
    with pytest.raises(OSError, match="unplugged"):
        await exporter.closed(Device(OSError("unplugged")))


async def test_a_driver_that_hangs_is_given_up() -> None:
    device = Device(hangs=True)
    assert not await exporter.closed(device, seconds=0.05)
    threads = [found for found in threading.enumerate() if found.name == "close-drivers"]
    assert threads
    assert all(found.daemon for found in threads), "it does not keep the process from ending"
    device.goes_on.set()


async def test_the_exporter_of_a_driver_that_fails_to_close_ends_and_says_why() -> None:
    """Jumpstarter would offer its target to the next lessee."""
    recycler = Recycler(None, token="t")
    with pytest.raises(HookExecutionError) as raised:
        await recycler._reset(Device(RuntimeError("it cannot be restored")))
    assert raised.value.on_failure == "exit"
    assert recycler.problem == "its drivers did not close: RuntimeError: it cannot be restored"


async def test_the_exporter_of_a_driver_that_hangs_ends_and_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def given_up(device: object) -> bool:
        return False

    monkeypatch.setattr(exporter, "closed", given_up)
    recycler = Recycler(None, token="t")
    with pytest.raises(HookExecutionError) as raised:
        await recycler._reset(Device())
    assert raised.value.on_failure == "exit"
    assert "its drivers did not close within 30 s" in recycler.problem
