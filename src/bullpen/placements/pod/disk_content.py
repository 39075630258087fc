"""Makes and grows the files of lasting disks, before the machine of a Pod starts.

``python3 disk_content.py DISK…``, each a JSON object with path, size, and the source and its
format if the disk is not blank at first. A file is made under another name and renamed when
it is complete, so a Pod that was killed meanwhile leaves nothing that looks like a disk.

This file is copied into images without our packages, so it uses only the standard library,
of Python 3.9 or later.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

LAST_WORDS = "/dev/termination-log"
MESSAGE_LENGTH_MAX = 500


def ensure(disk: dict[str, Any]) -> None:
    """Make the file of a disk if there is none, and grow it if it is too small."""
    path, size = disk["path"], int(disk["size"])
    if not os.path.exists(path):
        _make(path, size, disk.get("source", ""), disk.get("format", "qcow2"))
    elif _size(path, "qcow2") < size:
        _tool("resize", "-q", "-f", "qcow2", path, str(size))
        _sync(path)


def _make(path: str, size: int, source: str, source_format: str) -> None:
    temporary = path + ".tmp"
    if os.path.exists(temporary):
        os.unlink(temporary)
    if not source:
        _tool("create", "-q", "-f", "qcow2", temporary, str(size))
    else:
        found = _size(source, source_format)
        if size < found:
            raise ValueError(f"spec.size is {size} bytes, and its source has {found}")
        _tool("convert", "-q", "-f", source_format, "-O", "qcow2", source, temporary)
        if size > found:
            _tool("resize", "-q", "-f", "qcow2", temporary, str(size))
    _sync(temporary)
    os.rename(temporary, path)
    _sync(os.path.dirname(path))


def _size(path: str, image_format: str) -> int:
    said = _tool("info", "--output=json", "-f", image_format, path)
    return int(json.loads(said)["virtual-size"])


def _tool(*arguments: str) -> str:
    done = subprocess.run(["qemu-img", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip() or f"qemu-img ended with {done.returncode}")
    return done.stdout


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main(arguments: list[str]) -> int:
    try:
        for item in arguments:
            ensure(json.loads(item))
    except (OSError, ValueError) as error:
        text = str(error)[:MESSAGE_LENGTH_MAX]
        with open(LAST_WORDS, "w") as file:
            json.dump({"reason": "StartFailed", "detail": f"its disks: {text}"}, file)
        print(text, file=sys.stderr)  # noqa: T201 - the container's log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
