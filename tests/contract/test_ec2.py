"""Instances of EC2: the stories on moto behind our stand-in, and a fault run in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import random
import shlex
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest
from jumpstarter_driver_network.driver import TcpNetwork

from bullpen.core.targets.backends import Machine, MachineState, client_token
from bullpen.drivers import ec2 as drivers_ec2
from bullpen.drivers.ssh import Ssh
from bullpen.errors import LabError, NoCapacity, Refused, TooManyRequests, Unreachable
from bullpen.kit.clock import SystemClock
from bullpen.provisioners.base import Profile
from bullpen.provisioners.ec2.api import BotocoreApis
from bullpen.provisioners.ec2.machines import MARKED, SshServer
from bullpen.provisioners.ec2.parameters import Ec2Account
from bullpen.provisioners.ec2.plugin import provider
from bullpen.provisioners.ec2.provider import NAME, Ec2Provider
from bullpen.provisioners.provider import Backend, Order
from bullpen.testing.benches import AttendedBench, attended_bench
from bullpen.testing.ec2_stand_in import SSH_PORT, Ec2StandIn, stand_in
from bullpen.testing.provisioner_contract import ProvisionerContract
from support.attended_world import AttendedWorld, fault_run, killed_everywhere
from support.fake_ec2 import FakeEc2
from support.ssh_hosts import has_sshd

ROUNDS = 1000
IMAGE = "ami-1e749f67"
"""One of those that moto has."""

PARAMETERS: dict[str, Any] = {
    "imageId": IMAGE,
    "instanceTypes": ["t3.small"],
    "ssh": {"user": getpass.getuser(), "port": SSH_PORT},
    "hourlyCost": "0.0208",
}
ROLE = {"arn": "arn:aws:iam::123456789012:role/bullpen", "externalId": "lab-1"}
EXPIRES = datetime(2100, 1, 1, tzinfo=UTC)

needs_sshd = pytest.mark.skipif(not has_sshd(), reason="openssh-server is not installed")


def backend_at(url: str, **settings: Any) -> Backend:
    return Backend(
        key=("lab", ""),
        lab="bench",
        endpoint=url,
        parameters={"region": "eu-central-1"},
        credentials=lambda: {"aws_access_key_id": b"key", "aws_secret_access_key": b"secret"},
        **settings,
    )


@pytest.mark.slow
@pytest.mark.timeout(180)
@needs_sshd
class TestEc2(ProvisionerContract):
    parameters: ClassVar[Mapping[str, object]] = PARAMETERS

    @contextlib.asynccontextmanager
    async def bench(self, directory: Path) -> AsyncIterator[AttendedBench]:
        async with (
            stand_in(directory / "machines") as (_, url),
            attended_bench(directory, provider=provider(), backend=backend_at(url)) as bench,
        ):
            yield bench


class Ec2:
    """The provider, the stand-in, and one account."""

    def __init__(self, cloud: Ec2StandIn, url: str) -> None:
        self.cloud = cloud
        self.provider = provider()
        self.backend = backend_at(url)
        self.keys = self.provider.new_keys()

    def order(
        self, name: str = "a", uid: str = "uid-1", *, lasting: bool = False, **parameters: Any
    ) -> Order:
        given = {**PARAMETERS, **parameters}
        profile = Profile(
            provisioner=NAME, parameters=given, single_use=not lasting, lasting=lasting
        )
        key = ("lab", name)
        token = client_token(self.backend.lab, key, uid)
        return Order(
            key=key, owner_uid=uid, token=token, profile=profile, expires=EXPIRES, keys=self.keys
        )

    async def create(self, *args: Any, **parameters: Any) -> Machine:
        return await self.provider.create(self.backend, self.order(*args, **parameters))

    async def listed(self) -> tuple[Machine, ...]:
        return (await self.provider.list_machines(self.backend)).machines

    async def running(self) -> Machine:
        return await self.until(MachineState.RUNNING)

    async def until(self, state: MachineState) -> Machine:
        async with asyncio.timeout(30):
            while True:
                (found,) = await self.listed()
                if found.state is state:
                    return found


@pytest.fixture
async def ec2(tmp_path: Path) -> AsyncIterator[Ec2]:
    async with stand_in(tmp_path / "machines") as (cloud, url):
        yield Ec2(cloud, url)


pytestmark = needs_sshd


async def test_an_instance_runs_once_its_ssh_server_answers(ec2: Ec2) -> None:
    made = await ec2.create()
    assert made.state is MachineState.STARTING
    found = await ec2.running()
    assert (found.id, found.key, found.owner_uid) == (made.id, ("lab", "a"), "uid-1")
    assert found.address.startswith("127.77.")
    assert found.hourly_cost == 0.0208
    assert found.expires == found.created + timedelta(hours=2), "it ends by itself"


async def test_only_the_machine_with_its_own_host_key_is_logged_in_to(
    ec2: Ec2, tmp_path: Path
) -> None:
    await ec2.create()
    found = await ec2.running()
    identity = tmp_path / "identity"
    identity.touch(mode=0o600)
    identity.write_bytes(ec2.keys["login"])

    async def login(host_key: bytes) -> tuple[int | None, bytes, bytes]:
        tcp = TcpNetwork(host=found.address, port=SSH_PORT)  # type: ignore[abstract]
        driver = Ssh(children={"tcp": tcp}, host_key=host_key.decode())
        process = await asyncio.create_subprocess_exec(
            *shlex.split(driver.get_ssh_command()),
            *("-i", str(identity), "-p", str(SSH_PORT), found.address, "echo $EC2_INSTANCE"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        said, problem = await process.communicate()
        return process.returncode, said, problem

    assert await login(ec2.keys["host.pub"]) == (0, f"{found.id}\n".encode(), b"")
    code, _, problem = await login(ec2.keys["login.pub"])
    assert code != 0
    assert b"Host key verification failed" in problem


async def test_a_repeated_creation_finds_the_instance_and_so_does_one_whose_answer_was_lost(
    ec2: Ec2,
) -> None:
    await ec2.create("first", "uid-0")
    ec2.cloud.faults.answers_lost = 1
    with pytest.raises(Unreachable):
        await ec2.create()
    made = await ec2.create()
    assert await ec2.create() == made
    assert len(await ec2.listed()) == 2


async def test_an_ended_instance_is_gone_and_its_exporter_can_have_another(ec2: Ec2) -> None:
    """EC2 answers with the ended instance as long as it knows its token."""
    first = await ec2.create()
    await ec2.provider.delete(ec2.backend, first)
    found = await ec2.provider.list_machines(ec2.backend)
    assert found.machines == ()
    assert found.gone == frozenset({first.id})
    second = await ec2.create()
    assert second.id != first.id
    assert [machine.id for machine in await ec2.listed()] == [second.id]


async def test_an_absent_instance_is_deleted_with_success(ec2: Ec2) -> None:
    made = await ec2.create()
    absent = Machine(
        id="i-0123456789abcdef0",
        key=made.key,
        owner_uid="uid-1",
        state=MachineState.RUNNING,
        created=made.created,
    )
    await ec2.provider.delete(ec2.backend, absent)
    assert len(await ec2.listed()) == 1


async def test_a_renewed_instance_has_its_end_in_a_tag(ec2: Ec2) -> None:
    made = await ec2.create()
    await ec2.provider.renew(ec2.backend, made, EXPIRES)
    (found,) = await ec2.listed()
    assert found.expires == EXPIRES


async def test_a_lasting_instance_is_stopped_and_started_with_its_disks(ec2: Ec2) -> None:
    made = await ec2.create(lasting=True)
    assert made.lasting
    first = await ec2.running()
    for _ in range(2):
        await ec2.provider.stop(ec2.backend, first)
    stopped = await ec2.until(MachineState.STOPPED)
    assert (stopped.id, stopped.hourly_cost, stopped.address) == (made.id, 0.0, "")
    for _ in range(2):
        await ec2.provider.start(ec2.backend, stopped)
    again = await ec2.running()
    assert (again.id, again.created) == (made.id, made.created)
    assert again.address not in ("", first.address), "it has another address"

    await ec2.provider.stop(ec2.backend, again)
    await ec2.provider.delete(ec2.backend, again)
    assert await ec2.listed() == ()
    await ec2.provider.stop(ec2.backend, again)


async def test_an_instance_that_may_hibernate_is_asked_to(ec2: Ec2) -> None:
    await ec2.create(lasting=True, hibernate=True, rootVolume={"encrypted": True})
    found = await ec2.running()
    await ec2.provider.stop(ec2.backend, found)
    await ec2.until(MachineState.STOPPED)
    assert ec2.cloud.hibernated == [found.id]

    await ec2.provider.start(ec2.backend, found)
    again = await ec2.running()
    ec2.cloud.faults.not_hibernating = True
    await ec2.provider.stop(ec2.backend, again)
    await ec2.until(MachineState.STOPPED)
    assert ec2.cloud.hibernated == [found.id], "it was stopped instead"


async def test_a_spot_instance_that_aws_is_about_to_end_says_so(ec2: Ec2) -> None:
    await ec2.create(market="spot")
    found = await ec2.running()
    assert found.notice == ""
    ec2.cloud.faults.interrupted = {found.id}
    (found,) = await ec2.listed()
    assert (found.state, found.notice) == (MachineState.RUNNING, MARKED)
    asked = ec2.cloud.calls.count("DescribeSpotInstanceRequests")

    await ec2.provider.delete(ec2.backend, found)
    await ec2.create("b")
    assert len(await ec2.listed()) == 1
    assert ec2.cloud.calls.count("DescribeSpotInstanceRequests") == asked, "only for spot"


async def test_spot_instances_are_refused_for_lasting_targets(ec2: Ec2) -> None:
    with pytest.raises(Refused, match="market: onDemand"):
        await ec2.create(lasting=True, market="spot")
    assert await ec2.listed() == ()


async def test_a_lessee_switches_the_instance_and_reads_its_console(
    ec2: Ec2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a session of its own: neither the credentials of the account nor its other calls."""
    monkeypatch.setattr(drivers_ec2, "LOOK_SECONDS", 0.05)
    await ec2.create(control=True)
    found = await ec2.running()
    granted = (await ec2.provider.grant(ec2.backend, found))[drivers_ec2.GRANTED]
    assert b"secret" not in granted.replace(b'"secret_key"', b"")
    place = tmp_path / "granted"
    place.write_bytes(granted)
    at: dict[str, Any] = {"instance": found.id, "granted": str(place)}

    power = drivers_ec2.Ec2Power(**at)  # type: ignore[abstract]
    ec2.cloud.calls.clear()
    await power.off()
    (off,) = await ec2.listed()
    assert (off.state, off.switchable, off.hourly_cost) == (MachineState.STOPPED, True, 0.0)
    await power.on()
    assert set(ec2.cloud.calls) == {"StopInstances", "StartInstances", "DescribeInstances"}
    again = await ec2.running()
    assert again.address != found.address
    place.write_bytes((await ec2.provider.grant(ec2.backend, again))[drivers_ec2.GRANTED])
    tcp = drivers_ec2.Ec2Tcp(host=found.address, port=SSH_PORT, granted=str(place))  # type: ignore[abstract]
    assert await tcp.address() == f"tcp://{again.address}:{SSH_PORT}", "it follows the instance"

    console = drivers_ec2.Ec2Console(**at)  # type: ignore[abstract]
    assert b"Linux version" in await console.output()

    await ec2.provider.delete(ec2.backend, again)
    with pytest.raises(RuntimeError, match="cannot be switched"):
        await drivers_ec2.Ec2Power(  # type: ignore[abstract]
            **{**at, "instance": "i-0123456789abcdef0"}
        ).on()


