"""What the placement, its Pods and what runs in them agree on: names, paths and messages."""

from __future__ import annotations

from pathlib import PurePosixPath

PROVISIONER = "exporterset.jumpstarter.dev/provisioner"
"""Label that says whose instance a Pod is. Exporters have an annotation of that name."""

RETIRE = "virtualtarget.jumpstarter.dev/retire"
"""Annotation that tells an exporter to end after the lease it serves."""

EXPORTER, RUNTIME, PREPARE = "exporter", "target-runtime", "prepare"
"""Containers of a Pod: the exporter, what its target runs in, and what comes before both."""

CONFIG_KEY = "config.yaml"

SHARED = PurePosixPath("/shared")
"""Volume of the exporter and the runtime: sockets, disks, fetched files."""

TEMPORARY = "tmp"
SOCKETS = "run"
"""Directories below it, or below the exporter's own; short, as a socket's path must be."""

CACHE = SHARED / "artifacts"
LAUNCHER = SHARED / "launcher.py"
LAUNCHER_SOCKET = SHARED / SOCKETS / "launcher"

WORK = PurePosixPath("/run/exporter")
"""Where the exporter is; its own alone."""

CREDENTIALS = WORK / "credentials"
READY = WORK / "registered"
"""A file that is there once the exporter has registered."""

CONFIG = PurePosixPath("/etc/jumpstarter/exporters")
ABOUT = PurePosixPath("/etc/podinfo")
"""What the Pod's own metadata says now, a minute late at most."""


def secret_name(exporter: str) -> str:
    """Of the Secret with an exporter's config, as upstream calls it."""
    return f"exporter-config-{exporter}"
