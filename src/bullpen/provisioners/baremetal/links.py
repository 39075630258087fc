"""What the provisioner of hosts needs: connections, which ``ssh`` provides, and records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from bullpen.core.targets.backends import HostLoad
from bullpen.core.targets.hosts import Placed
from bullpen.placements.base import InstanceSpec, Key
from bullpen.provisioners.baremetal.parameters import HostParameters
from bullpen.provisioners.base import Instance
from bullpen.provisioners.provider import BackendRecords


class HostLink(Protocol):
    """An open connection to the agents of a host.

    Calls raise ``Unreachable`` if no answer comes, else what the agent raises.
    """

    load: HostLoad | None
    """How busy the host was at the last listing; None if its agents do not say."""

    async def list_instances(self) -> tuple[Instance, ...]:
        """Every instance of every agent of this lab there."""

    async def ensure(self, spec: InstanceSpec) -> Instance:
        """Start it with the current agent, or return the instance that some agent has."""

    async def update_credentials(self, spec: InstanceSpec) -> None: ...

    async def remove(self, key: Key) -> None: ...

    async def retire(self, key: Key) -> None: ...

    def close(self) -> None:
        """Disconnect; the agents go on for a while."""

    def leave(self) -> None:
        """Disconnect for good: the agents end with their last instance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Visit:
    """Everything that is needed to connect to a host."""

    host: HostParameters
    lab: str
    """Names the directory of this lab's agents at the host."""

    credentials: Mapping[str, bytes] = field(repr=False)
    changed: Callable[[Key, Instance | None], None]
    """Called for each change of an instance."""

    lost: Callable[[str], None]
    """Called once with the cause when the connection ends by itself."""


class Connector(Protocol):
    async def __call__(self, visit: Visit) -> HostLink:
        """Connect. Raises ``Unreachable`` or ``Refused`` with what is to be done."""


class HostRecords(BackendRecords, Protocol):
    """The durable record of which host an instance was given."""

    async def place(self, key: Key, on_record: Placed) -> None:
        """Record it; returns when the record is durable. Raises ``Refused`` if it is deleted."""

    async def placed(self, key: Key) -> Placed | None:
        """What is on record for an Exporter; None if nothing is."""

    async def all_placed(self, provisioner: str) -> Mapping[Key, Placed]:
        """What is on record for all Exporters of a provisioner."""
