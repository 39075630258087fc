"""What runs on a host: the QEMU machines of ``qemu.jumpstarter.dev``, under another name."""

from __future__ import annotations

from bullpen.provisioners.qemu import PLUGIN as QEMU
from bullpen.provisioners.qemu import QemuRecipe

NAME = "qemu-baremetal.jumpstarter.dev"
PRELOAD = QEMU.preload


class HostRecipe(QemuRecipe):
    """The same parameters and drivers; only where the machine runs differs."""

    name = NAME
