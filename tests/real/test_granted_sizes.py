"""A lessee gets the memory and the disks that the class grants, and no more."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.qemu_machine import MIB, machine, prompt, refusal, told

pytestmark = pytest.mark.real

ROOT = {"disks": [{"name": "root", "size": 8 * MIB}]}


@pytest.mark.parametrize("size", ["3G", "129M", "4096M", "134217729", "1T", "999999999999999999T"])
def test_memory_beyond_the_class_is_refused_and_the_most_is_named(size: str) -> None:
    with machine() as client, refusal("grants between 1M and 128M"):
        client.set_memory_size(size)


def test_memory_within_the_class_is_what_the_machine_gets() -> None:
    with machine() as client:
        client.set_memory_size("64M")
        with prompt(client) as console:
            assert "0x4000000" in told(console, "bdinfo")
        client.power.off()
        client.set_memory_size("128M")
        client.power.on()


@pytest.mark.parametrize("size", ["-1", "1e9", "128M,maxmem=8G", "", "0x100", "64M\n", "5", "0"])
def test_what_is_no_size_is_refused(size: str) -> None:
    """QEMU reads a bare number as MiB; here it is bytes, so 5 is too little."""
    with machine() as client, refusal(""):
        client.set_memory_size(size)


def test_a_disk_beyond_the_class_is_refused_and_the_most_is_named() -> None:
    with machine(**ROOT) as client:
        with refusal("grants at most 8M"):
            client.set_disk_size("9M")
        client.set_disk_size("8M")


def test_a_disk_with_a_base_and_no_size_is_as_large_as_its_base(tmp_path: Path) -> None:
    base = tmp_path / "base"
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", base, "4M"], check=True)
    with (
        machine(disks=[{"name": "root", "base": str(base)}]) as client,
        refusal("grants at most 4M"),
    ):
        client.set_disk_size("5M")


def test_a_disk_the_class_says_nothing_about_has_a_limit_all_the_same() -> None:
    with machine() as client, refusal("grants at most 16G"):
        client.set_disk_size("17G")


def test_what_a_template_says_about_its_machine_is_granted() -> None:
    with machine(disk_size="12M", **ROOT) as client:
        client.set_disk_size("12M")
        with refusal("grants at most 12M"):
            client.set_disk_size("13M")


@pytest.mark.parametrize(
    "image",
    [
        pytest.param("raw", id="by its bytes"),
        pytest.param("qcow2", id="by what it says of itself"),
    ],
)
def test_an_image_larger_than_the_disk_is_refused(tmp_path: Path, image: str) -> None:
    path = tmp_path / "image"
    subprocess.run(["qemu-img", "create", "-q", "-f", image, path, "9M"], check=True)
    with machine(**ROOT) as client, refusal("grants at most 8M"):
        client.flasher.flash(str(path), target="root")


def test_a_small_file_that_unpacks_to_more_than_the_disk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "image"
    path.write_bytes(bytes(512 * MIB))
    subprocess.run(["gzip", path], check=True)
    with machine(**ROOT) as client, refusal("grants at most 8M"):
        client.flasher.flash(f"{path}.gz", target="root")


def test_firmware_has_a_limit_too(tmp_path: Path) -> None:
    path = tmp_path / "firmware"
    path.write_bytes(bytes(65 * MIB))
    with machine() as client, refusal("grants at most 64M"):
        client.flasher.flash(str(path), target="bios")
