"""What is asked of EC2, and what its answers mean."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bullpen.core.targets.backends import EXPIRY, MachineState
from bullpen.errors import NoCapacity, Refused, TooManyRequests, Unreachable
from bullpen.provisioners import parameters
from bullpen.provisioners.base import Profile
from bullpen.provisioners.ec2 import launch, machines
from bullpen.provisioners.ec2.failures import ApiError, failure
from bullpen.provisioners.ec2.parameters import Ec2Parameters
from bullpen.provisioners.ec2.plugin import provider
from bullpen.provisioners.ec2.user_data import expiry_script, user_data
from bullpen.provisioners.provider import Backend, Order

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
KEYS = {"login": b"L", "login.pub": b"ssh-ed25519 L", "host": b"H", "host.pub": b"ssh-ed25519 H"}
MINIMAL: dict[str, Any] = {"imageId": "ami-1", "instanceTypes": ["t3.small"]}
IMAGE = {
    "ImageId": "ami-1",
    "RootDeviceName": "/dev/sda1",
    "BlockDeviceMappings": [
        {"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": False, "VolumeSize": 8}},
        {"DeviceName": "/dev/sdb", "VirtualName": "ephemeral0"},
        {"DeviceName": "/dev/sdc", "Ebs": {"DeleteOnTermination": False}},
    ],
}


def requests(**given: Any) -> list[dict[str, Any]]:
    wanted = parameters.read(Ec2Parameters, {**MINIMAL, **given})
    profile = Profile(provisioner="ec2.jumpstarter.dev", parameters={})
    order = Order(
        key=("lab", "a"), owner_uid="uid", token="t", profile=profile, expires=NOW, keys=KEYS
    )
    return list(launch.requests(order, wanted, lab="lab-1", image=IMAGE))


def test_types_are_tried_in_order_each_in_all_subnets() -> None:
    made = requests(instanceTypes=["a", "b"], subnetIds=["s1", "s2"])
    tried = [(request["InstanceType"], request["SubnetId"]) for request in made]
    assert tried == [("a", "s1"), ("a", "s2"), ("b", "s1"), ("b", "s2")]
    zones = [request["Placement"] for request in requests(availabilityZones=["z1", "z2"])]
    assert zones == [{"AvailabilityZone": "z1"}, {"AvailabilityZone": "z2"}]


def test_an_instance_is_tagged_from_the_start_and_leaves_nothing_behind() -> None:
    (made,) = requests(tags={"team": "red"}, rootVolume={"sizeGiB": 20, "type": "gp3"})
    assert made["InstanceInitiatedShutdownBehavior"] == "terminate"
    disks = {each["DeviceName"]: each["Ebs"] for each in made["BlockDeviceMappings"]}
    assert disks == {
        "/dev/sda1": {"DeleteOnTermination": True, "VolumeSize": 20, "VolumeType": "gp3"},
        "/dev/sdc": {"DeleteOnTermination": True},
    }
    for specification in made["TagSpecifications"]:
        tags = {tag["Key"]: tag["Value"] for tag in specification["Tags"]}
        assert tags["team"] == "red"
        assert (tags["bullpen:lab"], tags["bullpen:key"]) == ("lab-1", "lab/a")
        assert tags["bullpen:uid"] == "uid"
    kinds = [specification["ResourceType"] for specification in made["TagSpecifications"]]
    assert kinds == ["instance", "volume", "network-interface"]
    assert made["MetadataOptions"]["HttpTokens"] == "required"


def test_spot_templates_profiles_and_public_addresses_are_requested() -> None:
    (spot,) = requests(
        market="spot",
        spotMaxPrice="0.01",
        launchTemplate={"name": "board"},
        iamInstanceProfile="arn:aws:iam::1:instance-profile/board",
        associatePublicIp=True,
        subnetIds=["s1"],
        securityGroupIds=["g1"],
    )
    assert spot["InstanceMarketOptions"]["SpotOptions"]["MaxPrice"] == "0.01"
    assert spot["LaunchTemplate"] == {"LaunchTemplateName": "board", "Version": "$Default"}
    assert spot["IamInstanceProfile"] == {"Arn": "arn:aws:iam::1:instance-profile/board"}
    (interface,) = spot["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["Groups"]) == ("s1", ["g1"])
    assert "SubnetId" not in spot, "EC2 refuses both"


def test_a_repeated_request_has_the_same_token_and_another_request_another() -> None:
    order = Order(
        key=("lab", "a"),
        owner_uid="uid",
        token="t",
        profile=Profile(provisioner="x", parameters={}),
        expires=NOW,
    )
    (first,), (again,), (other,) = requests(), requests(), requests(instanceTypes=["m5.large"])
    tokens = [launch.with_token(each, order, 0)["ClientToken"] for each in (first, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert launch.with_token(first, order, 1)["ClientToken"] != tokens[0]
    assert {len(token) for token in tokens} == {64}, "the most that EC2 takes"


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"imageId": ""}, "parameters.imageId"),
        ({"imageFilter": {"name": "x"}}, "parameters.imageFilter"),
        ({"launchTemplate": {}}, "parameters.launchTemplate"),
        ({"subnetIds": ["s"], "availabilityZones": ["z"]}, "parameters.availabilityZones"),
        ({"spotMaxPrice": "1"}, "parameters.spotMaxPrice"),
        ({"userData": "hello"}, "parameters.userData"),
        ({"userData": "#!" + "ä" * 7000}, "parameters.userData"),
        ({"tags": {"bullpen:lab": "mine"}}, "parameters.tags.bullpen:lab"),
        ({"ports": {"ssh": 22}}, "parameters.ports.ssh"),
        ({"instanceTypes": []}, "parameters.instanceTypes"),
    ],
)
def test_wrong_parameters_are_named(given: dict[str, Any], field: str) -> None:
    made = provider()
    assert made.check(MINIMAL) == ()
    (cause,) = made.check({**MINIMAL, **given})
    assert cause.field == field


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", NoCapacity),
        ("VcpuLimitExceeded", NoCapacity),
        ("UnfulfillableCapacity", NoCapacity),
        ("RequestLimitExceeded", TooManyRequests),
        ("EC2ThrottledException", TooManyRequests),
        ("", Unreachable),
        ("502", Unreachable),
        ("InternalError", Unreachable),
        ("UnauthorizedOperation", Refused),
        ("AuthFailure", Refused),
        ("InvalidAMIID.NotFound", Refused),
        ("SomethingNew", Refused),
    ],
)
def test_codes_of_ec2_are_errors_of_ours(code: str, kind: type[Exception]) -> None:
    made = failure(ApiError(code, "what EC2 says"))
    assert type(made) is kind
    assert "what EC2 says" in made.message


def described(state: str, reason: str = "", **tags: str) -> dict[str, Any]:
    own = {"bullpen:key": "lab/a", "bullpen:uid": "uid", "bullpen:ssh": "private:22", **tags}
    return {
        "InstanceId": "i-1",
        "State": {"Name": state},
        "StateReason": {"Code": reason},
        "LaunchTime": NOW,
        "PrivateIpAddress": "10.0.0.1",
        "PublicIpAddress": "192.0.2.1",
        "Tags": [{"Key": key, "Value": value} for key, value in own.items()],
    }


@pytest.mark.parametrize(
    ("state", "reason", "reachable", "expected"),
    [
        ("pending", "", False, MachineState.STARTING),
        ("running", "", False, MachineState.STARTING),
        ("running", "", True, MachineState.RUNNING),
        ("stopped", "", True, MachineState.FAILED),
        ("shutting-down", "Client.UserInitiatedShutdown", True, MachineState.ENDING),
        ("shutting-down", "Server.SpotInstanceTermination", True, MachineState.FAILED),
    ],
)
def test_states_of_instances(
    state: str, reason: str, reachable: bool, expected: MachineState
) -> None:
    found = machines.machine(described(state, reason), reachable=reachable)
    assert found is not None
    assert found.state is expected
    assert bool(found.detail) == (expected in (MachineState.FAILED, MachineState.ENDING)) or (
        found.detail == "its SSH server does not answer yet"
    )
    assert found.expires == NOW + EXPIRY


def test_the_address_is_the_one_that_the_class_wants_and_foreign_instances_are_none() -> None:
    public = machines.machine(described("running", **{"bullpen:ssh": "public:22"}), reachable=True)
    assert public is not None
    assert public.address == "192.0.2.1"
    foreign = {**described("running"), "Tags": [{"Key": "Name", "Value": "x"}]}
    assert machines.machine(foreign, reachable=True) is None


def test_user_data_has_our_keys_the_expiry_and_the_class_s_part() -> None:
    made = user_data(KEYS, "#cloud-config\npackages: [can-utils]\n")
    assert made == user_data(KEYS, "#cloud-config\npackages: [can-utils]\n"), "it is repeatable"
    _, *parts = email.message_from_string(made).walk()
    ours, script, theirs = [bytes(part.get_payload(decode=True)) for part in parts]
    content = json.loads(ours.decode().partition("\n")[2])
    assert content["ssh_authorized_keys"] == ["ssh-ed25519 L"]
    assert content["ssh_keys"]["ed25519_private"] == "H"
    assert b"bullpen-expiry.timer" in script
    assert b"can-utils" in theirs
    assert KEYS["login"] not in content["ssh_keys"].values(), "it stays with the service"


def run_expiry(place: Path, tag: str) -> tuple[bool, str]:
    """Run the script of the machine with programs of ours; whether it ended the machine."""
    programs = {
        "curl": f'case "$*" in *PUT*) echo token;; *) [ -n "{tag}" ] && echo "{tag}";; esac',
        "shutdown": f"echo $* > {place}/ended",
    }
    for name, text in programs.items():
        (place / name).write_text(f"#!/bin/sh\n{text}\n")
        (place / name).chmod(0o755)
    (place / "script").write_text(expiry_script(timedelta(hours=2)))
    (place / "ended").unlink(missing_ok=True)
    environment = {"PATH": f"{place}:{os.environ['PATH']}", "BULLPEN_EXPIRY": f"{place}/state"}
    subprocess.run(["sh", place / "script"], env=environment, check=True)
    return (place / "ended").exists(), (place / "state").read_text().strip()


def test_a_machine_ends_at_the_time_in_its_tag_or_without_one_after_two_hours(
    tmp_path: Path,
) -> None:
    ended, first = run_expiry(tmp_path, "")
    assert not ended
    assert run_expiry(tmp_path, "") == (False, first), "the time does not move by itself"
    assert run_expiry(tmp_path, "2100-01-01T00:00:00Z") == (False, "4102444800")
    assert run_expiry(tmp_path, "") == (False, "4102444800"), "what was read is kept"
    assert run_expiry(tmp_path, "2020-01-01T00:00:00Z") == (True, "1577836800")


async def test_without_botocore_the_account_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "bullpen.provisioners.ec2.api", raising=False)
    monkeypatch.setitem(sys.modules, "botocore", None)
    backend = Backend(key=("lab", "aws"), lab="lab-1", parameters={"region": "eu-central-1"})
    with pytest.raises(Refused, match=r"botocore.* is not installed: pip install bullpen\[ec2\]"):
        await provider().list_machines(backend)
