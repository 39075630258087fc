"""``jmp shell`` from the prompt and back, against the same shell without any service.

Most of both is the client's own start. The difference is what a lab costs an interactive
user: a lease, a connection through the router, and its release.
"""

from __future__ import annotations

import asyncio
import tempfile
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
from bullpen.bench.measure import Result, compare, interleaved
from bullpen.bench.processes import installed, program, seconds
from bullpen.cluster import kubeconfig
from bullpen.cluster.objects import ClusterObjects
from bullpen.datadir.credentials import client_config

NAME = "shell"


async def run(*, rounds: int) -> tuple[Result, ...]:
    with (
        tempfile.TemporaryDirectory() as directory,
        service(Path(directory)) as lab,
    ):
        async with ClusterObjects(kubeconfig.load(lab.kubeconfig), manager="bench") as objects:
            client, _ = await populate(lab, 0)
            board = await config_of_new_exporter(objects, lab, NAME, Path(directory))
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

    async def leased() -> float:
        return await _shell("--client-config", str(client), "-l", f"bench={NAME}")

    async def local() -> float:
        return await _shell("--exporter-config", str(alone))

    ours, theirs = await interleaved(rounds, leased, local)
    return (compare("jmp shell, power on, back", ours, theirs, unit="s", goal=None),)


async def _shell(*target: str) -> float:
    command = (installed("jmp"), "shell", *target, "--", installed("j"), "power", "on")
    return await asyncio.to_thread(seconds, *command)
