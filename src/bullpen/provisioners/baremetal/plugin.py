"""The plugin of hosts."""

from __future__ import annotations

import platform

from bullpen.errors import Refused
from bullpen.kit.clock import Clock
from bullpen.kit.ids import Ids
from bullpen.provisioners.baremetal.links import Connector, HostLink, HostRecords, Visit
from bullpen.provisioners.baremetal.provisioner import HostsProvisioner
from bullpen.provisioners.baremetal.recipe import NAME, HostRecipe
from bullpen.provisioners.base import Plugin


class LazyConnector:
    """Loads the SSH library when there is a host to connect to."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._loaded: Connector | None = None

    async def __call__(self, visit: Visit) -> HostLink:
        if self._loaded is None:
            try:
                from bullpen.provisioners.baremetal.ssh import SshConnector
            except ModuleNotFoundError as error:
                raise Refused(f"{error.name} is not installed: pip install bullpen[ssh]") from None
            self._loaded = SshConnector(self._ids)
        return await self._loaded(visit)


def hosts(records: HostRecords, clock: Clock, ids: Ids) -> HostsProvisioner:
    recipe = HostRecipe(host_arch=platform.machine())
    return HostsProvisioner(recipe, records, LazyConnector(ids), clock=clock)


PLUGIN = Plugin(name=NAME, hosts=hosts)
