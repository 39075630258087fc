"""The file of a lasting disk in a Pod, made and grown by the real qemu-img."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from bullpen.placements.pod import disk_content

MIB = 1 << 20
TOOL = "qemu-img"

pytestmark = pytest.mark.skipif(shutil.which(TOOL) is None, reason="there is no qemu-img here")


def tool(*words: str) -> str:
    done = subprocess.run([TOOL, *words], capture_output=True, text=True, check=True, timeout=30)
    return done.stdout


def size(path: Path) -> int:
    return int(json.loads(tool("info", "--output=json", str(path)))["virtual-size"])


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """Four MiB with a known content."""
    raw = tmp_path / "image.raw"
    raw.write_bytes(b"bullpen!" * (4 * MIB // 8))
    made = tmp_path / "image.qcow2"
    tool("convert", "-f", "raw", "-O", "qcow2", str(raw), str(made))
    return made


def test_a_blank_disk_is_made_once_and_grows(tmp_path: Path) -> None:
    path = tmp_path / "disk.qcow2"
    disk_content.ensure({"path": str(path), "size": 8 * MIB})
    made = path.stat()
    disk_content.ensure({"path": str(path), "size": 8 * MIB})
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (made.st_ino, made.st_mtime_ns)
    disk_content.ensure({"path": str(path), "size": 16 * MIB})
    assert (size(path), path.stat().st_ino) == (16 * MIB, made.st_ino)
    disk_content.ensure({"path": str(path), "size": 8 * MIB})
    assert size(path) == 16 * MIB, "a disk never shrinks"


def test_a_disk_from_an_image_has_its_content_and_the_size_of_the_disk(
    tmp_path: Path, image: Path
) -> None:
    path = tmp_path / "disk.qcow2"
    given = {"path": str(path), "size": 8 * MIB, "source": str(image), "format": "qcow2"}
    disk_content.ensure(given)
    assert size(path) == 8 * MIB
    tool("convert", "-f", "qcow2", "-O", "raw", str(path), str(tmp_path / "out.raw"))
    assert (tmp_path / "out.raw").read_bytes()[: 4 * MIB] == b"bullpen!" * (4 * MIB // 8)
    image.unlink()
    disk_content.ensure(given)


def test_what_a_killed_pod_left_is_made_again(tmp_path: Path, image: Path) -> None:
    path = tmp_path / "disk.qcow2"
    (tmp_path / "disk.qcow2.tmp").write_bytes(b"half of an image")
    disk_content.ensure({"path": str(path), "size": 4 * MIB, "source": str(image)})
    assert sorted(p.name for p in tmp_path.glob("disk*")) == ["disk.qcow2"]
    tool("check", "-q", str(path))


def test_a_disk_that_cannot_be_made_ends_the_start_with_the_reason(
    tmp_path: Path, image: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = tmp_path / "termination-log"
    monkeypatch.setattr(disk_content, "LAST_WORDS", str(words))
    disk = {"path": str(tmp_path / "disk.qcow2"), "size": MIB, "source": str(image)}
    assert disk_content.main([json.dumps(disk)]) == 1
    told = json.loads(words.read_text())
    assert told["reason"] == "StartFailed"
    assert f"spec.size is {MIB} bytes, and its source has {4 * MIB}" in told["detail"]
    assert not list(tmp_path.glob("disk*"))
