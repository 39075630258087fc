"""The real thing: ``bullpen up`` as a process, and the published programs that talk to it."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import psutil
import yaml

from bullpen.cli.connection import Api, path_of, resource_named

BIN = Path(sys.executable).parent
READY_SECONDS_MAX = 180.0
START_SECONDS_MAX = 180.0
STOP_SECONDS_MAX = 120.0
RUN_SECONDS_MAX = 180.0
HANDSHAKE_SECONDS = 1.0

PORT_OFFSETS = (0, 2, 3, 6)

MOCK = {"power": {"type": "jumpstarter_driver_power.driver.MockPower"}}


PAUSE_SECONDS = (0.01, 0.25)
"""Between two looks of ``eventually``: the first and the longest."""


def eventually(
    done: Callable[[], object], *, seconds: float = 60.0, what: str | Callable[[], str] = ""
) -> None:
    """Look until ``done`` is true. Waiting for another process cannot be done otherwise.

    The end is far away, because it is reached only by a failure. ``what`` names what is waited
    for; a function is called when the time is over, and may say what was seen last.
    """
    deadline = time.monotonic() + seconds
    pause, longest = PAUSE_SECONDS
    while not done():
        if time.monotonic() >= deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"{text or done} did not happen within {seconds} s")
        time.sleep(pause)
        pause = min(2 * pause, longest)


def kill_family(process: subprocess.Popen[str]) -> None:
    """Kill a program and all it started; ``jmp run`` puts its child into a group of its own."""
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        for member in (parent, *parent.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def free_port_base() -> int:
    """A base whose ports are free now, for a service that must come back where it was.

    Test runs beside this one begin to look elsewhere.
    """
    bases = list(range(20_000, 32_000, 10))
    first = os.getpid() * 37 % len(bases)
    for base in (*bases[first:], *bases[:first]):
        with contextlib.ExitStack() as stack:
            try:
                for offset in PORT_OFFSETS:
                    probe = stack.enter_context(socket.socket())
                    probe.bind(("127.0.0.1", base + offset))
            except OSError:
                continue
            return base
    raise AssertionError("no free ports")


class Service:
    """A running ``bullpen up`` and ways to use it as a person would."""

    def __init__(self, data: Path, *arguments: str, python: Path | None = None) -> None:
        """``python``: the interpreter of another environment that has the service."""
        self.data = data
        self.program = [str(BIN / "bullpen")] if python is None else [str(python), "-m", "bullpen"]
        self.arguments = arguments
        self.home = data.parent / f"{data.name}-home"
        self.home.mkdir(exist_ok=True)
        # The path of a socket is at most 107 characters long, and that of a test may be longer:
        # the published client then says that the connection to the exporter was lost.
        self._sockets = mkdtemp(prefix="bullpen-")
        weakref.finalize(self, shutil.rmtree, self._sockets, ignore_errors=True)
        self.process: subprocess.Popen[str] | None = None
        self.log = data.parent / f"{data.name}.log"
        self.place: tuple[str, ...] = ()
        """Options that say where clients and exporters are made, if not in ``data``."""

    def start(self) -> None:
        (self.data / "endpoints.json").unlink(missing_ok=True)
        command = [*self.program, "up", "--data", str(self.data), *self.arguments]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, text=True)
        eventually(self._ready, seconds=READY_SECONDS_MAX, what="bullpen up being ready")

    def _ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        return (self.data / "endpoints.json").exists()

    def await_connection(self, program: subprocess.Popen[str]) -> None:
        """Wait until a program that was open across a restart can call the controller again.

        Its channel backs off between its tries, and calls fail until a try has succeeded; ``jmp``
        releases its lease with one call.
        """
        port = int(self.endpoints["controller"].rpartition(":")[2])
        calls = psutil.Process(program.pid)
        eventually(
            lambda: any(
                found.status == psutil.CONN_ESTABLISHED and found.raddr.port == port
                for found in calls.net_connections("tcp")
            ),
            what="the channel being connected again",
        )
        time.sleep(HANDSHAKE_SECONDS)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(STOP_SECONDS_MAX)
        self.process = None
        return code

    @property
    def endpoints(self) -> dict[str, str]:
        found: dict[str, str] = json.loads((self.data / "endpoints.json").read_text())
        return found

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "XDG_RUNTIME_DIR": self._sockets,
            "KUBECONFIG": str(self.data / "kubeconfig"),
            "KUBECACHEDIR": str(self.home / "cache"),
            "BULLPEN_DATA": str(self.data),
            "COLUMNS": "200",
        }

    def run(
        self,
        *command: str,
        check: bool = True,
        input: str | None = None,
        timeout: float = RUN_SECONDS_MAX,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program as the user of this service."""
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            input=input,
            timeout=timeout,
            env={**self.environment, **environment},
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(
                f"{command} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def kubectl(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return self.run("kubectl", *arguments, **options)  # type: ignore[arg-type]

    def api(self) -> Api:
        """A client of the API server in this process, for what is asked again and again."""
        return Api.from_data(self.data)

    def get(
        self, kind: str, name: str = "", *, labels: str = "", namespace: str = "default"
    ) -> dict[str, Any]:
        """An object, or all of a kind, as the API server answers."""
        with contextlib.closing(self.api()) as api:
            found: dict[str, Any] = api.request(
                "GET",
                path_of(resource_named(kind), namespace, name),
                query={"labelSelector": labels} if labels else None,
            )
        return found

    def bullpen(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return self.run("bullpen", *arguments, **options)  # type: ignore[arg-type]

    def jmp(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        return self.run("jmp", *arguments, **options)  # type: ignore[arg-type]

    def create_client(self, name: str, namespace: str = "default") -> Path:
        """A new client; returns its config file. ``jmp admin``, which is slow, makes the same."""
        path = self.home / f"client-{namespace}-{name}.yaml"
        self.bullpen("client", "create", name, "-n", namespace, *self.place, "--out", str(path))
        return path

    def create_exporter(
        self,
        name: str,
        labels: dict[str, str],
        *,
        namespace: str = "default",
        export: dict[str, object] | None = None,
        **config: object,
    ) -> Path:
        """A new exporter; returns its config file."""
        path = self.home / f"exporter-{namespace}-{name}.yaml"
        chosen = [part for key, value in labels.items() for part in ("-l", f"{key}={value}")]
        where = ("-n", namespace, *self.place)
        self.bullpen("exporter", "create", name, *where, *chosen, "--out", str(path))
        content = yaml.safe_load(path.read_text())
        content["export"] = export or MOCK
        content.update(config)
        path.write_text(yaml.safe_dump(content))
        return path

    @contextlib.contextmanager
    def exporter(
        self, config: Path, *, wait: bool = True, wrapper: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[str]]:
        """The real ``jmp run`` on a config, until the block ends; ``wrapper`` starts it."""
        log = config.with_suffix(".log")
        with log.open("a") as output:
            process = subprocess.Popen(
                [*wrapper, str(BIN / "jmp"), "run", "--exporter-config", str(config)],
                stdout=output,
                stderr=output,
                env=self.environment,
                text=True,
                start_new_session=True,
            )
        try:
            if wait:
                meta = yaml.safe_load(config.read_text())["metadata"]
                eventually(
                    lambda: self.exporter_status(meta["name"], meta["namespace"]) == "Available",
                    seconds=START_SECONDS_MAX,
                    what=f"exporter {meta['name']} being available",
                )
            yield process
        finally:
            kill_family(process)

    def exporter_status(self, name: str, namespace: str = "default") -> str:
        found = self.get("exporter", name, namespace=namespace)
        return str(found.get("status", {}).get("exporterStatus", ""))


@contextlib.contextmanager
def running_service(directory: Path, *arguments: str) -> Iterator[Service]:
    running = Service(directory / "data", "--port-base", "0", *arguments)
    running.start()
    try:
        yield running
    finally:
        if running.process is not None:
            assert running.stop() == 0, running.log.read_text()
        shutil.rmtree(running.data, ignore_errors=True)
