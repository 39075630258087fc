"""What a DeviceClaim's status records about the choice of its devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bullpen.api.fields import Struct, about


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatedClass(Struct):
    """A class of the claim's devices, as it was when they were decided."""

    name: str = field(metadata=about("The DeviceClass.", required=True))
    generation: int = field(default=0, metadata=about("Its metadata.generation."))
    requests: tuple[str, ...] = field(
        default=(),
        metadata=about("The requests whose devices are of the class.", list_type="atomic"),
    )
    config: Mapping[str, object] = field(
        default_factory=dict, metadata=about("A copy of its spec.config.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSource(Struct):
    """An object that publishes devices of the claim."""

    kind: str = field(metadata=about("Exporter or DevicePool.", required=True))
    name: str = field(metadata=about("Its name.", required=True))
    generation: int = field(
        default=0, metadata=about("Its metadata.generation when the devices were decided.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimAllocation(Struct):
    """What the choice of the claim's devices was based on."""

    classes: tuple[AllocatedClass, ...] = field(
        default=(),
        metadata=about(
            "The classes that were asked for; of a group, also those that have the devices.",
            list_type="atomic",
        ),
    )
    inventory: tuple[AllocationSource, ...] = field(
        default=(),
        metadata=about("The objects that publish the devices.", list_type="atomic"),
    )
