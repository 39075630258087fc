"""What a user waits for at the prompt: ``jmp shell``, ``bullpen shell`` and ``bullpen console``.

``jmp shell`` is compared with the same shell without any service: most of both is the client's own
start, and the difference is what a lab costs, a lease, a connection through the router, and its
release. ``bullpen shell -- true`` is compared with ``jmp shell -- true`` on the same exporter. A
console counts as attached once a typed character has come back from the exporter's serial port.
"""

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import tempfile
import time
from pathlib import Path

from bullpen.api import yaml
from bullpen.bench.lab import (
    CLIENT,
    NAMESPACE,
    POWER,
    Lab,
    config_of_new_exporter,
    online,
    populate,
    service,
)
from bullpen.bench.measure import Goal, Result, compare, interleaved
from bullpen.bench.processes import installed, program, seconds
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.datadir.credentials import client_config

NAME = "shell"
ECHO = {
    "serial": {"type": "jumpstarter_driver_pyserial.driver.PySerial", "config": {"url": "loop://"}}
}
"""A serial port that repeats what is typed."""

OURS = Goal(0.2, at_least=False)
ATTACHED_SECONDS = 0.5
ATTACHED = Goal(1, at_least=False)
ATTACH_SECONDS_MAX = 60.0
TYPED = b"x"


async def run(*, rounds: int) -> tuple[Result, ...]:
    with (
        tempfile.TemporaryDirectory() as directory,
        service(Path(directory)) as lab,
    ):
        async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="bench") as objects:
            client, _ = await populate(lab, 0)
            board = await config_of_new_exporter(objects, lab, NAME, Path(directory))
            document = yaml.load(board.read_text())
            board.write_text(yaml.dump({**document, "export": {**POWER, **ECHO}}))
            with program("jmp", "run", "--exporter-config", str(board)):
                await online(objects, NAME)
                return await _measured(_client_config(lab, client, Path(directory)), rounds)


def _client_config(lab: Lab, token: str, directory: Path) -> Path:
    path = directory / "client.yaml"
    text = client_config(
        namespace=NAMESPACE, name=CLIENT, endpoint=lab.controller, ca_pem=lab.ca_pem, token=token
    )
    path.write_text(text)
    return path


async def _measured(client: Path, rounds: int) -> tuple[Result, ...]:
    alone = client.with_name("alone.yaml")
    metadata = {"namespace": NAMESPACE, "name": "alone"}
    kind = {"apiVersion": "jumpstarter.dev/v1alpha1", "kind": "ExporterConfig"}
    alone.write_text(yaml.dump({**kind, "metadata": metadata, "export": POWER}))
    target = ("--client-config", str(client), "-l", f"bench={NAME}")
    power_on = (installed("j"), "power", "on")

    async def leased() -> float:
        return await _timed("jmp", "shell", *target, "--", *power_on)

    async def local() -> float:
        return await _timed("jmp", "shell", "--exporter-config", str(alone), "--", *power_on)

    async def published() -> float:
        return await _timed("jmp", "shell", *target, "--", "true")

    async def ours() -> float:
        return await _timed("bullpen", "shell", *target, "--", "true")

    async def attached() -> float:
        return await asyncio.to_thread(_until_attached, *target)

    samples = await interleaved(rounds, leased, local, published, ours, attached)
    with_service, without, with_jmp, with_ours, console = samples
    limit = [ATTACHED_SECONDS] * rounds
    return (
        compare("jmp shell, power on, back", with_service, without, unit="s", goal=None),
        compare("bullpen shell -- true", with_ours, with_jmp, unit="s", goal=OURS),
        compare("bullpen console until attached", console, limit, unit="s", goal=ATTACHED),
    )


async def _timed(name: str, *arguments: str) -> float:
    return await asyncio.to_thread(seconds, installed(name), *arguments)


def _until_attached(*target: str) -> float:
    """Seconds from the start of the command until a typed character has come back."""
    began = time.perf_counter()
    command = (installed("bullpen"), "console", *target)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(TYPED)
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], ATTACH_SECONDS_MAX)
        taken = time.perf_counter() - began
        echoed = os.read(process.stdout.fileno(), len(TYPED)) if ready else b""
        process.stdin.close()
    if echoed != TYPED or process.returncode:
        raise RuntimeError(f"bullpen console printed {echoed!r} and exited {process.returncode}")
    return taken
