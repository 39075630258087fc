"""A small Linux guest with a network card, in which tests are root."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"
PROMPT = "guest# "
BOOT_SECONDS_MAX = 300
COMMAND_SECONDS_MAX = 120


def build(directory: Path) -> dict[str, str]:
    """Kernel, initial RAM disk and command line of the example's guest."""
    spec = importlib.util.spec_from_file_location("linux_image", EXAMPLES / "linux_image.py")
    assert spec is not None
    assert spec.loader is not None
    image: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(image)
    image.MODULES = (*image.MODULES, "virtio_net")
    image.main(directory)
    return {
        "kernel": str(directory / "vmlinuz"),
        "initrd": str(directory / "initrd"),
        "append": "console=ttyS0 quiet",
    }


@contextlib.contextmanager
def root_shell(console: Any) -> Iterator[Any]:
    """The guest's console, logged in; call what comes with a command."""

    def run(command: str) -> str:
        console.sendline(command)
        console.expect_exact(PROMPT, timeout=COMMAND_SECONDS_MAX)
        return bytes(console.before).decode(errors="replace")

    console.expect("login: ", timeout=BOOT_SECONDS_MAX)
    console.sendline("root")
    console.expect("/ # ", timeout=COMMAND_SECONDS_MAX)
    console.sendline(f"stty -echo; PS1='{PROMPT[:3]}''{PROMPT[3:]}'")
    console.expect_exact(PROMPT, timeout=COMMAND_SECONDS_MAX)
    yield run


def with_network(run: Any) -> None:
    run("ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0")
    run("ip route add default via 10.0.2.2")
