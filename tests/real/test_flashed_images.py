"""A flashed image cannot make QEMU open a file of the host, whenever and however it is flashed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from anyio import EndOfStream, to_thread
from anyio.abc import ObjectStream
from jumpstarter.client.adapters import blocking
from jumpstarter.common.exceptions import JumpstarterException

from bullpen.drivers import flasher
from bullpen.drivers.image_headers import ImageHeader
from support.qemu_machine import ADDRESS, MIB, at_prompt, beginning, machine, prompt, refusal, told

pytestmark = pytest.mark.real

SECRET = b"host-secret-text"
ROOT = {"disks": [{"name": "root", "size": 8 * MIB}]}
GATE = """#!/bin/sh
touch {gate}/waiting
while [ ! -e {gate}/open ]; do sleep 0.05; done
exec {program} "$@"
"""
"""QEMU that waits before it opens anything, as it would on a busy machine."""


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET.ljust(MIB, b"."))
    return path


@pytest.fixture
def plain(tmp_path: Path) -> str:
    path = tmp_path / "plain"
    path.write_bytes(b"plain image data".ljust(MIB, b"."))
    return str(path)


@pytest.fixture
def reader(tmp_path: Path, secret: Path) -> str:
    """An image that shows its guest a file of the host."""
    return qcow2(tmp_path / "reader", "-b", str(secret), "-F", "raw")


def qcow2(path: Path, *options: str) -> str:
    subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *options, path, "1M"], check=True)
    return str(path)


@contextlib.contextmanager
def slow_qemu(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory in which ``waiting`` appears before QEMU opens its files; ``open`` lets it."""
    gate = directory / "gate"
    gate.mkdir()
    program = gate / "qemu-system-aarch64"
    program.write_text(GATE.format(gate=gate, program="/usr/bin/qemu-system-aarch64"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{gate}:{os.environ['PATH']}")
    yield gate
    (gate / "open").touch()


def open_files() -> set[str]:
    """What QEMU has open."""
    children = psutil.Process().children(recursive=True)
    found = [child for child in children if child.name().startswith("qemu-system")]
    assert found, "QEMU runs"
    return {file.path for child in found for file in child.open_files()}


def wait_for(path: Path) -> None:
    for _ in range(400):
        if path.exists():
            return
        threading.Event().wait(0.05)
    raise AssertionError(f"{path} never appeared")


def test_flashing_while_the_machine_is_switched_on_changes_nothing_that_qemu_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain: str, reader: str, secret: Path
) -> None:
    with slow_qemu(tmp_path, monkeypatch) as gate, machine(**ROOT) as client:
        client.flasher.flash(plain, target="root")
        switching = threading.Thread(target=client.power.on)
        switching.start()
        wait_for(gate / "waiting")
        with refusal("being switched on"):
            client.flasher.flash(reader, target="root")
        (gate / "open").touch()
        switching.join()
        assert str(secret) not in open_files()
        with at_prompt(client) as console:
            assert "plain image data" in beginning(console)


def test_switching_on_while_an_image_is_flashed_is_refused(plain: str) -> None:
    with machine(**ROOT) as client:
        errors: list[str] = []

        def slow() -> Iterator[bytes]:
            yield b"the first half"
            try:
                client.power.on()
            except JumpstarterException as error:
                errors.append(str(error))
            yield b"the second half"

        stream_to(client.flasher, slow())
        assert "being flashed" in errors[0]
        with prompt(client) as console:
            assert "the first half" in beginning(console)


def stream_to(flasher: Any, content: Iterator[bytes]) -> None:
    """Flash the disk ``root`` from chunks made one by one."""

    class Chunks(ObjectStream[bytes]):
        async def receive(self) -> bytes:
            chunk = await to_thread.run_sync(next, content, b"")
            if not chunk:
                raise EndOfStream
            return chunk

        async def send(self, item: bytes) -> None:
            raise NotImplementedError

        async def send_eof(self) -> None:
            """Nothing is sent."""

        async def aclose(self) -> None:
            """Nothing is open."""

    @blocking  # type: ignore[untyped-decorator]
    @contextlib.asynccontextmanager
    async def handed(client: Any) -> Any:
        async with client.resource_async(Chunks(), content_encoding=None) as handle:
            yield handle

    with handed(client=flasher) as handle:
        flasher.call("flash", handle, "root")


def test_a_machine_that_is_on_is_not_flashed(plain: str) -> None:
    with machine(**ROOT) as client:
        client.power.on()
        with refusal("switch it off first"):
            client.flasher.flash(plain, target="root")
        client.power.off()
        client.flasher.flash(plain, target="root")
        with prompt(client) as console:
            assert "plain image data" in beginning(console)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(
            ("-f", "qcow2", "-b", "/etc/hostname", "-F", "raw"),
            "refers to other files",
            id="an image with a file of the host behind it",
        ),
        pytest.param(
            ("-f", "qcow2", "-o", "data_file={directory}/data"),
            "refers to other files",
            id="an image whose data is elsewhere",
        ),
        pytest.param(("-f", "vmdk"), "vmdk", id="a format that can do the same"),
        pytest.param(("-f", "qed"), "qed", id="another one"),
    ],
)
def test_an_image_that_would_open_files_of_the_host_is_refused_when_it_is_flashed(
    tmp_path: Path, arguments: tuple[str, ...], expected: str
) -> None:
    chosen = [part.format(directory=tmp_path) for part in arguments]
    subprocess.run(["qemu-img", "create", "-q", *chosen, tmp_path / "x", "1M"], check=True)
    with machine() as client, refusal(expected):
        client.flasher.flash(str(tmp_path / "x"), target="root")


def test_without_the_check_of_its_header_an_image_still_shows_no_file_of_the_host(
    reader: str, monkeypatch: pytest.MonkeyPatch, secret: Path
) -> None:
    unchecked = ImageHeader(format="qcow2", virtual_bytes=MIB)
    monkeypatch.setattr(flasher, "read_header", lambda *_, **__: unchecked)
    with machine(**ROOT) as client:
        client.flasher.flash(reader, target="root")
        with prompt(client) as console:
            assert SECRET.decode() not in beginning(console)
            assert str(secret) not in open_files()


def test_a_guest_that_turns_its_raw_disk_into_a_referring_image_reads_back_what_it_wrote(
    tmp_path: Path, plain: str, reader: str, secret: Path
) -> None:
    """The format of a disk is decided once, when it is flashed, not at every power-on."""
    content = Path(reader).read_bytes()
    parcel = tmp_path / "parcel"
    parcel.write_bytes(bytes(512) + content)
    sectors = f"{len(content) // 512:x}"
    disks = [{"name": "root", "size": 8 * MIB}, {"name": "data", "size": 8 * MIB}]
    with machine(disks=disks) as client:
        client.flasher.flash(plain, target="root")
        client.flasher.flash(str(parcel), target="data")
        with prompt(client) as console:
            root, data = (0, 1) if "plain" in beginning(console) else (1, 0)
            told(console, f"virtio dev {data}; virtio read {ADDRESS} 1 {sectors}")
            told(console, f"virtio dev {root}; virtio write {ADDRESS} 0 {sectors}")
        client.power.off()
        with prompt(client) as console:
            assert "QFI" in beginning(console, root)
            assert str(secret) not in open_files()


def test_only_partitions_of_the_machine_can_be_flashed(plain: str) -> None:
    with machine(**ROOT) as client:
        for name in ("../root", "/etc/passwd", "root.overlay", "initrd", "root.flashed-1"):
            with refusal("invalid partition name"):
                client.flasher.flash(plain, target=name)
