"""A stand-in for the API of EC2 in memory and virtual time, for fault runs.

It answers as botocore does. ``tests/contract/test_ec2.py`` lets the provider do the same with it
and with moto, and compares what it sees; AWS itself was never seen.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from bullpen.kit.clock import Clock
from bullpen.provisioners.ec2 import launch
from bullpen.provisioners.ec2.failures import ApiError
from bullpen.provisioners.ec2.parameters import Ec2Account
from bullpen.provisioners.provider import Backend
from bullpen.testing.fake_provider import AccountFaults

Key = tuple[str, str]

IMAGE = {
    "ImageId": "ami-1",
    "Name": "board-1",
    "CreationDate": "2026-01-01T00:00:00.000Z",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": False}}],
}


@dataclass(slots=True, kw_only=True)
class FakeInstance:
    id: str
    created: datetime
    request: dict[str, Any]
    tags: dict[str, str]
    started: datetime
    deleted: datetime | None = None
    stopped: datetime | None = None


@dataclass(slots=True)
class FakeEc2Account:
    faults: AccountFaults = field(default_factory=AccountFaults)
    instances: dict[str, FakeInstance] = field(default_factory=dict)
    by_token: dict[str, FakeInstance] = field(default_factory=dict)

    @property
    def machines(self) -> list[FakeInstance]:
        return [each for each in self.instances.values() if each.deleted is None]


async def _nothing() -> None:
    await asyncio.sleep(0)


class FakeEc2:
    """Several accounts; ``connect`` gives the calls of one."""

    def __init__(self, clock: Clock, chance: random.Random) -> None:
        self.accounts: dict[Key, FakeEc2Account] = {}
        self.pause: Callable[[], Awaitable[None]] = _nothing
        self.made = 0
        self.full: set[str] = set()
        """Instance types of which there are none left."""

        self.clock = clock
        self.chance = chance

    def connect(self, backend: Backend, account: Ec2Account) -> FakeCalls:
        return FakeCalls(self, self.account(backend.key))

    def account(self, key: Key) -> FakeEc2Account:
        return self.accounts.setdefault(key, FakeEc2Account())

    def held(self) -> list[tuple[Key, str]]:
        """Key and uid of every instance that has not ended."""
        self.expire()
        tags = [each.tags for found in self.accounts.values() for each in found.machines]
        return sorted((_key(tag[launch.KEY]), tag[launch.UID]) for tag in tags)

    def running(self) -> dict[Key, str]:
        """The ids of the instances that run, by the key of ours."""
        self.expire()
        every = (each for found in self.accounts.values() for each in found.machines)
        return {_key(e.tags[launch.KEY]): e.id for e in every if e.stopped is None}

    def expire(self) -> None:
        """Instances end by themselves, as their timer does it."""
        for account in self.accounts.values():
            for each in account.machines:
                end = each.tags.get(launch.EXPIRES)
                due = datetime.fromisoformat(end) if end else each.started + timedelta(hours=2)
                if self.clock.now() < due or each.stopped is not None:
                    continue
                if each.request["InstanceInitiatedShutdownBehavior"] == "stop":
                    each.stopped = due
                else:
                    each.deleted = due


class FakeCalls:
    def __init__(self, cloud: FakeEc2, account: FakeEc2Account) -> None:
        self._cloud = cloud
        self._account = account

    async def call(self, operation: str, **parameters: Any) -> Mapping[str, Any]:
        faults, happens = self._account.faults, self._happens
        await self._cloud.pause()
        if faults.silent:
            raise ApiError("", "Could not connect to the endpoint URL")
        if happens(faults.throttled):
            raise ApiError("RequestLimitExceeded", "Request limit exceeded.")
        self._cloud.expire()
        answer: Mapping[str, Any] = getattr(self, operation)(parameters)
        await self._cloud.pause()
        if happens(faults.answer_lost):
            raise ApiError("", "Connection was closed before we received a valid response")
        return answer

    async def session(self, policy: str) -> Mapping[str, str]:
        return {"AccessKeyId": "key", "SecretAccessKey": "secret", "SessionToken": "token"}

    def run_instances(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        token = sent["ClientToken"]
        request = {name: value for name, value in sent.items() if name != "ClientToken"}
        known = self._account.by_token.get(token)
        if known is not None:
            if known.request != request:
                raise ApiError("IdempotentParameterMismatch", "the parameters differ")
            return {"Instances": [self._shown(known)]}
        quota = self._account.faults.quota
        if request["InstanceType"] in self._cloud.full:
            raise ApiError("InsufficientInstanceCapacity", "there is no capacity")
        if quota and len(self._account.machines) >= quota:
            raise ApiError("InstanceLimitExceeded", f"you have requested more than {quota}")
        self._cloud.made += 1
        (tags, *_) = [spec["Tags"] for spec in request["TagSpecifications"]]
        made = FakeInstance(
            id=f"i-{self._cloud.made}",
            created=self._cloud.clock.now(),
            started=self._cloud.clock.now(),
            request=json.loads(json.dumps(request)),
            tags={tag["Key"]: tag["Value"] for tag in tags},
        )
        self._account.instances[made.id] = made
        self._account.by_token[token] = made
        return {"Instances": [{**self._shown(made), "State": {"Name": "pending"}}]}

    def describe_instances(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        if "InstanceIds" in sent:
            (one,) = sent["InstanceIds"]
            known = self._account.instances.get(one)
            if known is None or not self._is_listed(known):
                raise ApiError("InvalidInstanceID.NotFound", f"{one} does not exist")
            return {"Reservations": [{"Instances": [self._shown(known)]}]}
        ((_, (lab,)),) = [each.values() for each in sent["Filters"]]
        found = [
            self._shown(each)
            for each in self._account.instances.values()
            if each.tags[launch.LAB] == lab and self._is_listed(each)
        ]
        return {"Reservations": [{"Instances": found}]}

    def terminate_instances(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        for each in sent["InstanceIds"]:
            found = self._account.instances.get(each)
            if found is None:
                raise ApiError("InvalidInstanceID.NotFound", f"{each} does not exist")
            found.deleted = found.deleted or self._cloud.clock.now()
        return {}

    def stop_instances(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        found = self._one(sent)
        if found.deleted is not None or self._is_booting(found):
            raise ApiError("IncorrectInstanceState", "it is not in a state to be stopped")
        found.stopped = found.stopped or self._cloud.clock.now()
        return {}

    def start_instances(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        """The time of its launch is that of its last start."""
        found = self._one(sent)
        if found.deleted is not None or self._state(found) == "stopping":
            raise ApiError("IncorrectInstanceState", "it is not in a state to be started")
        if found.request["InstanceType"] in self._cloud.full and self._happens(0.5):
            raise ApiError("InsufficientInstanceCapacity", "there is no capacity")
        if found.stopped is not None:
            found.stopped, found.started = None, self._cloud.clock.now()
        return {}

    def _one(self, sent: Mapping[str, Any]) -> FakeInstance:
        (name,) = sent["InstanceIds"]
        found = self._account.instances.get(name)
        if found is None:
            raise ApiError("InvalidInstanceID.NotFound", f"{name} does not exist")
        return found

    def create_tags(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        for each in sent["Resources"]:
            found = self._one({"InstanceIds": [each]})
            found.tags |= {tag["Key"]: tag["Value"] for tag in sent["Tags"]}
        return {}

    def describe_images(self, sent: dict[str, Any]) -> Mapping[str, Any]:
        return {"Images": [IMAGE]}

    def _shown(self, found: FakeInstance) -> Mapping[str, Any]:
        disk = {"DeviceName": "/dev/sda1", "Ebs": {"AttachTime": found.created}}
        return {
            "InstanceId": found.id,
            "LaunchTime": found.started,
            "State": {"Name": self._state(found)},
            "BlockDeviceMappings": [disk],
            "PrivateIpAddress": "192.0.2.1",
            "Tags": [{"Key": name, "Value": value} for name, value in found.tags.items()],
        }

    def _state(self, found: FakeInstance) -> str:
        now, faults = self._cloud.clock.now(), self._account.faults
        if found.deleted is not None:
            ended = (now - found.deleted).total_seconds() >= faults.delete_seconds
            return "terminated" if ended else "shutting-down"
        if found.stopped is not None:
            ended = (now - found.stopped).total_seconds() >= faults.stop_seconds
            return "stopped" if ended else "stopping"
        return "pending" if self._is_booting(found) else "running"

    def _is_booting(self, found: FakeInstance) -> bool:
        age = (self._cloud.clock.now() - found.started).total_seconds()
        return age < self._account.faults.boot_seconds

    def _is_listed(self, found: FakeInstance) -> bool:
        age = (self._cloud.clock.now() - found.created).total_seconds()
        faults = self._account.faults
        return age >= faults.listed_after and not self._happens(faults.omitted)

    def _happens(self, chance: float) -> bool:
        return chance > 0 and self._cloud.chance.random() < chance


def _key(text: str) -> Key:
    namespace, _, name = text.partition("/")
    return namespace, name
