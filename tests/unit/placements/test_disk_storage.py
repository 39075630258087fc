"""Lasting disks on this machine, with the real qemu-img: whole after a crash, or absent."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bullpen.api.kinds.virtualdisk import DiskImage, ImageFormat, VirtualDisk, VirtualDiskSpec
from bullpen.api.meta import ObjectMeta
from bullpen.core.targets.disks import Create
from bullpen.errors import NoCapacity, Refused, StorageFailed
from bullpen.placements.base import DiskStorage
from bullpen.placements.local import capacity, disk_storage
from bullpen.placements.local.disk_storage import LocalDiskStorage
from bullpen.placements.local.layout import Layout
from bullpen.placements.memory_disks import MemoryDiskStorage

KEY, UID, MIB = ("lab", "root"), "7d1f", 1 << 20


@pytest.fixture
def storage(tmp_path: Path) -> LocalDiskStorage:
    made = LocalDiskStorage(tmp_path, host="here")
    made.prepare()
    return made


@pytest.fixture
def image(tmp_path: Path) -> Path:
    path = tmp_path / "image.raw"
    path.write_bytes(random.Random(1).randbytes(MIB) * 2)
    return path


def raw(path: Path, digest: str = "") -> DiskImage:
    return DiskImage(path=str(path), format=ImageFormat.RAW, digest=digest)


def content(tmp_path: Path, key: tuple[str, str] = KEY, uid: str = UID) -> bytes:
    path, out = Layout(tmp_path).disk(key, uid), tmp_path / "out.raw"
    subprocess.run(["qemu-img", "convert", "-O", "raw", str(path), str(out)], check=True)
    return out.read_bytes()


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in Layout(tmp_path).disks.iterdir())


@pytest.mark.parametrize("kind", ["qemu-img", "memory"])
async def test_a_blank_disk_is_created_once_grows_and_goes(tmp_path: Path, kind: str) -> None:
    storage: DiskStorage = MemoryDiskStorage()
    if kind == "qemu-img":
        local = storage = LocalDiskStorage(tmp_path, host="here")
        local.prepare()
    assert await storage.look(KEY, UID) is None
    for _ in range(2):
        assert (await storage.create(KEY, UID, Create(size_bytes=8 * MIB))).virtual_bytes == 8 * MIB
    for size in (16 * MIB, 4 * MIB):
        assert (await storage.grow(KEY, UID, size)).virtual_bytes == 16 * MIB
    found = await storage.look(KEY, UID)
    assert found is not None
    assert 0 < found.allocated_bytes < MIB
    for _ in range(2):
        await storage.delete(KEY, UID)
    assert await storage.look(KEY, UID) is None
    assert kind == "memory" or left(tmp_path) == []


async def test_a_disk_has_the_content_of_its_image_and_then_its_own_size(
    storage: LocalDiskStorage, tmp_path: Path, image: Path
) -> None:
    digest = f"sha256:{hashlib.sha256(image.read_bytes()).hexdigest()}"
    made = await storage.create(KEY, UID, Create(size_bytes=4 * MIB, image=raw(image, digest)))
    assert made.virtual_bytes == 4 * MIB
    assert content(tmp_path) == image.read_bytes() + bytes(2 * MIB)
    image.unlink()
    found = await storage.look(KEY, UID)
    assert found is not None
    assert not found.problem


async def test_a_copy_does_not_depend_on_its_source(
    storage: LocalDiskStorage, tmp_path: Path, image: Path
) -> None:
    await storage.create(KEY, UID, Create(size_bytes=None, image=raw(image)))
    meta = ObjectMeta(namespace="lab", name="root", uid=UID)
    golden = VirtualDisk(metadata=meta, spec=VirtualDiskSpec())
    copy = ("lab", "copy")
    await storage.create(copy, "2", Create(size_bytes=None, copy_of=golden))
    await storage.delete(KEY, UID)
    assert content(tmp_path, copy, "2") == image.read_bytes()


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (Create(size_bytes=MIB, image=DiskImage(path="/IMAGE")), "has 2097152"),
        (
            Create(size_bytes=None, image=DiskImage(path="/IMAGE", digest="sha256:0")),
            "not sha256:0",
        ),
        (Create(size_bytes=None, image=DiskImage(path="/nowhere")), "/nowhere is not a file"),
    ],
    ids=["smaller than its source", "another digest", "no file"],
)
async def test_a_wrong_source_is_refused_and_leaves_nothing(
    storage: LocalDiskStorage, tmp_path: Path, image: Path, step: Create, message: str
) -> None:
    assert step.image is not None
    path = step.image.path.replace("/IMAGE", str(image))
    given = DiskImage(path=path, digest=step.image.digest, format=ImageFormat.RAW)
    with pytest.raises(Refused, match=message):
        await storage.create(KEY, UID, Create(size_bytes=step.size_bytes, image=given))
    assert left(tmp_path) == []


async def test_a_full_disk_is_an_error_before_anything_is_written(
    storage: LocalDiskStorage, tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "free_disk", lambda _: capacity.DISK_BYTES_MIN + MIB)
    with pytest.raises(NoCapacity, match="are free below"):
        await storage.create(KEY, UID, Create(size_bytes=None, image=raw(image)))
    assert left(tmp_path) == []
    await storage.create(KEY, UID, Create(size_bytes=MIB))


async def test_a_disk_that_fills_up_while_copying_leaves_nothing(
    storage: LocalDiskStorage, tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit on the size of files stands for the full disk: the same error of the tool."""
    import resource

    real = asyncio.create_subprocess_exec

    async def limited(*arguments: Any, **options: Any) -> Any:
        if "convert" in arguments:
            options["preexec_fn"] = _small_files
        return await real(*arguments, **options)

    def _small_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", limited)
    with pytest.raises(NoCapacity, match="File too large"):
        await storage.create(KEY, UID, Create(size_bytes=None, image=raw(image)))
    assert left(tmp_path) == []


