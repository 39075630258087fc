"""Small container images, as the archives that ``podman save`` writes."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import tarfile
from collections.abc import Mapping
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
PROGRAMS = ("sh", "cat", "dd", "echo", "head", "httpd", "id", "ls", "ps", "sleep", "true", "wget")


def write_image(path: Path, *, says: str, command: tuple[str, ...] = ("sh",)) -> Path:
    """An image with busybox, the text ``says`` in ``/says``, and its own command."""
    layer = _archive(
        {
            **{f"bin/{name}": "/bin/busybox" for name in PROGRAMS},
            "bin/busybox": BUSYBOX.read_bytes(),
            "etc/passwd": b"root:x:0:0:root:/:/bin/sh\n",
            "says": says.encode(),
        }
    )
    digest = hashlib.sha256(layer).hexdigest()
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": None, "Layers": [f"{digest}.tar"]}]
    content = {
        "config.json": json.dumps(config).encode(),
        f"{digest}.tar": layer,
        "manifest.json": json.dumps(manifest).encode(),
    }
    path.write_bytes(_archive(content))
    return path


def _archive(files: Mapping[str, bytes | str]) -> bytes:
    """A tar archive; a text is the target of a symbolic link."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode = 0o755
            if isinstance(content, str):
                entry.type, entry.linkname = tarfile.SYMTYPE, content
                archive.addfile(entry)
            else:
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def has_podman() -> bool:
    return shutil.which("podman") is not None and shutil.which("runc") is not None
