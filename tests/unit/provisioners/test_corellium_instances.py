"""What is asked of Corellium, and what its answers mean."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from bullpen.core.targets.backends import MachineState
from bullpen.drivers.json_api import ApiError
from bullpen.errors import NoCapacity, Refused, TooManyRequests, Unreachable
from bullpen.kit.clock import VirtualClock
from bullpen.provisioners import parameters
from bullpen.provisioners.corellium import instances
from bullpen.provisioners.corellium.api import RETRY_SECONDS, RETRY_SECONDS_MAX, Limiter
from bullpen.provisioners.corellium.failures import failure
from bullpen.provisioners.corellium.parameters import CorelliumParameters
from bullpen.provisioners.corellium.plugin import provider
from bullpen.provisioners.provider import Backend
from bullpen.sim import virtual_time

NAME = "bullpen:0123456789abcdef:lab/kronos-x7k2:8f14e45f-ea0b-4c3a-9d7e-0123456789ab"
DEVICE = {"flavor": "kronos", "os": "1.1.1"}


def described(**facts: Any) -> dict[str, Any]:
    created = "2026-01-31T12:00:00.000Z"
    return {"id": "i", "name": NAME, "state": "on", "created": created, **facts}


@pytest.mark.parametrize(
    ("facts", "state", "detail"),
    [
        pytest.param({}, MachineState.RUNNING, "", id="on"),
        pytest.param({"taskState": "none"}, MachineState.RUNNING, "", id="on without a task"),
        pytest.param({"state": "creating"}, MachineState.STARTING, "it is creating", id="creating"),
        pytest.param({"state": "off"}, MachineState.STARTING, "it is off", id="switched off"),
        pytest.param(
            {"taskState": "snapshot"}, MachineState.STARTING, "it is on: snapshot", id="a task"
        ),
        pytest.param(
            {"panicked": True}, MachineState.STARTING, "its kernel has panicked", id="panicked"
        ),
        pytest.param(
            {"state": "error", "error": "no disk"}, MachineState.FAILED, "no disk", id="failed"
        ),
        pytest.param(
            {"state": "deleting"}, MachineState.ENDING, "it is being deleted", id="deleting"
        ),
        pytest.param({"state": "new word"}, MachineState.STARTING, "it is new word", id="unknown"),
    ],
)
def test_states(facts: dict[str, Any], state: MachineState, detail: str) -> None:
    found = instances.machine(described(**facts), lab="0123456789abcdef")
    assert found is not None
    assert (found.state, found.detail) == (state, detail)
    assert found.created == datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("reused", [False, True])
@pytest.mark.parametrize("cost", ["", "0.50", "2"])
def test_the_name_says_everything_and_nothing_else_is_taken_for_ours(
    cost: str, *, reused: bool
) -> None:
    name = instances.name_of(
        lab="lab1", key=("team.a", "board-1"), uid="uid-1", hourly_cost=cost, reused=reused
    )
    found = instances.machine(described(name=name), lab="lab1")
    assert found is not None
    assert (found.key, found.owner_uid) == (("team.a", "board-1"), "uid-1")
    assert found.hourly_cost == float(cost or 0)
    assert instances.is_reused(described(name=name)) is reused
    assert instances.machine(described(name=name), lab="lab2") is None
    for other in ("", "my phone", f"{name}x:y", "bullpen:lab1:no-slash:uid", name.upper()):
        assert instances.machine(described(name=other), lab="lab1") is None


def test_a_request_has_what_the_class_says() -> None:
    wanted = parameters.read(
        CorelliumParameters,
        {
            "device": {
                **DEVICE,
                "build": "b",
                "patches": ["jailbroken"],
                "snapshot": "s",
                "fwpackage": "f",
                "bootOptions": {
                    "bootArgs": "-v",
                    "additionalTags": ["gpu"],
                    "screen": "720x1280:280",
                },
            }
        },
    )
    assert instances.request(wanted, name="n", project="p") == {
        "name": "n",
        "project": "p",
        "flavor": "kronos",
        "os": "1.1.1",
        "osbuild": "b",
        "patches": ["jailbroken"],
        "snapshot": "s",
        "fwpackage": "f",
        "bootOptions": {"bootArgs": "-v", "additionalTags": ["gpu"], "screen": "720x1280:280"},
    }
    least = parameters.read(CorelliumParameters, {"device": DEVICE})
    made = instances.request(least, name="n", project="p")
    assert made == {"name": "n", "project": "p", **DEVICE}


def test_a_quota_that_is_not_known_stops_nothing() -> None:
    four = {"quotas": {"cores": 4}}
    assert instances.no_cores({"quotas": {"cores": 8}, "quotasUsed": {"cores": 4}}, four) == ""
    assert instances.no_cores({"quotas": {"cores": 7}, "quotasUsed": {"cores": 4}}, four) != ""
    assert instances.no_cores({"quotas": {"cores": 1}}, {}) == ""
    assert instances.no_cores({}, four) == ""
    assert instances.quota({"quotas": {"cores": 1}}) is None
    assert instances.quota({"quotas": None, "quotasUsed": None}) is None


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (0, "no answer", Unreachable),
        (409, "it is busy", Unreachable),
        (500, "", Unreachable),
        (503, "maintenance", Unreachable),
        (429, "", TooManyRequests),
        (403, "The Quota of cores is exceeded", NoCapacity),
        (400, "quota", NoCapacity),
        (404, "no quota", Refused),
        (403, "no permission", Refused),
        (401, "", Refused),
    ],
)
def test_errors(status: int, text: str, kind: type[Exception]) -> None:
    assert type(failure(ApiError(status, text))) is kind


def test_parameters_are_named_by_path() -> None:
    check = provider().check
    assert check({"device": DEVICE}) == ()
    assert [each.field for each in check({})] == ["parameters.device"]
    (cause,) = check({"device": {"flavor": "kronos"}})
    assert cause.field == "parameters.device.os"
    (cause,) = check({"device": DEVICE, "hourlyCost": "cheap"})
    assert cause.field == "parameters.hourlyCost"


@pytest.mark.parametrize(
    ("told", "wait"),
    [(7.0, 7.0), (None, RETRY_SECONDS), (86400.0, RETRY_SECONDS_MAX), (0.0, 0.0)],
)
def test_after_a_429_nothing_is_asked_for_as_long_as_was_said(
    told: float | None, wait: float
) -> None:
    asked: list[str] = []

    class Calls:
        async def call(self, method: str, path: str, **sent: Any) -> Any:
            asked.append(path)
            if len(asked) == 1:
                raise ApiError(429, "", retry_after=told)

    async def story() -> None:
        limiter, backend = Limiter(lambda backend: Calls()), Backend(key=("lab", "a"), lab="l")
        with pytest.raises(ApiError):
            await limiter.call(backend, "GET", "/first")
        if wait:
            await asyncio.sleep(wait - 0.5)
            with pytest.raises(TooManyRequests):
                await limiter.call(backend, "GET", "/too-early")
            await asyncio.sleep(0.5)
        await limiter.call(backend, "GET", "/later")

    virtual_time.run(VirtualClock(), story())
    assert asked == ["/first", "/later"]