async def test_a_damaged_file_is_reported_and_kept(
    storage: LocalDiskStorage, tmp_path: Path
) -> None:
    await storage.create(KEY, UID, Create(size_bytes=MIB))
    path = Layout(tmp_path).disk(KEY, UID)
    path.write_bytes(b"garbage" + path.read_bytes()[7:])
    found = await storage.look(KEY, UID)
    assert found is not None
    assert "not in qcow2 format" in found.problem
    assert path.exists()


async def test_the_tool_looks_at_a_disk_again_only_when_it_was_changed(
    storage: LocalDiskStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    real = disk_storage._tool

    async def counted(*arguments: str) -> bytes:
        calls.append(arguments[0])
        return await real(*arguments)

    monkeypatch.setattr(disk_storage, "_tool", counted)
    # A size that the tool rounds up: what is known of a new disk is what the tool would say.
    made = await storage.create(KEY, UID, Create(size_bytes=8 * MIB - 100))
    for _ in range(3):
        assert await storage.look(KEY, UID) == made
    assert calls == ["create"]

    path = Layout(tmp_path).disk(KEY, UID)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    for _ in range(3):
        assert await storage.look(KEY, UID) == made
    assert made.virtual_bytes == 8 * MIB
    assert calls == ["create", "info"]

    path.unlink()
    assert await storage.look(KEY, UID) is None
    assert calls == ["create", "info"]


async def test_a_file_deleted_by_hand_comes_back_from_the_machine_that_has_it(
    storage: LocalDiskStorage, tmp_path: Path
) -> None:
    await storage.create(KEY, UID, Create(size_bytes=MIB))
    path = Layout(tmp_path).disk(KEY, UID)
    link = Layout(tmp_path).attached(("lab", "vm"), path.name)
    link.parent.mkdir(parents=True)
    os.link(path, link)
    path.unlink()
    assert await storage.look(KEY, UID) is None
    found = await storage.look(KEY, UID, attached_to="vm")
    assert found is not None
    assert path.samefile(link)


KILLED = """
import asyncio, pathlib, sys
from bullpen.api.kinds.virtualdisk import DiskImage, ImageFormat, VirtualDisk, VirtualDiskSpec
from bullpen.api.meta import ObjectMeta
from bullpen.core.targets.disks import Create
from bullpen.placements.local.disk_storage import LocalDiskStorage

async def main(data, image):
    storage = LocalDiskStorage(pathlib.Path(data), host="here")
    storage.prepare()
    step = Create(size_bytes=None, image=DiskImage(path=image, format=ImageFormat.RAW))
    print("ready", flush=True)
    number = 0
    while True:
        key, copy = ("lab", f"disk-{number}"), ("lab", f"copy-{number}")
        await storage.create(key, "1", step)
        meta = ObjectMeta(namespace="lab", name=key[1], uid="1")
        source = VirtualDisk(metadata=meta, spec=VirtualDiskSpec())
        await storage.create(copy, "1", Create(size_bytes=None, copy_of=source))
        await storage.grow(key, "1", 64 << 20)
        if number % 2:
            await storage.delete(key, "1")
            await storage.delete(copy, "1")
        number += 1

asyncio.run(main(*sys.argv[1:]))
"""


async def check_unlocked(path: Path) -> subprocess.CompletedProcess[str]:
    """The result of ``qemu-img check``, once the ``qemu-img`` of a killed process has ended."""
    async with asyncio.timeout(60):
        while True:
            checked = subprocess.run(
                ["qemu-img", "check", "-q", str(path)], check=False, capture_output=True, text=True
            )
            if "lock" not in checked.stderr:
                return checked
            await asyncio.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
async def test_kill_9_at_any_moment_leaves_whole_disks_or_none(
    tmp_path: Path, image: Path, seed: int
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path), str(image)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    await asyncio.sleep(random.Random(seed).uniform(0.02, 0.6))  # the moment of the kill
    process.kill()
    process.communicate()
    storage = LocalDiskStorage(tmp_path, host="here")
    storage.prepare()
    for path in Layout(tmp_path).disks.iterdir():
        assert not path.name.endswith(disk_storage.TEMPORARY)
        checked = await check_unlocked(path)
        # 3 means leaked clusters only: space, no damage.
        assert checked.returncode in (0, 3), (path.name, checked.stderr)
        name = path.name.split("~")[0].removeprefix("lab.")
        found = await storage.look(("lab", name), "1")
        assert found is not None
        assert found.virtual_bytes in (2 * MIB, 64 * MIB)
        assert content(tmp_path, ("lab", name), "1")[: 2 * MIB] == image.read_bytes()


async def test_a_killed_tool_is_no_damage_of_the_disk(
    storage: LocalDiskStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await storage.create(KEY, UID, Create(size_bytes=MIB))
    tool = tmp_path / "bin" / "qemu-img"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\nkill -ABRT $$\n")
    tool.chmod(0o755)
    os.utime(Layout(tmp_path).disk(KEY, UID))  # So that the tool is asked again.
    with monkeypatch.context() as patched:
        patched.setattr(os, "defpath", f"{tool.parent}:{os.defpath}")
        with pytest.raises(StorageFailed, match="signal 6"):
            await storage.look(KEY, UID)
    found = await storage.look(KEY, UID)
    assert found is not None
    assert not found.problem
