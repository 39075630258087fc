"""Instances of EC2, as an attended provisioner uses them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from bullpen.api.exporter_template import Driver
from bullpen.core.targets.backends import Inventory, Key, Machine
from bullpen.drivers.ec2 import GRANTED
from bullpen.drivers.ec2_api import Grant
from bullpen.errors import Cause, NoCapacity, Refused, Unreachable
from bullpen.kit import times
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Needs, Profile
from bullpen.provisioners.ec2 import launch, machines
from bullpen.provisioners.ec2.failures import ABSENT, NOT_HERE, ApiError, failure
from bullpen.provisioners.ec2.machines import Described, SshServer
from bullpen.provisioners.ec2.parameters import (
    RESERVED_DRIVERS,
    Ec2Account,
    Ec2Parameters,
    Market,
    problems,
)
from bullpen.provisioners.ec2.sessions import endpoint, session_policy
from bullpen.provisioners.ec2.user_data import HOST_KEY, HOST_PUBLIC, LOGIN_KEY, LOGIN_PUBLIC
from bullpen.provisioners.provider import Backend, Order

if TYPE_CHECKING:
    from bullpen.provisioners.ec2.api import Api, Connect

NAME = "ec2.jumpstarter.dev"
SSH_DRIVER = "bullpen.drivers.ssh.Ssh"
POWER_DRIVER = "bullpen.drivers.ec2.Ec2Power"
CONSOLE_DRIVER = "bullpen.drivers.ec2.Ec2Console"
CONTROLLED_TCP_DRIVER = "bullpen.drivers.ec2.Ec2Tcp"
TCP_DRIVER = "jumpstarter_driver_network.driver.TcpNetwork"

EXPORTER_BYTES = 128 << 20
EXPORTER_CPUS = 0.1
PAGE_SIZE = 500
MARKED_STATUS = "marked-for-termination"
"""Of the request of a spot instance, from two minutes before AWS ends it."""

PAGES_MAX = 100
ATTEMPTS_MAX = 8
"""Instances of one order that may have ended, each with a token that cannot be used again."""

PROBES_MAX = 16
"""SSH servers that are tried at a time."""

PROBE_SECONDS_MAX = 2.0
IMAGES_MAX = 256
UNANSWERED_MAX = 1000
"""Orders that are remembered; for an older one, a listing deletes the instance too many."""


log = logging.getLogger("bullpen.provisioners")


class Ec2Provider:
    """The API of EC2. ``connect`` and ``probe`` are the ways to AWS and to the instances."""

    name = NAME
    idempotent = True

    def __init__(self, connect: Connect, probe: Callable[[SshServer], Awaitable[bool]]) -> None:
        self._connect = connect
        self._probe = probe
        self._reachable: dict[Key, frozenset[str]] = {}
        """By backend, the runs of instances in which the SSH server has answered."""

        self._unanswered: dict[str, int] = {}
        """By token of an order, which of its requests may have been carried out."""

        self._images: dict[tuple[Key, str], Mapping[str, Any]] = {}

    def check(
        self, given: Mapping[str, object], drivers: tuple[Driver, ...] = ()
    ) -> tuple[Cause, ...]:
        causes = parameters.causes_of(Ec2Parameters, given)
        if causes:
            return causes
        wanted = parameters.read(Ec2Parameters, given)
        names = frozenset({*RESERVED_DRIVERS, *wanted.ports, *(driver.name for driver in drivers)})
        return (
            *(
                Cause(field=f"{parameters.ROOT}.{name}", message=f"Invalid value: {problem}")
                for name, problem in problems(wanted)
            ),
            *parameters.reference_causes(drivers, names),
        )

    def needs(self, profile: Profile) -> Needs:
        return Needs(memory_bytes=EXPORTER_BYTES, cpus=EXPORTER_CPUS)

    def hourly_cost(self, profile: Profile) -> float:
        return float(parameters.read(Ec2Parameters, profile.parameters).hourly_cost or 0)

    def new_keys(self) -> Mapping[str, bytes]:
        login, login_public = _key_pair()
        host, host_public = _key_pair()
        return {
            LOGIN_KEY: login,
            LOGIN_PUBLIC: login_public,
            HOST_KEY: host,
            HOST_PUBLIC: host_public,
        }

    def export(
        self, profile: Profile, machine: Machine, keys: Mapping[str, bytes]
    ) -> Mapping[str, object]:
        """The machine's own drivers, then those of the template."""
        wanted = parameters.read(Ec2Parameters, profile.parameters)

        def tcp(port: int) -> dict[str, object]:
            kind = CONTROLLED_TCP_DRIVER if wanted.control else TCP_DRIVER
            return {"type": kind, "config": {"host": machine.address, "port": port}}

        ssh = {
            "type": SSH_DRIVER,
            "config": {
                "default_username": wanted.ssh.user,
                "ssh_identity": keys[LOGIN_KEY].decode(),
                "host_key": keys[HOST_PUBLIC].decode(),
            },
            "children": {"tcp": tcp(wanted.ssh.port)},
        }
        ports = {name: tcp(port) for name, port in sorted(wanted.ports.items())}
        config = {"instance": machine.id}
        control = {
            "power": {"type": POWER_DRIVER, "config": config},
            "console": {"type": CONSOLE_DRIVER, "config": config},
        }
        return {
            "ssh": ssh,
            **(control if wanted.control else {}),
            **ports,
            **parameters.export_of(profile.drivers),
        }

    async def grant(self, backend: Backend, machine: Machine) -> Mapping[str, bytes]:
        """A session that may switch this instance and read its console, and nothing else."""
        if not machine.switchable:
            return {}
        account = self._account(backend)
        policy = json.dumps(session_policy(account.region, machine.id))
        try:
            found = await self._api(backend).session(policy)
        except ApiError as error:
            raise failure(error) from None
        made = Grant(
            endpoint=backend.endpoint or endpoint(account.region),
            region=account.region,
            address=machine.address,
            access_key=found["AccessKeyId"],
            secret_key=found["SecretAccessKey"],
            session_token=found["SessionToken"],
        )
        return {GRANTED: json.dumps(asdict(made)).encode()}

    async def list_machines(self, backend: Backend) -> Inventory:
        described = [each async for each in self._described(backend)]
        reachable = await self._reached(backend.key, described)
        marked = await self._marked(backend, described)
        alive = (each for each in described if machines.state_of(each) not in machines.ENDED)
        shown = (
            machines.machine(
                each,
                reachable=machines.run_of(each) in reachable,
                marked=each["InstanceId"] in marked,
            )
            for each in alive
        )
        gone = (e["InstanceId"] for e in described if machines.state_of(e) in machines.ENDED)
        return Inventory(
            machines=tuple(each for each in shown if each is not None), gone=frozenset(gone)
        )

    async def create(self, backend: Backend, order: Order) -> Machine:
        wanted = parameters.read(Ec2Parameters, order.profile.parameters)
        if order.profile.lasting and wanted.market is Market.SPOT:
            raise Refused("a lasting target needs market: onDemand; spot instances keep no disks")
        template = await self._template(backend, wanted)
        image = await self._image(backend, wanted, str((template or {}).get("ImageId", "")))
        made = launch.requests(order, wanted, lab=backend.lab, image=image, template=template)
        choices = list(made)
        first = self._unanswered.pop(order.token, 0)
        full: ApiError | None = None
        unsupported: ApiError | None = None
        for index in (*range(first, len(choices)), *range(min(first, len(choices)))):
            try:
                return await self._run(backend, order, choices[index])
            except ApiError as error:
                if error.code.startswith("InvalidAMIID"):
                    self._images.clear()
                if isinstance(failure(error), Unreachable):
                    self._note_unanswered(order, index)
                if error.code in NOT_HERE:
                    unsupported = error
                elif isinstance(failure(error), NoCapacity):
                    full = full or error
                else:
                    raise failure(error) from None
        last = full or unsupported
        assert last is not None, "there is at least one type"
        raise failure(last)

    def _note_unanswered(self, order: Order, index: int) -> None:
        """The next attempt begins there: an instance that exists is found before one is made."""
        while len(self._unanswered) >= UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        self._unanswered[order.token] = index

    async def renew(self, backend: Backend, machine: Machine, expires: datetime) -> None:
        tag = {"Key": launch.EXPIRES, "Value": times.text(expires)}
        await self._unless_gone(backend, "create_tags", Resources=[machine.id], Tags=[tag])

    async def delete(self, backend: Backend, machine: Machine) -> None:
        await self._unless_gone(backend, "terminate_instances", InstanceIds=[machine.id])

    async def _unless_gone(self, backend: Backend, operation: str, **sent: Any) -> None:
        """Call it for an instance, which may have ended meanwhile."""
        try:
            await self._api(backend).call(operation, **sent)
        except ApiError as error:
            if error.code not in ABSENT:
                raise failure(error) from None

    async def stop(self, backend: Backend, machine: Machine) -> None:
        """Stop it; one that was made to hibernate does so if EC2 lets it."""
        described = await self._find(backend, machine)
        if described is None:
            return  # it has ended
        stopped = {"InstanceIds": [machine.id]}
        if machines.hibernates(described):
            try:
                await self._api(backend).call("stop_instances", **stopped, Hibernate=True)
            except ApiError as error:
                if not isinstance(failure(error), Refused):
                    raise failure(error) from None
                facts = {"key": machine.key, "instance": machine.id, "cause": str(error)}
                log.info("an instance cannot hibernate and is stopped", extra=facts)
            else:
                return
        await self._call(backend, "stop_instances", **stopped)

    async def start(self, backend: Backend, machine: Machine) -> None:
        await self._call(backend, "start_instances", InstanceIds=[machine.id])

    async def _find(self, backend: Backend, machine: Machine) -> Described | None:
        try:
            answer = await self._api(backend).call("describe_instances", InstanceIds=[machine.id])
        except ApiError as error:
            if error.code in ABSENT:
                return None
            raise failure(error) from None
        return next((e for found in answer["Reservations"] for e in found["Instances"]), None)

    async def _run(self, backend: Backend, order: Order, request: launch.Request) -> Machine:
        """Create an instance, or find the one that this order has. Raises ``ApiError``."""
        for attempt in range(ATTEMPTS_MAX):
            sent = launch.with_token(request, order, attempt)
            answer = await self._api(backend).call("run_instances", **sent)
            (described,) = answer["Instances"]
            if machines.state_of(described) not in machines.ENDING:
                made = machines.machine(described, reachable=False)
                assert made is not None, "the request has our tags"
                return made
        raise Unreachable(
            f"{ATTEMPTS_MAX} instances of this Exporter have ended; EC2 creates no other for it"
        )

    async def _described(self, backend: Backend) -> AsyncIterator[Described]:
        sent: dict[str, Any] = {
            "Filters": [{"Name": f"tag:{launch.LAB}", "Values": [backend.lab]}],
            "MaxResults": PAGE_SIZE,
        }
        for _ in range(PAGES_MAX):
            answer = await self._call(backend, "describe_instances", **sent)
            for reservation in answer["Reservations"]:
                for described in reservation["Instances"]:
                    yield described
            if not answer.get("NextToken"):
                return
            sent["NextToken"] = answer["NextToken"]
        raise Unreachable(f"the listing has more than {PAGES_MAX} pages")

    async def _reached(self, key: Key, described: Iterable[Described]) -> frozenset[str]:
        """The runs of instances whose SSH server answers now, or has answered before."""
        running = {machines.run_of(e): e for e in described if machines.state_of(e) == "running"}
        known = self._reachable.get(key, frozenset()) & running.keys()
        gate = asyncio.Semaphore(PROBES_MAX)

        async def answers(server: SshServer | None) -> bool:
            async with gate:
                return server is not None and await self._probe(server)

        new = sorted(running.keys() - known)
        found = await asyncio.gather(*(answers(machines.ssh_server(running[each])) for each in new))
        answered = (each for each, is_open in zip(new, found, strict=True) if is_open)
        self._reachable[key] = known | frozenset(answered)
        return self._reachable[key]

    async def _marked(self, backend: Backend, described: Iterable[Described]) -> frozenset[str]:
        """The spot instances that AWS is about to interrupt; none if it does not tell."""
        if not any(map(machines.is_spot, described)):
            return frozenset()
        filters = {f"tag:{launch.LAB}": backend.lab, "status-code": MARKED_STATUS}
        shown = [{"Name": name, "Values": [value]} for name, value in filters.items()]
        try:
            answer = await self._api(backend).call(
                "describe_spot_instance_requests", Filters=shown, MaxResults=PAGE_SIZE
            )
        except ApiError as error:
            # The instances are listed, and count as lost when they end without a warning.
            facts = {"key": backend.key, "cause": str(error)}
            log.info("interruptions of spot instances are not known", extra=facts)
            return frozenset()
        found = (each.get("InstanceId") for each in answer["SpotInstanceRequests"])
        return frozenset(filter(None, found))

    async def _template(self, backend: Backend, wanted: Ec2Parameters) -> Mapping[str, Any] | None:
        """What the launch template says now; a newer version of it may say something else."""
        if wanted.launch_template is None:
            return None
        sent = launch.template_of(wanted.launch_template)
        versions = [wanted.launch_template.version]
        answer = await self._call(
            backend, "describe_launch_template_versions", **sent, Versions=versions
        )
        found = answer["LaunchTemplateVersions"]
        if not found:
            raise Refused(f"the launch template has no version {versions[0]}")
        said: Mapping[str, Any] = found[0]["LaunchTemplateData"]
        return said

    async def _image(
        self, backend: Backend, wanted: Ec2Parameters, of_template: str
    ) -> Mapping[str, Any] | None:
        """The image as EC2 describes it: of a filter, the newest when it was first used."""
        if wanted.image_id:
            sent: dict[str, Any] = {"ImageIds": [wanted.image_id]}
        elif wanted.image_filter is not None:
            chosen = wanted.image_filter
            filters = {"name": chosen.name, "architecture": chosen.architecture}
            shown = [{"Name": n, "Values": [v]} for n, v in filters.items() if v]
            sent = {"Owners": list(chosen.owners), "Filters": shown}
        elif of_template.startswith("ami-"):
            sent = {"ImageIds": [of_template]}
        else:
            return None
        key = (backend.key, repr(sent))
        if key not in self._images:
            found = (await self._call(backend, "describe_images", **sent))["Images"]
            if not found:
                raise Refused(f"no image of {', '.join(sent.get('Owners', ()))} matches the class")
            if len(self._images) >= IMAGES_MAX:
                self._images.clear()
            newest = max(found, key=lambda image: (image.get("CreationDate", ""), image["ImageId"]))
            self._images[key] = newest
        return self._images[key]

    async def _call(self, backend: Backend, operation: str, **sent: Any) -> Mapping[str, Any]:
        try:
            return await self._api(backend).call(operation, **sent)
        except ApiError as error:
            raise failure(error) from None

    def _api(self, backend: Backend) -> Api:
        return self._connect(backend, self._account(backend))

    def _account(self, backend: Backend) -> Ec2Account:
        causes = parameters.causes_of(Ec2Account, backend.parameters)
        if causes:
            said = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
            raise Refused(f"ProviderConfig {backend.key[1]}: {said}")
        return parameters.read(Ec2Account, backend.parameters)


async def ssh_answers(server: SshServer) -> bool:
    """Whether an SSH server listens there."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            reader, writer = await asyncio.open_connection(server.address, server.port)
            try:
                return await reader.readexactly(4) == b"SSH-"
            except asyncio.IncompleteReadError:
                return False
            finally:
                writer.close()
    return False


def _key_pair() -> tuple[bytes, bytes]:
    made = Ed25519PrivateKey.generate()
    private = made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    return private, made.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
