"""Devices of Corellium: the stories on our stand-in, and a fault run in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bullpen.core.targets.backends import Machine, MachineState, client_token
from bullpen.drivers.corellium import NO_SESSION
from bullpen.drivers.corellium import Corellium as Driver
from bullpen.drivers.json_api import ApiError
from bullpen.errors import NoCapacity, Refused, TooManyRequests, Unreachable
from bullpen.kit.clock import VirtualClock
from bullpen.provisioners.base import Profile
from bullpen.provisioners.corellium.plugin import provider
from bullpen.provisioners.corellium.provider import NAME, CorelliumProvider
from bullpen.provisioners.provider import Backend, Order
from bullpen.testing.benches import AttendedBench, attended_bench
from bullpen.testing.corellium_stand_in import stand_in
from bullpen.testing.fake_corellium import API_TOKEN, CONSOLE, PROJECT, Corellium
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.attended_world import AttendedWorld, fault_run, killed_everywhere

ROUNDS = 1000
DEVICE: dict[str, Any] = {"flavor": "kronos", "os": "1.1.1"}
PARAMETERS: dict[str, Any] = {"device": DEVICE, "hourlyCost": "0.50"}
EXPIRES = datetime(2100, 1, 1, tzinfo=UTC)
Key = tuple[str, str]


def backend_at(url: str, **settings: Any) -> Backend:
    return Backend(
        key=("lab", "phones"),
        lab="bench",
        endpoint=url,
        parameters={"projectId": PROJECT},
        credentials=lambda: {"token": f"{API_TOKEN}\n".encode()},
        **settings,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
class TestCorellium(ProvisionerContract):
    parameters: ClassVar[Mapping[str, object]] = PARAMETERS

    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[AttendedBench]:
        async with (
            stand_in() as (corellium, url),
            attended_bench(directory, provider=provider(), backend=backend_at(url)) as bench,
        ):
            corellium.quotas["cores"] = 1000
            yield bench


class Account:
    """The provider, the stand-in, and one project."""

    def __init__(self, cloud: Corellium, url: str) -> None:
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

    async def driver(self, made: Machine, place: Path, console: str = "") -> Driver:
        """The driver of an instance, with what it was granted."""
        for name, content in (await self.provider.grant(self.backend, made)).items():
            (place / name).write_bytes(content)
        return Driver(  # type: ignore[abstract]
            instance=made.id, console_name=console, granted=str(place / "corellium.json")
        )


@pytest.fixture
async def account() -> AsyncIterator[Account]:
    async with stand_in() as (cloud, url):
        yield Account(cloud, url)


async def test_an_instance_is_found_by_its_name_and_runs_once_it_is_on(account: Account) -> None:
    account.cloud.faults.boot_seconds = 3600
    made = await account.create()
    assert (made.state, made.detail) == (MachineState.STARTING, "it is creating")
    account.cloud.faults.boot_seconds = 0
    (found,) = await account.listed()
    assert (found.id, found.key, found.owner_uid) == (made.id, ("lab", "a"), "uid-1")
    assert (found.state, found.hourly_cost) == (MachineState.RUNNING, 0.5)
    assert found.expires is None, "it does not end by itself, and nothing pretends that it does"


async def test_a_creation_whose_answer_was_lost_is_found_again(account: Account) -> None:
    account.cloud.faults.boot_seconds = 3600
    await account.create("first", "uid-0")
    account.cloud.lost = "POST /instances"
    with pytest.raises(Unreachable):
        await account.create()
    made = await account.create()
    assert await account.create() == made
    assert account.cloud.made == 2
    await account.create("b", "uid-2")
    assert account.cloud.made == 3


async def test_another_exporter_of_the_same_name_gets_an_instance_of_its_own(
    account: Account,
) -> None:
    first, second = await account.create("a", "uid-1"), await account.create("a", "uid-2")
    assert first.id != second.id
    await account.provider.delete(account.backend, first)
    assert await account.create("a", "uid-2") == second


async def test_the_quota_is_looked_at_before_anything_is_created(account: Account) -> None:
    account.cloud.quotas["cores"] = 6
    await account.create()
    with pytest.raises(NoCapacity, match="4 of the 6 cores of its quota are used"):
        await account.create("b", "uid-2")
    await account.create("c", "uid-3", device={**DEVICE, "flavor": "iphone6"})
    account.cloud.quotas["cores"] = 100
    account.cloud.faults.quota = 2
    with pytest.raises(NoCapacity, match="2 of the 2 instances"):
        await account.create("d", "uid-4")
    found = await account.provider.list_machines(account.backend)
    assert found.quota is not None
    assert (found.quota.instances, found.quota.used) == (2, 2)
    assert account.cloud.calls.count("POST /instances") == 2


async def test_nothing_is_asked_while_corellium_has_asked_to_wait(account: Account) -> None:
    """Also by calls for other instances: there is one limiter for each backend."""
    made = await account.create()
    account.cloud.retry_after = 3600
    account.cloud.faults.throttled = 1
    with pytest.raises(TooManyRequests, match="HTTP 429"):
        await account.listed()
    account.cloud.faults.throttled = 0
    asked = len(account.cloud.calls)
    for call in (
        account.listed(),
        account.create("b", "uid-2"),
        account.provider.delete(account.backend, made),
        account.provider.grant(account.backend, made),
    ):
        with pytest.raises(TooManyRequests, match="asked to wait for another"):
            await call
    assert len(account.cloud.calls) == asked
    other = replace(account.backend, key=("lab", "others"))
    assert len((await account.provider.list_machines(other)).machines) == 1


async def test_a_name_that_corellium_does_not_keep_is_an_error_and_leaves_nothing(
    account: Account,
) -> None:
    """Its instance would cost money, and nobody would find it again."""
    account.cloud.shortens_names_to = 20
    with pytest.raises(Refused, match="has changed the name"):
        await account.create()
    assert account.cloud.machines == []


async def test_instances_of_other_labs_and_of_people_are_not_listed(account: Account) -> None:
    await account.create()
    other = replace(account.backend, lab="another")
    assert (await account.provider.list_machines(other)).machines == ()
    for device in account.cloud.machines:
        device.name = "bullpen:bench:of a person"
    assert await account.listed() == ()


async def test_what_an_operator_must_mend_is_named(account: Account) -> None:
    with pytest.raises(Refused, match="no device of flavor 'nokia'"):
        await account.create(device={**DEVICE, "flavor": "nokia"})
    without = replace(account.backend, credentials=dict)
    with pytest.raises(Refused, match="ProviderConfig phones: its Secret has no key 'token'"):
        await account.provider.list_machines(without)
    wrong = replace(account.backend, credentials=lambda: {"token": b"wrong"})
    with pytest.raises(Refused, match="Invalid or missing authorization token") as refused:
        await account.provider.list_machines(wrong)
    assert "wrong" not in str(refused.value)
    nowhere = replace(account.backend, parameters={})
    with pytest.raises(Refused, match=r"parameters\.projectId: Required"):
        await account.provider.list_machines(nowhere)
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        await account.provider.list_machines(
            replace(account.backend, endpoint="http://127.0.0.1:9")
        )


async def test_an_absent_instance_is_deleted_with_success(account: Account) -> None:
    made = await account.create()
    await account.provider.delete(account.backend, replace(made, id="absent"))
    assert len(await account.listed()) == 1


async def test_a_lessee_switches_the_device_and_talks_to_its_console(
    account: Account, tmp_path: Path
) -> None:
    made = await account.create()
    driver = await account.driver(made, tmp_path, CONSOLE)
    async with opened(driver) as console:
        assert await until(console, "$ ") == f"stand-in for the device {made.id}\r\n$ "
        await console.send(b"hello\r")
        assert "you said: hello" in await until(console, "$ ")
    power: Any = driver.children["power"]
    await power.off()
    assert account.cloud.is_on(made.id) is False
    assert [reading.voltage async for reading in power.read()] == [0.0]
    (found,) = await account.listed()
    assert found.state is MachineState.STARTING, "it is there, so its lease goes on"
    with pytest.raises(RuntimeError, match="the console cannot be connected to: 404"):
        async with opened(driver):
            pass
    await power.on()
    assert account.cloud.is_on(made.id)
    missing = await account.driver(made, tmp_path, "uart-7")
    with pytest.raises(ValueError, match=f"no console 'uart-7'; available: {CONSOLE}"):
        await missing.console_url()


def opened(driver: Driver) -> Any:
    console: Any = driver.children["console"]
    return console.connect()


async def until(console: Any, text: str) -> str:
    said = ""
    async with asyncio.timeout(30):
        while text not in said:
            said += (await console.receive()).decode()
    return said


async def test_what_an_exporter_is_granted_is_good_for_its_own_instance_only(
    account: Account,
) -> None:
    made, other = await account.create(), await account.create("b", "uid-2")
    ((name, content),) = (await account.provider.grant(account.backend, made)).items()
    assert API_TOKEN not in content.decode()
    session = json.loads(content)["session"]
    mine = replace(account.backend, credentials=lambda: {"token": session.encode()})
    for call in (
        account.provider.list_machines(mine),
        account.provider.delete(mine, made),
        account.provider.grant(mine, other),
    ):
        with pytest.raises(Refused, match="may not do this"):
            await call
    assert name == "corellium.json"
    assert account.cloud.sessions[session].expires - datetime.now(UTC) < timedelta(hours=2)


async def test_an_account_without_sessions_hands_out_consoles_and_no_power(
    account: Account, tmp_path: Path
) -> None:
    account.cloud.has_sessions = False
    made = await account.create()
    for console in ("", CONSOLE):
        driver = await account.driver(made, tmp_path, console)
        async with opened(driver) as stream:
            assert made.id in await until(stream, "$ ")
    power: Any = driver.children["power"]
    with pytest.raises(RuntimeError, match=NO_SESSION[:40]):
        await power.off()
    assert account.cloud.is_on(made.id)


async def test_a_device_that_is_used_again_is_restored_after_a_lease_that_has_used_it(
    account: Account, tmp_path: Path
) -> None:
    profile = Profile(provisioner=NAME, parameters=PARAMETERS, single_use=False)
    made = await account.provider.create(account.backend, replace(account.order(), profile=profile))
    (found,) = await account.listed()
    assert (found.state, found.detail) == (MachineState.STARTING, "its snapshot is being taken")
    for _ in range(2):
        (found,) = await account.listed()
        assert found.state is MachineState.RUNNING
    asked = [call for call in account.cloud.calls if call.endswith("/snapshots")]
    assert len(asked) == 3, "known ones are not asked for again"
    exported: Any = account.provider.export(profile, found, {})
    snapshot = exported["target"]["config"]["snapshot"]

    async def lease() -> Driver:
        driver = await account.driver(made, tmp_path)
        driver.snapshot = snapshot
        return driver

    first = await lease()
    async with opened(first) as console:
        await console.send(b"a secret\r")
        await until(console, "you said: a secret")
    account.cloud.restore_seconds = 1
    for _ in range(2):
        await asyncio.to_thread(first.close)
    assert account.cloud.calls.count(account.cloud.calls[-1]) == 1, "restored once"
    async with opened(await lease()) as console:
        await console.send(b"history\r")
        assert "you said: \r" in await until(console, "you said")
    unused = await lease()
    asked_before = len(account.cloud.calls)
    await asyncio.to_thread(unused.close)
    assert len(account.cloud.calls) == asked_before, "nothing is restored that nobody has used"


async def test_a_device_that_cannot_be_restored_is_not_used_again(
    account: Account, tmp_path: Path
) -> None:
    made = await account.create()
    driver = await account.driver(made, tmp_path)
    driver.snapshot = "bullpen"
    power: Any = driver.children["power"]
    await power.on()
    with pytest.raises(RuntimeError, match="has no snapshot 'bullpen'"):
        await asyncio.to_thread(driver.close)
    account.cloud.has_sessions = False
    driver = await account.driver(made, tmp_path)
    driver.snapshot = "bullpen"
    async with opened(driver):
        pass
    with pytest.raises(RuntimeError, match="without a session"):
        await asyncio.to_thread(driver.close)


class FakeCorellium:
    """The accounts of a world, each a stand-in in virtual time."""

    def __init__(self, clock: VirtualClock, chance: random.Random) -> None:
        self.accounts: dict[Key, Corellium] = {}
        self.pause: Callable[[], Awaitable[None]] = _nothing
        self._clock = clock
        self._chance = chance
        self._ids = 0

    @property
    def made(self) -> int:
        return sum(account.made for account in self.accounts.values())

    def account(self, key: Key) -> Corellium:
        if key not in self.accounts:
            self.accounts[key] = Corellium(
                self._clock, new_id=self._new_id, happens=lambda chance: self.happens(chance)
            )
            self.accounts[key].quotas["cores"] = 1000
        return self.accounts[key]

    def held(self) -> list[tuple[Key, str]]:
        """Key and uid of every instance that is not being deleted."""
        names = [
            device.name.split(":")[:4]
            for account in self.accounts.values()
            for device in account.machines
            if device.deleted is None
        ]
        return sorted(((key.split("/")[0], key.split("/")[1]), uid) for _, _, key, uid in names)

    def connect(self, backend: Backend) -> FakeCalls:
        return FakeCalls(self, self.account(backend.key))

    def happens(self, chance: float) -> bool:
        return chance > 0 and self._chance.random() < chance

    def _new_id(self) -> str:
        self._ids += 1
        return f"device-{self._ids}"


async def _nothing() -> None:
    await asyncio.sleep(0)


class FakeCalls:
    def __init__(self, world: FakeCorellium, account: Corellium) -> None:
        self._world = world
        self._account = account

    async def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Any:
        await self._world.pause()
        if self._account.faults.silent:
            raise ApiError(0, "no answer")
        made = self._account.answer(
            method, path, token=f"Bearer {API_TOKEN}", query=query, body=body
        )
        await self._world.pause()
        if made.status >= 400:
            after = made.headers.get("Retry-After")
            said = made.body["error"]
            raise ApiError(made.status, said, retry_after=float(after) if after else None)
        if self._world.happens(self._account.faults.answer_lost):
            raise ApiError(0, "the answer was lost")
        return made.body


class CorelliumWorld(AttendedWorld):
    parameters: ClassVar[Mapping[str, object]] = PARAMETERS
    account_parameters: ClassVar[Mapping[str, object]] = {"projectId": PROJECT}

    def __init__(self, seed: int, chance: random.Random) -> None:
        super().__init__(seed)
        self.fake = FakeCorellium(self.clock, chance)
        self.fake.pause = self.pause
        self.begin(self.fake, CorelliumProvider(self.fake.connect))
        self.restarted()


def test_killed_at_every_await_of_create_and_delete_nothing_is_left_or_doubled() -> None:
    assert killed_everywhere(lambda: CorelliumWorld(1, random.Random(1))) > 30


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_rounds_of_faults_and_kills_leave_nothing_unowned_or_doubled() -> None:
    kills, created = fault_run(CorelliumWorld, rounds=ROUNDS)
    assert kills > ROUNDS / 2
    assert created > ROUNDS
