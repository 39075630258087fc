"""Parameters of a class of Cuttlefish devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from bullpen.api.fields import Struct, about
from bullpen.provisioners.parameters import AMOUNT_PATTERN


@dataclass(frozen=True, slots=True, kw_only=True)
class CuttlefishParameters(Struct):
    """Parameters of a class."""

    env_config: Mapping[str, object] = field(
        default_factory=dict,
        metadata=about(
            "The device as cvd load describes it: an object whose list instances has one element."
            " The names of the group and the instance are the service's to choose.",
            required=True,
        ),
    )
    hourly_cost: str = field(
        default="",
        metadata=about(
            "Estimated cost of a device per hour, for limits and reports; unknown if empty.",
            pattern=AMOUNT_PATTERN,
        ),
    )


def problems(wanted: CuttlefishParameters) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """What a schema cannot express: the path in the parameters, and what is wrong there."""
    found = wanted.env_config.get("instances")
    if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], dict):
        yield ("envConfig", "instances"), "must be a list of one object: a target is one device"
    elif "name" in found[0]:
        yield ("envConfig", "instances", 0, "name"), "is the service's to choose"
    common = wanted.env_config.get("common", {})
    if not isinstance(common, dict):
        yield ("envConfig", "common"), "must be an object"
    elif "group_name" in common:
        yield ("envConfig", "common", "group_name"), "is the service's to choose"
