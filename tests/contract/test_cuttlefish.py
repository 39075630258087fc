"""Cuttlefish devices: the stories on our stand-in, and a fault run in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bullpen.core.targets.backends import Machine, MachineState, client_token
from bullpen.drivers.cuttlefish import Cuttlefish as Driver
from bullpen.drivers.json_api import ApiError
from bullpen.errors import Refused, Unreachable
from bullpen.kit.clock import VirtualClock
from bullpen.kit.ids import RandomIds
from bullpen.provisioners.base import Profile
from bullpen.provisioners.cuttlefish.plugin import provider
from bullpen.provisioners.cuttlefish.provider import NAME, CuttlefishProvider
from bullpen.provisioners.provider import Backend, Order
from bullpen.testing.benches import AttendedBench, attended_bench
from bullpen.testing.cuttlefish_stand_in import DEVICES_MAX, stand_in
from bullpen.testing.fake_cuttlefish import NEVER_BOOTS, Cuttlefish
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.attended_world import AttendedWorld, fault_run, killed_everywhere

ROUNDS = 1000
PARAMETERS: dict[str, Any] = {
    "envConfig": {"instances": [{"vm": {"cpus": 2}}], "netsim_bt": False},
    "hourlyCost": "0.25",
}
EXPIRES = datetime(2100, 1, 1, tzinfo=UTC)
Key = tuple[str, str]


def adb_ports() -> int:
    """The first of as many ports in a row as the stand-in takes."""
    while True:
        first = random.randint(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for place in range(DEVICES_MAX):
                stack.enter_context(socket.create_server(("127.0.0.1", first + place)))
            return first


def backend_at(url: str) -> Backend:
    return Backend(key=("lab", "android"), lab="a-lab.1", endpoint=url)


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestCuttlefish(ProvisionerContract):
    parameters: ClassVar[Mapping[str, object]] = PARAMETERS

    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[AttendedBench]:
        async with (
            stand_in(adb_port=adb_ports()) as (_, url),
            attended_bench(directory, provider=provider(), backend=backend_at(url)) as bench,
        ):
            yield bench


class Host:
    """The provider, the stand-in, and one backend."""

    def __init__(self, cloud: Cuttlefish, url: str) -> None:
        self.cloud = cloud
        self.provider = provider()
        self.backend = backend_at(url)

    def order(self, name: str = "a", uid: str = "uid-1", **parameters: Any) -> Order:
        profile = Profile(provisioner=NAME, parameters={**PARAMETERS, **parameters})
        key = ("lab", name)
        token = client_token(self.backend.lab, key, uid)
        return Order(key=key, owner_uid=uid, token=token, profile=profile, expires=EXPIRES)

    async def create(self, *args: str, **parameters: Any) -> Machine:
        return await self.provider.create(self.backend, self.order(*args, **parameters))

    async def listed(self) -> tuple[Machine, ...]:
        return (await self.provider.list_machines(self.backend)).machines

    @contextlib.asynccontextmanager
    async def driver(
        self, made: Machine, place: Path, *, reused: bool = False
    ) -> AsyncIterator[Any]:
        """The driver of a device, with what it was granted, for one lease."""
        (place / "granted").mkdir(exist_ok=True)
        for name, content in (await self.provider.grant(self.backend, made)).items():
            (place / "granted" / name).write_bytes(content)
        group, device = made.id.split("/")
        granted = str(place / "granted" / "cuttlefish.json")
        make: Any = Driver
        driver = make(group=group, device=device, reused=reused, granted=granted)
        try:
            yield driver
        finally:
            await asyncio.to_thread(driver.close)


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    async with stand_in(adb_port=adb_ports()) as (cloud, url):
        yield Host(cloud, url)


async def test_a_device_is_found_by_its_group_and_runs_once_it_is_on(host: Host) -> None:
    host.cloud.faults.boot_seconds = 3600
    made = await host.create("phone.1-a")
    assert (made.state, made.detail) == (MachineState.STARTING, "cvd says: Starting")
    host.cloud.faults.boot_seconds = 0
    (found,) = await host.listed()
    assert (found.id, found.key, found.owner_uid) == (made.id, ("lab", "phone.1-a"), "uid-1")
    assert (found.state, found.hourly_cost) == (MachineState.RUNNING, 0.25)
    assert found.address == f"127.0.0.1:{host.cloud.first_port}"
    assert found.expires is None, "it does not end by itself, and nothing pretends that it does"
    assert found.created == made.created


async def test_a_repeated_creation_creates_nothing(host: Host) -> None:
    """Also when the first one is carried out after the second was asked for."""
    host.cloud.faults.listed_after = 1
    both = await asyncio.gather(host.create(), host.create())
    assert both[0] == both[1]
    assert host.cloud.made == 1
    again = replace(host.order(), expires=EXPIRES.replace(year=2101))
    assert await host.provider.create(host.backend, again) == both[0]
    other = await host.create("a", "uid-2")
    assert other.id != both[0].id
    assert host.cloud.made == 2


async def test_devices_of_other_labs_and_of_people_are_not_listed(host: Host) -> None:
    await host.create()
    other = replace(host.backend, lab="another")
    assert (await host.provider.list_machines(other)).machines == ()
    (device,) = host.cloud.devices.values()
    device.group = "cvd_1"
    assert await host.listed() == ()


async def test_a_device_that_does_not_boot_is_failed(host: Host) -> None:
    broken = {"instances": [{"disk": {"default_build": NEVER_BOOTS}}]}
    await host.create(envConfig=broken)
    (found,) = await host.listed()
    assert (found.state, found.detail) == (MachineState.FAILED, "cvd says: Boot Failed")


async def test_a_deletion_that_fails_after_it_was_accepted_is_known(host: Host) -> None:
    made = await host.create()
    host.cloud.removals_fail = True
    with pytest.raises(Unreachable, match=r"still contains active instances; .*cvd reset"):
        await host.provider.delete(host.backend, made)
    assert len(await host.listed()) == 1
    host.cloud.removals_fail = False
    await host.provider.delete(host.backend, made)
    await host.provider.delete(host.backend, made)
    assert await host.listed() == ()


@pytest.mark.parametrize("url", ["http://192.0.2.1:2080", "https://127.0.0.1:2080", "", "http://x"])
async def test_an_orchestrator_that_others_can_reach_is_refused(host: Host, url: str) -> None:
    with pytest.raises(Refused, match="ProviderConfig android: endpoint must be http:// and a loo"):
        await host.provider.list_machines(replace(host.backend, endpoint=url))


async def test_an_orchestrator_that_does_not_answer_is_unreachable(host: Host) -> None:
    silent = replace(host.backend, endpoint="http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        await host.provider.list_machines(silent)


async def test_a_lessee_uses_the_shell_and_switches_the_device(host: Host, tmp_path: Path) -> None:
    made, other = await host.create(), await host.create("b", "uid-2")
    (found, _) = sorted(await host.listed(), key=lambda each: each.owner_uid)
    async with host.driver(found, tmp_path) as driver:
        assert "device" in (await driver.adb.list_devices()).split()
        async with driver.children["console"].connect() as console:
            await console.send(b"echo mine > kept\n")
            await console.send(b"cat kept\n")
            await until(console, "\r\nmine")
        power = driver.children["power"]
        await power.off()
        assert [reading.voltage async for reading in power.read()] == [0.0]
        (off, on) = sorted(await host.listed(), key=lambda each: each.owner_uid)
        assert (off.state, off.detail) == (MachineState.STARTING, "cvd says: Stopped")
        assert (on.id, on.state) == (other.id, MachineState.RUNNING)
        await power.on()
        assert [reading.voltage async for reading in power.read()] == [5.0]
        async with driver.children["console"].connect() as console:
            await console.send(b"cat kept\n")
            await until(console, "\r\nmine")
    assert {call for call in host.cloud.calls if call.startswith("POST /cvds/")} == {
        f"POST /cvds/{made.id}/:stop",
        f"POST /cvds/{made.id}/:start",
    }


async def until(console: Any, text: str) -> str:
    said = ""
    async with asyncio.timeout(30):
        while text not in said:
            said += (await console.receive()).decode()
    return said


async def test_a_device_that_is_used_again_is_reset_after_a_lease_that_has_used_it(
    host: Host, tmp_path: Path
) -> None:
    profile = Profile(provisioner=NAME, parameters=PARAMETERS, single_use=False)
    made = await host.create()
    exported: Any = host.provider.export(profile, made, {})
    assert exported["target"]["config"]["reused"] is True
    (found,) = await host.listed()
    async with (
        host.driver(found, tmp_path, reused=True) as first,
        first.children["console"].connect() as console,
    ):
        await console.send(b"echo a secret > kept\n")
        await until(console, "$ ")
    (device,) = host.cloud.devices.values()
    assert device.resets == 1
    async with (
        host.driver(found, tmp_path, reused=True) as second,
        second.children["console"].connect() as console,
    ):
        await console.send(b"cat kept\n")
        await until(console, "not found")
    async with host.driver(found, tmp_path, reused=True):
        pass
    assert device.resets == 2, "nothing is reset that nobody has used"


async def test_a_reset_that_failed_is_told_to_the_next_lessee_and_never_used_again(
    host: Host, tmp_path: Path
) -> None:
    await host.create()
    (found,) = await host.listed()
    async with host.driver(found, tmp_path, reused=True) as driver:
        await driver.children["power"].on()
    host.cloud.operations.clear()  # the orchestrator was started again
    lease = host.driver(found, tmp_path, reused=True)
    driver = await lease.__aenter__()
    with pytest.raises(RuntimeError, match="did not do it: HTTP 404: Operation not found"):
        await driver.children["power"].off()
    with pytest.raises(RuntimeError, match="was not reset after the lease before"):
        await lease.__aexit__(None, None, None)


async def test_a_device_that_was_left_off_is_not_used_again(host: Host, tmp_path: Path) -> None:
    await host.create()
    (found,) = await host.listed()
    with pytest.raises(RuntimeError, match="a device that is off cannot be reset"):
        async with host.driver(found, tmp_path, reused=True) as driver:
            await driver.children["power"].off()
    (device,) = host.cloud.devices.values()
    assert device.resets == 0


class FakeHosts:
    """The hosts of a world, each a stand-in in virtual time."""

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self.accounts: dict[Key, Cuttlefish] = {}
        self.pause: Callable[[], Awaitable[None]] = _nothing
        self._clock = clock
        self._chance = chance

    @property
    def made(self) -> int:
        return sum(account.made for account in self.accounts.values())

    def account(self, key: Key) -> Cuttlefish:
        if key not in self.accounts:
            self.accounts[key] = Cuttlefish(self._clock, lambda chance: self.happens(chance))
        return self.accounts[key]

    def held(self) -> list[tuple[Key, str]]:
        """Key and uid of every device."""
        names = [
            device.group.replace("_d", "-").split("__")[2:]
            for account in self.accounts.values()
            for device in account.machines
        ]
        return sorted(((namespace, name), uid) for namespace, name, uid in names)

    def connect(self, backend: Backend) -> FakeCalls:
        return FakeCalls(self, self.account(backend.key))

    def happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance


async def _nothing() -> None:
    await asyncio.sleep(0)


class FakeCalls:
    def __init__(self, world: FakeHosts, account: Cuttlefish) -> None:
        self._world = world
        self._account = account

    async def call(self, method: str, path: str, *, body: Mapping[str, Any] | None = None) -> Any:
        await self._world.pause()
        if self._account.faults.silent:
            raise ApiError(0, "no answer")
        made = self._account.answer(method, path, body)
        await self._world.pause()
        if made.status >= 400:
            raise ApiError(made.status, made.body["details"])
        if self._world.happens(self._account.faults.answer_lost):
            raise ApiError(0, "the answer was lost")
        return made.body


class CuttlefishWorld(AttendedWorld):
    parameters: ClassVar[Mapping[str, object]] = PARAMETERS

    def __init__(self, seed: int, chance: random.Random) -> None:
        super().__init__(seed)
        self.fake = FakeHosts(self.clock, chance)
        self.fake.pause = self.pause
        self.begin(self.fake, CuttlefishProvider(self.fake.connect, RandomIds(chance)))
        self.backends = {
            key: replace(backend, endpoint="http://127.0.0.1:2080")
            for key, backend in self.backends.items()
        }
        self.restarted()


def test_killed_at_every_await_of_create_and_delete_nothing_is_left_or_doubled() -> None:
    assert killed_everywhere(lambda: CuttlefishWorld(1, random.Random(1))) > 30


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_rounds_of_faults_and_kills_leave_nothing_unowned_or_doubled() -> None:
    kills, created = fault_run(CuttlefishWorld, rounds=ROUNDS)
    assert kills > ROUNDS / 2
    assert created > ROUNDS
