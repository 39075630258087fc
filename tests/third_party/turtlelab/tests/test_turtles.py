"""Turtles keep what every provisioner promises."""

from bullpen.testing.provisioner_contract import ProvisionerContract
from turtlelab.provisioner import PLUGIN


class TestTurtles(ProvisionerContract):
    plugin = PLUGIN
