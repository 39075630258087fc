"""Names, paths and messages that the placement, its Pods and their programs share."""

from __future__ import annotations

from pathlib import PurePosixPath

PROVISIONER = "exporterset.jumpstarter.dev/provisioner"
"""Label with the provisioner of a Pod. Exporters have an annotation of that name."""

RETIRE = "virtualtarget.jumpstarter.dev/retire"
"""Annotation that tells an exporter to end after its lease."""

EXPORTER, RUNTIME, PREPARE, DISKS = "exporter", "target-runtime", "prepare", "disks"
"""Containers of a Pod: the exporter, the runtime of its target, and the preparation of files and
of lasting disks."""

CONFIG_KEY = "config.yaml"

SHARED = PurePosixPath("/shared")
"""Volume of the exporter and the runtime: sockets, disks, fetched files."""

TEMPORARY = "tmp"
SOCKETS = "run"
"""Directories below it, or below the exporter's own; short, as a socket's path must be."""

CACHE = SHARED / "artifacts"
LAUNCHER = SHARED / "launcher.py"
DISK_CONTENT = SHARED / "disk_content.py"
LAUNCHER_SOCKET = SHARED / SOCKETS / "launcher"

LASTING = PurePosixPath("/disks")
"""The volumes of lasting disks are mounted below it."""

DISK_FILE = "disk.qcow2"
"""The only file in such a volume."""

WORK = PurePosixPath("/run/exporter")
"""The exporter's working directory, which is not shared."""

CREDENTIALS = WORK / "credentials"
GRANTED = WORK / "granted"
READY = WORK / "registered"
"""A file that exists once the exporter has registered."""

CONFIG = PurePosixPath("/etc/jumpstarter/exporters")
ABOUT = PurePosixPath("/etc/podinfo")
"""The Pod's current metadata, delayed by a minute at most."""


def secret_name(exporter: str) -> str:
    """Name of the Secret with an exporter's config, as upstream calls it."""
    return f"exporter-config-{exporter}"
