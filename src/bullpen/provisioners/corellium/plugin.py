"""The plugin of Corellium."""

from __future__ import annotations

from bullpen.provisioners.base import Plugin
from bullpen.provisioners.corellium.api import http_api
from bullpen.provisioners.corellium.provider import NAME, CorelliumProvider


def provider() -> CorelliumProvider:
    return CorelliumProvider(http_api)


PLUGIN = Plugin(
    name=NAME,
    provider=provider,
    preload=("bullpen.drivers.corellium", "jumpstarter_driver_composite.driver"),
)
