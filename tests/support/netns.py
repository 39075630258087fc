"""A machine of its own: a network namespace behind a bridge, whose packets can be dropped.

Neither side notices when it is unplugged: no interface goes down and nothing is refused.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest


class Machine:
    def __init__(self, number: int) -> None:
        self.name = f"bullpen-{number}"
        self._bridge, self._port, self._spare = (f"bp{end}{number}" for end in ("b", "p", "s"))
        self._network = f"198.18.{number % 256}"

    @property
    def host(self) -> str:
        """The address at which the machine reaches this one."""
        return f"{self._network}.1"

    def start(self) -> None:
        inside = ("-n", self.name)
        _ip("netns", "add", self.name)
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self.host}/24", "dev", self._bridge)
        # A bridge without ports has no carrier, which the kernel would notice.
        _ip("link", "add", self._spare, "type", "veth", "peer", "name", f"{self._spare}x")
        _ip("link", "set", f"{self._spare}x", "up")
        _ip("link", "add", self._port, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        for link in (self._spare, self._port):
            _ip("link", "set", link, "master", self._bridge, "up")
        _ip("link", "set", self._bridge, "up")
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "addr", "add", f"{self._network}.2/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")

    def stop(self) -> None:
        for link in (self._port, self._spare, self._bridge):
            subprocess.run(["ip", "link", "del", link], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)

    def unplug(self) -> None:
        """Drop all packets from and to the machine."""
        _ip("link", "set", self._port, "nomaster")

    def plug(self) -> None:
        _ip("link", "set", self._port, "master", self._bridge)

    def inside(self, *command: str) -> list[str]:
        """The command that runs ``command`` on the machine."""
        return ["ip", "netns", "exec", self.name, *command]


@contextlib.contextmanager
def machine() -> Iterator[Machine]:
    """A machine, until the block ends; skips the test where none can be made."""
    made = Machine(os.getpid() % 65_536)
    try:
        made.start()
    except (OSError, subprocess.CalledProcessError) as error:
        made.stop()
        pytest.skip(f"network namespaces cannot be made here: {error}")
    try:
        yield made
    finally:
        made.stop()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
