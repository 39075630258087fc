"""Real machines of our QEMU driver, used through the published client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from jumpstarter.common.exceptions import JumpstarterException
from jumpstarter.common.utils import serve
from jumpstarter_driver_qemu.client import QemuClient

from bullpen.drivers.qemu import Qemu

FIRMWARE = "/usr/lib/u-boot/qemu_arm64/u-boot.bin"
MIB = 1 << 20
ADDRESS = "${kernel_addr_r}"


def make(**config: Any) -> Any:
    driver: Any = Qemu
    return driver(**{"arch": "aarch64", "smp": 1, "mem": "128M", **config})


@contextlib.contextmanager
def machine(**config: Any) -> Iterator[Any]:
    driver = make(default_partitions={"bios": FIRMWARE}, **config)
    with serve(driver) as client:
        assert isinstance(client, QemuClient)
        yield client
    driver.close()


@contextlib.contextmanager
def prompt(client: Any) -> Iterator[Any]:
    """Switched on, stopped at U-Boot's prompt."""
    client.power.on()
    with at_prompt(client) as console:
        yield console


@contextlib.contextmanager
def at_prompt(client: Any) -> Iterator[Any]:
    with client.console.pexpect() as console:
        console.expect("autoboot", timeout=120)
        console.send("\n")
        console.expect("=> ", timeout=120)
        yield console


def told(console: Any, command: str) -> str:
    console.sendline(command)
    console.expect("=> ", timeout=120)
    return bytes(console.before).decode()


def beginning(console: Any, device: int = 0) -> str:
    """The first bytes of a disk, as U-Boot shows them."""
    command = f"virtio dev {device}; virtio read {ADDRESS} 0 1; md.b {ADDRESS} 20"
    return told(console, command)


@contextlib.contextmanager
def refusal(text: str) -> Iterator[None]:
    """The call inside is refused in these words, also if the client was still sending."""
    try:
        yield
    except (JumpstarterException, ExceptionGroup) as error:
        said = [str(leaf) for leaf in leaves(error)]
        assert any(text in message for message in said), said
    else:
        raise AssertionError(f"it was not refused with {text!r}")


def leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