async def test_only_controlled_instances_have_a_session(ec2: Ec2) -> None:
    await ec2.create()
    assert await ec2.provider.grant(ec2.backend, await ec2.running()) == {}
    assert "GetFederationToken" not in ec2.cloud.calls


async def test_a_role_is_assumed_again_for_one_instance(ec2: Ec2) -> None:
    await ec2.create(control=True)
    found = await ec2.running()
    parameters = {**ec2.backend.parameters, "assumeRole": ROLE}
    ec2.cloud.calls.clear()
    assert await ec2.provider.grant(replace(ec2.backend, parameters=parameters), found)
    assert ec2.cloud.calls == ["AssumeRole"]


@pytest.mark.parametrize("version", ["1", "$Default", "$Latest"])
async def test_no_disk_of_a_launch_template_outlives_its_instance(ec2: Ec2, version: str) -> None:
    account = Ec2Account(region="eu-central-1")
    api = BotocoreApis()(ec2.backend, account)
    disks = [
        {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 12, "DeleteOnTermination": False}},
        {"DeviceName": "/dev/sdx", "Ebs": {"VolumeSize": 9, "DeleteOnTermination": False}},
    ]
    said = {"ImageId": IMAGE, "BlockDeviceMappings": disks}
    await api.call("create_launch_template", LaunchTemplateName="board", LaunchTemplateData=said)

    made = await ec2.create(imageId="", launchTemplate={"name": "board", "version": version})
    sizes = [each["Size"] for each in (await api.call("describe_volumes"))["Volumes"]]
    assert {9, 12} <= set(sizes)
    await ec2.provider.delete(ec2.backend, made)
    assert (await api.call("describe_volumes"))["Volumes"] == []
    with pytest.raises(Refused, match="InvalidLaunchTemplateName"):
        await ec2.create("b", imageId="", launchTemplate={"name": "none"})


