"""The service as a cluster runs it: replicas, routers and provisioners as processes.

The control plane is whatever a kubeconfig names: a real one, or ``api_stand_in``.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bullpen.cli.connection import Api
from support.real_service import BIN, Service, eventually, free_port_base

STAND_IN = Path(__file__).parents[1] / "real" / "api_stand_in.py"
STEP = 1
TAKE_OVER_SECONDS_MAX = 120.0
"""A hold lasts 15 s, and who stands by looks every 2 s."""

WRITES = ("create", "update", "delete")


@dataclass
class Process:
    """One process of ours and where it says how it is."""

    name: str
    process: subprocess.Popen[str]
    health: int
    log: Path

    def ask(self, path: str) -> tuple[int, str]:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.health)) as asked:
            asked.request("GET", path)
            answer = asked.getresponse()
            return answer.status, answer.read().decode()

    @property
    def answers(self) -> bool:
        try:
            return self.ask("/healthz")[0] == 200
        except OSError:
            return False

    @property
    def ready(self) -> bool:
        assert self.process.poll() is None, f"{self.name} ended:\n{self.log.read_text()}"
        try:
            return self.ask("/readyz")[0] == 200
        except OSError:
            return False

    @property
    def role(self) -> str:
        """What it says that it does or waits for; empty if it does not answer."""
        try:
            return self.ask("/readyz")[1].strip()
        except OSError:
            return ""

    def requests(self) -> Counter[tuple[str, str]]:
        """What it has asked of the API server and was given, by verb and resource."""
        found: Counter[tuple[str, str]] = Counter()
        pattern = r'bullpen_api_requests_total{code="2\d+",resource="([^"]+)",verb="(\w+)"} (\S+)'
        for resource, verb, count in re.findall(pattern, self.ask("/metrics")[1]):
            found[verb, resource] += int(float(count))
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(120)


def _account(words: tuple[str, ...]) -> str:
    """The service account of a process; every provisioner has one of its own."""
    if words[0] != "provisioner":
        return f"bullpen-{words[0]}"
    own = words[words.index("--provisioner") + 1].partition(".")[0]
    return f"bullpen-provisioner-{own}"


class ClusterLab(Service):
    """People's programs against a cluster, and our processes in it."""

    def __init__(self, directory: Path, kubeconfig: Path, namespace: str = "default") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory)
        if kubeconfig != directory / "kubeconfig":
            shutil.copy(kubeconfig, directory / "kubeconfig")
        # The kubeconfig of a cluster may have a certificate and no token.
        self.place = ("--kubeconfig", str(directory / "kubeconfig"))
        self.namespace = namespace
        self.accounts = False
        """Whether each process is the service account it would have if it were installed."""

        self.port = free_port_base()
        self.processes: dict[str, Process] = {}

    def api(self) -> Api:
        # In a thread of its own: reading credentials runs a loop, and an open browser has one here.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(Api.from_kubeconfig, self.data / "kubeconfig").result()

    def launch(self, name: str, *words: str) -> Process:
        """Start ``bullpen`` with these words, joined to the cluster."""
        base = free_port_base() + STEP + len(self.processes)
        log = self.data.parent / f"{name}.log"
        command = [
            *(str(BIN / "bullpen"), *words, "--kubeconfig", str(self._kubeconfig(_account(words)))),
            *("--namespace", self.namespace, "--listen", "127.0.0.1", "--health-port", str(base)),
        ]
        environment = {k: v for k, v in self.environment.items() if k != "BULLPEN_DATA"}
        with log.open("a") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=output, text=True, env=environment
            )
        found = self.processes[name] = Process(name, process, base, log)
        return found

    def _kubeconfig(self, account: str) -> Path:
        """What the process of this account joins the cluster with."""
        admin = self.data / "kubeconfig"
        if not self.accounts:
            return admin
        token = self.kubectl("create", "token", account, "-n", self.namespace).stdout.strip()
        config = yaml.safe_load(admin.read_text())
        config["users"] = [
            {"name": user["name"], "user": {"token": token}} for user in config["users"]
        ]
        path = self.data / f"kubeconfig-{account}"
        path.write_text(yaml.safe_dump(config))
        return path

    def controller(self, name: str, *words: str, pod: str = "") -> Process:
        return self.launch(
            name, "controller", "--port", str(self.port), "--login-port", "-1",
            "--watch-namespace", self.namespace, "--pod", pod, *words,
        )  # fmt: skip

    def router(self, name: str) -> Process:
        return self.launch(
            name, "router", "--name", name, "--watch-namespace", self.namespace,
        )  # fmt: skip

    def provisioner(self, name: str, provisioner: str, *words: str) -> Process:
        return self.launch(
            name, "provisioner", "--provisioner", provisioner,
            "--watch-namespace", self.namespace, *words,
        )  # fmt: skip

    def leader(self, seconds: float = TAKE_OVER_SECONDS_MAX) -> Process:
        """The controller that leads, as soon as one does."""
        found: list[Process] = []

        def look() -> bool:
            living = [p for p in self.processes.values() if p.process.poll() is None]
            found[:] = [p for p in living if p.role.startswith("leading")]
            return bool(found)

        eventually(look, seconds=seconds, what="a leader")
        assert len(found) == 1, "two lead"
        return found[0]

    def end_all(self) -> None:
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.end()
            if process.process.poll() is None:
                process.end(signal.SIGKILL)

    def writes(self) -> Counter[tuple[str, str, str]]:
        """What our processes wrote so far, by process, verb and resource.

        That they say that they are alive is left out.
        """
        total: Counter[tuple[str, str, str]] = Counter()
        for process in self.processes.values():
            if process.process.poll() is not None:
                continue
            for (verb, resource), count in process.requests().items():
                if verb in WRITES and resource != "leases.coordination.k8s.io":
                    total[process.name, verb, resource] += count
        return total


@contextlib.contextmanager
def stand_in(directory: Path) -> Iterator[Path]:
    """An API server in the place of a cluster's; yields its kubeconfig."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "api.log").open("w") as log:
        process = subprocess.Popen([sys.executable, str(STAND_IN), str(directory)], stderr=log)
    try:
        eventually(lambda: (directory / "kubeconfig").exists(), what="an API server")
        yield directory / "kubeconfig"
    finally:
        process.terminate()
        assert process.wait(120) == 0


@dataclass
class Stopwatch:
    """Seconds since it was made; for people who read what a story printed."""

    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.begun
