"""The plugin of Cuttlefish."""

from __future__ import annotations

from bullpen.kit.ids import RandomIds
from bullpen.provisioners.base import Plugin
from bullpen.provisioners.cuttlefish.provider import NAME, CuttlefishProvider, http_api


def provider() -> CuttlefishProvider:
    return CuttlefishProvider(http_api, RandomIds())


PLUGIN = Plugin(
    name=NAME,
    provider=provider,
    preload=("bullpen.drivers.cuttlefish", "jumpstarter_driver_composite.driver"),
)