async def test_the_next_type_is_tried_when_there_is_no_capacity(ec2: Ec2) -> None:
    ec2.cloud.faults.full = {"t3.small"}
    with pytest.raises(NoCapacity, match="InsufficientInstanceCapacity"):
        await ec2.create()
    assert ec2.cloud.calls.count("RunInstances") == 1, "botocore does not repeat it"
    await ec2.create(instanceTypes=["t3.small", "m5.large"])
    assert len(await ec2.listed()) == 1


async def test_the_next_type_is_tried_when_a_zone_does_not_offer_one(ec2: Ec2) -> None:
    ec2.cloud.faults.not_offered = {"t3.small"}
    with pytest.raises(Refused, match="Unsupported"):
        await ec2.create()
    await ec2.create(instanceTypes=["t3.small", "m5.large"])
    assert len(await ec2.listed()) == 1
    ec2.cloud.faults.full = {"m5.large"}
    with pytest.raises(NoCapacity):
        await ec2.create("b", instanceTypes=["t3.small", "m5.large"])


async def test_a_type_whose_creation_was_not_answered_is_asked_first(ec2: Ec2) -> None:
    """Else another instance would be made when there is capacity for the first type again."""
    types = {"instanceTypes": ["t3.small", "m5.large"]}
    await ec2.create("image-is-known", **types)
    ec2.cloud.faults.full = {"t3.small"}
    ec2.cloud.faults.answers_lost = 1
    with pytest.raises(Unreachable):
        await ec2.create("b", **types)
    ec2.cloud.faults.full = set()
    made = await ec2.create("b", **types)
    assert [found.id for found in await ec2.listed() if found.key == made.key] == [made.id]


