"""A whole lab of real processes that can be harmed: service, pools, exporters, a router.

Everything started here carries a mark in its environment, so that whatever is left behind
is found, wherever it went.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from bullpen.placements.local.processes import TOKEN_VARIABLE
from support.lab_helpers import Lab, Refusal
from support.real_service import BIN, Service, eventually, free_port_base, kill_family

MARK = "BULLPEN_CRASH_LAB"
SHELF = ("shelf-0", "shelf-1")
POOL_WARM = 2
ROUTER = "extra"
DISK_MEGABYTES = 512
READY_SECONDS_MAX = 60.0
SETTLED_SECONDS_MAX = 60.0
LINGER_SECONDS_MAX = 10.0

CONFIG = "leases: {retention: 2m}\n"
UBOOT = "/usr/lib/u-boot/qemu_arm64/u-boot.bin"
CLASSES: dict[str, dict[str, Any]] = {
    "mock": {"provisioner": "mock.jumpstarter.dev"},
    "qemu": {
        "provisioner": "qemu.jumpstarter.dev",
        "parameters": {
            "arch": "aarch64",
            "accel": "tcg",
            "resources": {"cpu": 1, "memory": "128Mi"},
            "firmware": {"path": UBOOT},
        },
    },
}
POOLS = "/apis/virtualtarget.jumpstarter.dev/v1alpha1"


class CrashLab:
    """Made by ``crash_lab``."""

    def __init__(self, root: Path, *, disk: bool) -> None:
        self.disk = disk
        """Whether the data directory is a file system of its own."""

        self.mount = root / "disk"
        config = root / "bullpen.yaml"
        config.write_text(CONFIG)
        self.service = Service(
            self.mount / "data", "--port-base", str(free_port_base()), "--config", str(config)
        )
        # Outside of the disk that will be filled.
        self.service.home = root / "home"
        self.service.home.mkdir()
        self.service.log = root / "service.log"
        self.lab = Lab(self.service)
        self.mark = f"{os.getpid()}-{time.monotonic_ns()}"
        self.shelf: dict[str, subprocess.Popen[str]] = {}
        self.router: subprocess.Popen[str] | None = None
        self.runtimes: set[str] = set()
        """Every directory for sockets that was ever in use."""

        self.tokens: set[str] = set()
        """Of every instance whose processes were ever seen."""

        self.helped = 0
        """How often a program had to be started again, as its service manager would."""

    # Beginning and ending

    def begin(self) -> None:
        os.environ[MARK] = self.mark
        self.service.start()
        self.alice = self.lab.client("alice")
        self.bob = self.lab.client("bob")
        for name, spec in CLASSES.items():
            self._apply("VirtualTargetClass", "virtualtargetclasses", name, spec)
        self._pool("mock", POOL_WARM, 4, [])
        self._pool("qemu", 1, 2, [{"name": "power", "ref": "qemu.power"}])
        configs = [self.lab.exporter(name, {"board": "shelf", "at": name}) for name in SHELF]
        for name, config in zip(SHELF, configs, strict=True):
            self.shelf[name] = self._run(name, "jmp", "run", "--exporter-config", str(config))
        self.start_router()

    def end(self) -> None:
        """Stop in order. Nothing may be left, and the service must have ended well."""
        for process in (*self.shelf.values(), self.router):
            if process is not None:
                kill_family(process)
        if self.service.process is not None:
            code = self.service.stop()
            assert code == 0, f"bullpen up ended with {code}: {self.tail()}"
        os.environ.pop(MARK, None)
        eventually(
            lambda: not self.marked(), seconds=LINGER_SECONDS_MAX, what="every process having ended"
        )
        assert not self.instances(), f"directories of instances are left: {self.instances()}"
        left = [path for path in self.runtimes if Path(path).exists()]
        assert not left, f"directories of sockets are left: {left}"

    def kill_everything(self) -> None:
        """For a run that failed: end what this lab started, and only that."""
        for process in self.marked():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.service.process = None

    def start_router(self) -> None:
        self.router = self._run("router", "bullpen", "router", "--name", ROUTER)

    def _run(self, name: str, program: str, *arguments: str) -> subprocess.Popen[str]:
        log = self.service.home / f"{name}.log"
        with log.open("a") as output:
            return subprocess.Popen(
                [str(BIN / program), *arguments],
                stdout=output,
                stderr=output,
                env=self.service.environment,
                text=True,
                start_new_session=True,
            )

    def _pool(self, name: str, warm: int, ceiling: int, drivers: list[dict[str, str]]) -> None:
        labels = {"board": name}
        template = {"metadata": {"labels": labels}, "spec": {"drivers": drivers}}
        spec = {
            "virtualTargetClassName": name,
            "minAvailableReplicas": warm,
            "maxReplicas": ceiling,
            "scaleDownCooldown": "2s",
            "selector": {"matchLabels": labels},
            "template": template,
        }
        self._apply("ExporterSet", "exportersets", name, spec)

    def _apply(self, kind: str, plural: str, name: str, spec: dict[str, Any]) -> None:
        document = {
            "apiVersion": "virtualtarget.jumpstarter.dev/v1alpha1",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        self.lab.request("POST", f"{POOLS}/namespaces/default/{plural}", document)

    # Who is who

    def zygote(self) -> int | None:
        found = _json(self.service.data / "instances" / ".zygote.json")
        if not found:
            return None
        self.runtimes.add(found["runtime"])
        return int(found["process"]["pid"])

    def instances(self) -> dict[str, int]:
        """Exporter and process of each instance that has a directory."""
        base = self.service.data / "instances"
        found = sorted(path for path in base.glob("*") if path.is_dir()) if base.exists() else []
        return {
            path.name.partition(".")[2]: int(_json(path / "process.json").get("pid", 0))
            for path in found
        }

    def shelf_child(self, name: str) -> int:
        """The process that serves; ``jmp run`` itself only looks after it."""
        children = psutil.Process(self.shelf[name].pid).children()
        return children[0].pid if children else self.shelf[name].pid

    def qemus(self) -> list[psutil.Process]:
        return [process for process in self.marked() if _name(process).startswith("qemu-system")]

    def marked(self) -> list[psutil.Process]:
        """Every process that was started by this lab or by one of its processes.

        A machine in its sandbox has of the environment only the token of its instance.
        """
        found = [(p, _environment(p)) for p in psutil.process_iter() if p.pid != os.getpid()]
        ours = [variables for _, variables in found if variables.get(MARK) == self.mark]
        self.tokens |= {
            variables[TOKEN_VARIABLE] for variables in ours if TOKEN_VARIABLE in variables
        }
        return [
            process
            for process, variables in found
            if variables.get(MARK) == self.mark or variables.get(TOKEN_VARIABLE) in self.tokens
        ]

    def tail(self) -> str:
        return self.service.log.read_text()[-3000:]

    # Restarting

    def restart(self, number: signal.Signals = signal.SIGKILL) -> float:
        """Kill the service and start it again; returns the seconds until it was ready."""
        self.service.stop(number)
        return self.start()

    def start(self) -> float:
        begun = time.monotonic()
        self.service.start()
        return time.monotonic() - begun

    def help(self) -> None:
        """Start again what ended, as a service manager does with ``Restart=always``."""
        for name, process in self.shelf.items():
            if process.poll() is not None:
                config = self.service.home / f"exporter-default-{name}.yaml"
                self.shelf[name] = self._run(name, "jmp", "run", "--exporter-config", str(config))
                self.helped += 1
        if self.router is not None and self.router.poll() is not None:
            self.start_router()
            self.helped += 1

    # Settling

    def settled(self) -> str:
        """What is still missing; empty once everything is as it should be."""
        assert self.service.process is not None
        code = self.service.process.poll()
        assert code is None, f"bullpen up ended by itself with {code}: {self.tail()}"
        try:
            return self._shelf_missing() or self._pools_missing() or self._leftovers()
        except (OSError, Refusal) as error:
            return f"the API: {error!r}"

    def _shelf_missing(self) -> str:
        for name in SHELF:
            found = self.lab.get("exporters", name)["status"]
            online = {c["type"]: c["status"] for c in found.get("conditions", [])}.get("Online")
            if online != "True" or found.get("exporterStatus") not in ("Available", "LeaseReady"):
                return f"{name} is online={online}, {found.get('exporterStatus')}"
        return ""

    def _pools_missing(self) -> str:
        for name, warm in (("mock", POOL_WARM), ("qemu", 1)):
            path = f"{POOLS}/namespaces/default/exportersets/{name}"
            found = self.lab.request("GET", path).get("status", {})
            if found.get("availableReplicas", 0) < warm and found.get("leasedReplicas", 0) < 2:
                why = [
                    f"{c['type']} {c['reason']}: {c['message']}"
                    for c in found.get("conditions", ())
                    if c["type"] in ("Progressing", "Degraded")
                ]
                return f"pool {name} has {found.get('availableReplicas', 0)} available; {why}"
        return ""

    def _leftovers(self) -> str:
        """Processes, directories and sockets that belong to nothing that exists."""
        exporters = {item["metadata"]["name"] for item in self.lab.get("exporters")["items"]}
        strangers = sorted(set(self.instances()) - exporters)
        if strangers:
            return f"directories of no exporter: {strangers}"
        orphans = self._orphans()
        if orphans:
            return f"processes of nobody: {orphans}"
        zygote = _json(self.service.data / "instances" / ".zygote.json")
        left = [path for path in self.runtimes - {zygote.get("runtime")} if Path(path).exists()]
        if left:
            return f"sockets of no zygote: {left}"
        temporary = [p.name for p in self.service.data.rglob("*") if _unfinished(p)]
        return f"unfinished files: {temporary}" if temporary else ""

    def _orphans(self) -> list[str]:
        roots = {process.pid for process in self.shelf.values()} | set(self.instances().values())
        roots |= {self.zygote() or 0}
        roots |= {p.pid for p in (self.service.process, self.router) if p is not None}
        found = [
            process
            for process in self.marked()
            if process.pid not in roots and not roots & set(_ancestors(process))
        ]
        # A running zygote has one janitor, which is nobody's child. That of a zygote that was
        # killed must end once it has cleaned up.
        janitors = [process for process in found if _name(process) == "bullpen-janitor"]
        allowed = janitors[-1:] if self.zygote() else []
        return [f"{process.pid} {_name(process)}" for process in found if process not in allowed]


@contextlib.contextmanager
def crash_lab(root: Path) -> Iterator[CrashLab]:
    """A lab below ``root``, with a disk of its own where that is allowed."""
    mount = root / "disk"
    mount.mkdir(parents=True)
    disk = _mounted(mount)
    lab = CrashLab(root, disk=disk)
    try:
        lab.begin()
        yield lab
        lab.end()
    except BaseException:
        print(lab.tail(), flush=True)
        lab.kill_everything()
        raise
    finally:
        if disk:
            subprocess.run(["umount", "-l", mount], check=True)
        shutil.rmtree(mount, ignore_errors=True)


def _mounted(path: Path) -> bool:
    if os.geteuid() != 0:
        return False
    option = f"size={DISK_MEGABYTES}m"
    command = ["mount", "-t", "tmpfs", "-o", option, "bullpen-crash", str(path)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def _json(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return dict(process.environ())
    except (psutil.Error, OSError):
        return {}


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _ancestors(process: psutil.Process) -> list[int]:
    try:
        return [parent.pid for parent in process.parents()]
    except psutil.Error:
        # It ended while it was looked at.
        return []


def _unfinished(path: Path) -> bool:
    """A file that somebody meant to rename and did not."""
    return ".partial" in path.name or path.name.endswith(".new")
