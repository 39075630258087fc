"""The requests that create an instance, in the order in which they are tried. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from bullpen.core.targets.backends import settings_of
from bullpen.provisioners.ec2.parameters import TAG_PREFIX, Ec2Parameters, LaunchTemplate, Market
from bullpen.provisioners.ec2.user_data import user_data
from bullpen.provisioners.provider import Order

Request = dict[str, Any]
"""Parameters of RunInstances."""

LAB, KEY, UID = f"{TAG_PREFIX}lab", f"{TAG_PREFIX}key", f"{TAG_PREFIX}uid"
EXPIRES = f"{TAG_PREFIX}expires"
SSH = f"{TAG_PREFIX}ssh"
"""Which address is used, and the port of the SSH server."""

HOURLY_COST = f"{TAG_PREFIX}hourly-cost"
LASTING = f"{TAG_PREFIX}lasting"
"""Of the machine of a lasting target: whether it is stopped or hibernated."""

CONTROL = f"{TAG_PREFIX}control"
"""The exporter may switch it."""

STOPS, HIBERNATES = "stop", "hibernate"
SETTINGS = f"{TAG_PREFIX}settings"


def requests(
    order: Order,
    wanted: Ec2Parameters,
    *,
    lab: str,
    image: Mapping[str, Any] | None,
    template: Mapping[str, Any] | None = None,
) -> Iterator[Request]:
    """One request for every type and place.

    ``image``: as DescribeImages shows it; None if the launch template has it under another name
    than its id. ``template``: what the launch template says, if there is one. Nothing in a request
    depends on the time, because EC2 refuses to repeat a creation whose parameters differ.
    """
    places: list[Request] = [
        *({"subnet": subnet} for subnet in wanted.subnet_ids),
        *({"zone": zone} for zone in wanted.availability_zones),
    ]
    for kind, place in product(wanted.instance_types, places or [{}]):
        yield {
            **_common(order, wanted, lab=lab, image=image, template=template),
            **_network(wanted, place.get("subnet", "")),
            **({"Placement": {"AvailabilityZone": place["zone"]}} if "zone" in place else {}),
            "InstanceType": kind,
        }


def with_token(request: Request, order: Order, attempt: int) -> Request:
    """The request with the token that makes it safe to repeat.

    EC2 answers with the instance of a token for a long time, also after its end: ``attempt`` is
    raised while that instance has ended.
    """
    text = json.dumps([order.token, attempt, request], sort_keys=True)
    return {**request, "ClientToken": hashlib.sha256(text.encode()).hexdigest()}


def template_of(wanted: LaunchTemplate) -> Request:
    """The parameters that name it."""
    if wanted.id:
        return {"LaunchTemplateId": wanted.id}
    return {"LaunchTemplateName": wanted.name}


def _common(
    order: Order,
    wanted: Ec2Parameters,
    *,
    lab: str,
    image: Mapping[str, Any] | None,
    template: Mapping[str, Any] | None,
) -> Request:
    text = user_data(order.keys, wanted.user_data)
    made: Request = {
        "MinCount": 1,
        "MaxCount": 1,
        # Its timer shuts it down: a lasting target must not lose its disks then.
        "InstanceInitiatedShutdownBehavior": "stop" if order.profile.lasting else "terminate",
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 1,
            "InstanceMetadataTags": "enabled",
        },
        "UserData": text,  # botocore encodes it
        "TagSpecifications": _tags(order, wanted, lab=lab),
    }
    if image is not None:
        made["ImageId"] = image["ImageId"]
    disks = list(_disks(wanted, image or {}, template or {}))
    if disks:
        made["BlockDeviceMappings"] = disks
    if wanted.launch_template is not None:
        chosen = wanted.launch_template
        made["LaunchTemplate"] = {**template_of(chosen), "Version": chosen.version}
    if wanted.iam_instance_profile:
        kind = "Arn" if wanted.iam_instance_profile.startswith("arn:") else "Name"
        made["IamInstanceProfile"] = {kind: wanted.iam_instance_profile}
    if order.profile.lasting and wanted.hibernate:
        made["HibernationOptions"] = {"Configured": True}
    if wanted.market is Market.SPOT:
        made["InstanceMarketOptions"] = _spot(wanted)
    return made


def _spot(wanted: Ec2Parameters) -> Request:
    price = {"MaxPrice": wanted.spot_max_price} if wanted.spot_max_price else {}
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    return {"MarketType": "spot", "SpotOptions": {**options, **price}}


def _network(wanted: Ec2Parameters, subnet: str) -> Request:
    groups = list(wanted.security_group_ids)
    if not wanted.associate_public_ip:
        return {
            **({"SubnetId": subnet} if subnet else {}),
            **({"SecurityGroupIds": groups} if groups else {}),
        }
    interface = {
        "DeviceIndex": 0,
        "AssociatePublicIpAddress": True,
        "DeleteOnTermination": True,
        **({"SubnetId": subnet} if subnet else {}),
        **({"Groups": groups} if groups else {}),
    }
    return {"NetworkInterfaces": [interface]}


def _disks(
    wanted: Ec2Parameters, image: Mapping[str, Any], template: Mapping[str, Any]
) -> Iterator[Request]:
    """Every disk of the image and of the launch template, so that none outlives the instance."""
    given, changed = _volumes(image), _volumes(template)
    for name in dict.fromkeys((*given, *changed)):
        size = given.get(name, {}).get("VolumeSize")
        disk = {**({"VolumeSize": size} if size else {}), **changed.get(name, {})}
        if name == image.get("RootDeviceName", ""):
            disk |= _root(wanted)
        yield {"DeviceName": name, "Ebs": {**disk, "DeleteOnTermination": True}}


def _volumes(found: Mapping[str, Any]) -> dict[str, Request]:
    mappings = found.get("BlockDeviceMappings", ())
    return {each["DeviceName"]: each["Ebs"] for each in mappings if "Ebs" in each}


def _root(wanted: Ec2Parameters) -> Request:
    volume = wanted.root_volume
    if volume is None:
        return {}
    chosen = {
        "VolumeSize": volume.size_gib,
        "VolumeType": volume.type,
        "Iops": volume.iops,
        "Encrypted": volume.encrypted,
        "KmsKeyId": volume.kms_key_id,
    }
    return {name: value for name, value in chosen.items() if value}


def _lasting(order: Order, wanted: Ec2Parameters) -> dict[str, str]:
    return {
        LASTING: HIBERNATES if wanted.hibernate else STOPS,
        SETTINGS: settings_of(order.profile.parameters),
    }


def _tags(order: Order, wanted: Ec2Parameters, *, lab: str) -> list[Request]:
    """Given at the creation, so that there is no moment without them."""
    tags = {
        **wanted.tags,
        "Name": wanted.tags.get("Name", "-".join(order.key)),
        LAB: lab,
        KEY: "/".join(order.key),
        UID: order.owner_uid,
        SSH: f"{wanted.address}:{wanted.ssh.port}",
        **({HOURLY_COST: wanted.hourly_cost} if wanted.hourly_cost else {}),
        **({CONTROL: "true"} if wanted.control else {}),
        **(_lasting(order, wanted) if order.profile.lasting else {}),
    }
    listed = [{"Key": name, "Value": value} for name, value in sorted(tags.items())]
    kinds = ["instance", "volume", "network-interface"]
    if wanted.market is Market.SPOT:
        kinds.append("spot-instances-request")
    return [{"ResourceType": kind, "Tags": listed} for kind in kinds]