async def test_throttled_calls_are_errors_that_pass(ec2: Ec2) -> None:
    made = await ec2.create()
    ec2.cloud.faults.throttled = 1
    with pytest.raises(TooManyRequests):
        await ec2.provider.renew(ec2.backend, made, EXPIRES)
    await ec2.provider.renew(ec2.backend, made, EXPIRES)


async def test_an_image_is_chosen_by_its_name(ec2: Ec2) -> None:
    filtered = {"owners": ["099720109477"], "name": "ubuntu/images/*/ubuntu-trusty-*"}
    await ec2.create(imageId="", imageFilter=filtered)
    with pytest.raises(Refused, match="no image of self"):
        await ec2.create("b", imageId="", imageFilter={"name": "nothing-*"})
    assert len(await ec2.listed()) == 1


async def test_an_account_that_does_not_answer_and_wrong_settings_are_named(ec2: Ec2) -> None:
    elsewhere = backend_at("http://127.0.0.1:9")
    with pytest.raises(Unreachable, match=r"127\.0\.0\.1:9"):
        await ec2.provider.list_machines(elsewhere)
    nowhere = Backend(key=("lab", "east"), lab="bench", parameters={"zone": "a"})
    with pytest.raises(Refused, match=r"ProviderConfig east: parameters\.region: Required"):
        await ec2.provider.list_machines(nowhere)


