"""``qemu-baremetal.jumpstarter.dev``: QEMU machines on other hosts, which are reached by SSH.

``agent``, ``attach`` and ``host_setup`` run on such a host; everything else runs here.
"""
