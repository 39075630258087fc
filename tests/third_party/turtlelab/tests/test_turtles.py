"""Turtles keep what every provisioner promises."""

from __future__ import annotations

from turtlelab.provisioner import PLUGIN

from bullpen.testing.provisioner_contract import ProvisionerContract


class TestTurtles(ProvisionerContract):
    plugin = PLUGIN