async def test_instances_of_another_lab_are_not_listed(ec2: Ec2) -> None:
    await ec2.create()
    other = Backend(
        key=ec2.backend.key,
        lab="another",
        endpoint=ec2.backend.endpoint,
        parameters=ec2.backend.parameters,
        credentials=ec2.backend.credentials,
    )
    assert (await ec2.provider.list_machines(other)).machines == ()


async def test_a_role_is_assumed_for_all_calls(ec2: Ec2) -> None:
    assumed = Backend(
        key=ec2.backend.key,
        lab="bench",
        endpoint=ec2.backend.endpoint,
        parameters={**ec2.backend.parameters, "assumeRole": ROLE},
        credentials=ec2.backend.credentials,
    )
    await ec2.provider.list_machines(assumed)
    assert ec2.cloud.calls == ["AssumeRole", "DescribeInstances"]


class Noted:
    """What is seen of the machines of one account; ids by the order in which they appeared."""

    def __init__(self, made: Ec2Provider, backend: Backend, image: str) -> None:
        self.provider, self.backend, self.image = made, backend, image
        self.keys = made.new_keys()
        self.seen: list[Any] = []
        self._ids: list[str] = []

    def order(self, name: str, **changes: Any) -> Order:
        profile = Profile(provisioner=NAME, parameters={**PARAMETERS, "imageId": self.image})
        key = ("lab", name)
        return Order(
            key=key,
            owner_uid=f"uid-{name}",
            token=client_token("bench", key, f"uid-{name}"),
            profile=replace(profile, **changes),
            expires=EXPIRES,
            keys=self.keys,
        )

    def note(self, machine: Machine) -> Machine:
        if machine.id not in self._ids:
            self._ids.append(machine.id)
        facts = {"id": self._ids.index(machine.id), "name": machine.key[1]}
        facts |= {"uid": machine.owner_uid, "state": machine.state, "lasting": machine.lasting}
        facts |= {"cost": machine.hourly_cost, "renewed": machine.expires == EXPIRES}
        facts |= {"reachable": machine.address != "", "detail": machine.detail}
        self.seen.append(facts)
        return machine

    async def settled(self, *states: MachineState) -> tuple[Machine, ...]:
        """Note what is listed, once the machines have these states."""
        async with asyncio.timeout(30):
            while True:
                found = await self.provider.list_machines(self.backend)
                machines = sorted(found.machines, key=lambda each: each.key)
                if tuple(each.state for each in machines) == states:
                    self.seen.append(len(found.gone))
                    return tuple(map(self.note, machines))
                await asyncio.sleep(0.05)

    async def attempt(self, call: Coroutine[Any, Any, object]) -> None:
        """Note whether a call is refused, and with which code."""
        try:
            await call
        except LabError as error:
            self.seen.append((type(error), error.message.split(":")[0]))
        else:
            self.seen.append("done")


async def a_life_of_machines(account: Noted) -> list[Any]:
    made, backend = account.provider, account.backend
    first = account.note(await made.create(backend, account.order("a")))
    account.note(await made.create(backend, account.order("a")))
    await account.settled(MachineState.RUNNING)
    await account.attempt(made.renew(backend, first, EXPIRES))
    await account.settled(MachineState.RUNNING)
    for _ in range(2):
        await account.attempt(made.delete(backend, first))
    await account.settled()
    account.note(await made.create(backend, account.order("a")))
    kept = account.note(
        await made.create(backend, account.order("b", lasting=True, single_use=False))
    )
    await account.settled(MachineState.RUNNING, MachineState.RUNNING)
    for _ in range(2):
        await account.attempt(made.stop(backend, kept))
    await account.settled(MachineState.RUNNING, MachineState.STOPPED)
    for _ in range(2):
        await account.attempt(made.start(backend, kept))
    await account.settled(MachineState.RUNNING, MachineState.RUNNING)
    absent = replace(kept, id="i-0123456789abcdef0")
    for call in (made.delete, made.stop, made.start):
        await account.attempt(call(backend, absent))
    await account.attempt(made.renew(backend, absent, EXPIRES))
    await account.attempt(made.delete(backend, kept))
    await account.settled(MachineState.RUNNING)
    return account.seen


async def test_the_stand_in_of_the_fault_runs_answers_as_moto_does(ec2: Ec2) -> None:
    fake = FakeEc2(SystemClock(), random.Random(1))
    imitated = Noted(Ec2Provider(fake.connect, _answers), ec2.backend, "ami-1")
    real = Noted(Ec2Provider(BotocoreApis(), _answers), ec2.backend, IMAGE)
    assert await a_life_of_machines(imitated) == await a_life_of_machines(real)


class Ec2World(AttendedWorld):
    parameters: ClassVar[Mapping[str, object]] = {
        **PARAMETERS,
        "imageId": "ami-1",
        "instanceTypes": ["t3.small", "m5.large"],
    }
    account_parameters: ClassVar[Mapping[str, object]] = {"region": "eu-central-1"}

    def __init__(self, seed: int, chance: random.Random) -> None:
        super().__init__(seed)
        self.fake = FakeEc2(self.clock, chance)
        self.fake.pause = self.pause
        self.fake.full = {"t3.small"} if chance.random() < 0.3 else set()
        self.begin(self.fake, Ec2Provider(self.fake.connect, _answers))
        self.restarted()


class LastingEc2World(Ec2World):
    parameters: ClassVar[Mapping[str, object]] = {
        **Ec2World.parameters,
        "hibernate": True,
        "rootVolume": {"encrypted": True},
    }

    def __init__(self, seed: int, chance: random.Random) -> None:
        super().__init__(seed, chance)
        self.lasting, self.running = True, self.fake.running


async def _answers(server: SshServer) -> bool:
    return True


def test_killed_at_every_await_of_create_and_delete_nothing_is_left_or_doubled() -> None:
    assert killed_everywhere(lambda: Ec2World(1, random.Random(1))) > 30


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_rounds_of_faults_and_kills_leave_nothing_unowned_or_doubled() -> None:
    kills, created = fault_run(Ec2World, rounds=ROUNDS)
    assert kills > ROUNDS / 2
    assert created > 2 * ROUNDS


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_thousand_rounds_in_which_instances_stop_and_start_lose_no_disk() -> None:
    kills, created = fault_run(LastingEc2World, rounds=ROUNDS)
    assert kills > ROUNDS / 2
    assert created > ROUNDS / 2
