"""``bullpen demo``: the main features of the service, in a temporary directory.

Everything it shows is done by the commands it prints, including the published ``jmp``.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from bullpen.api.paths import Document
from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.manifests import example
from bullpen.cli.options import Exit, wait_for

READY_SECONDS_MAX = 30.0
POOL_SECONDS_MAX = 60.0
BURST_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 15.0

BIN = Path(sys.executable).parent


class Stage:
    """Runs commands as a user would, and shows the commands and their output."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "lab"
        self.environment = {
            **os.environ,
            "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
            "BULLPEN_DATA": str(self.data),
        }

    def show(self, title: str, command: str) -> None:
        click.echo(f"\n# {title}\n$ {command}")
        done = subprocess.run(
            shlex.split(command), cwd=self.directory, env=self.environment, check=False
        )
        if done.returncode:
            raise click.ClickException(f"the command exited with {done.returncode}; demo aborted")

    @contextlib.contextmanager
    def running(self, command: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program in the background, its output in a log file, ended with the block."""
        with (self.directory / log).open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self.directory,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS_MAX)


CLIENT = "lab/clients/default.yaml"
POOL = "exportersets.virtualtarget.jumpstarter.dev"
BURST = 5
FILES = ("uboot-pool.yaml", "console.py")


@click.command()
def demo() -> int:
    """Start a pool of virtual boards, lease one, let the pool grow and shrink, and clean up."""
    with tempfile.TemporaryDirectory(prefix="bullpen-demo-") as directory:
        stage = Stage(Path(directory))
        for name in FILES:
            (stage.directory / name).write_bytes(example(name).read_bytes())
        click.echo("Starting the service …")
        with stage.running("bullpen up --port-base 0", "up.log") as service:
            wait_for(
                lambda: _started(service, stage), seconds=READY_SECONDS_MAX, what="the service"
            )
            _tell(stage)
        if service.returncode:
            click.echo((stage.directory / "up.log").read_text(), err=True)
            return Exit.FAILED
    click.echo("\nStopped cleanly; nothing is left behind. To start a lab: bullpen up --data ./lab")
    return Exit.OK


def _started(service: subprocess.Popen[bytes], stage: Stage) -> bool:
    if service.poll() is not None:
        log = (stage.directory / "up.log").read_text()
        raise click.ClickException(f"the service stopped while starting:\n{log}")
    return (stage.data / "endpoints.json").exists()


def _tell(stage: Stage) -> None:
    api = Api.from_data(stage.data)
    stage.show("Two manifests define a pool of U-Boot boards", "bullpen apply -f uboot-pool.yaml")
    _until(api, "two boards to be warm", lambda pool: pool["availableReplicas"] >= 2)
    stage.show("Two boards are warm", "bullpen get exporters")
    stage.show(
        "Lease a board with the published client and watch it boot",
        f"jmp shell --client-config {CLIENT} -l board=uboot -- python console.py",
    )
    _until(api, "the pool to be full again", lambda pool: pool["availableReplicas"] >= 2)
    stage.show("A fresh board has replaced the used one", "bullpen get exporters")
    _burst(stage, api)
    _until(api, "the pool to shrink", lambda pool: pool["replicas"] == 2)
    stage.show("The pool is idle again and has shrunk to two boards", "bullpen get exportersets")
    stage.show("The events explain each decision", f"bullpen events --for {POOL}/uboot")
    stage.show("The whole lab", "bullpen status")


def _burst(stage: Stage, api: Api) -> None:
    """Several leases at once: more than are warm, so the pool grows for them."""
    command = f"jmp shell --client-config {CLIENT} -l board=uboot -- sleep 3"
    click.echo(f"\n# {BURST} pipelines at the same time\n$ for i in 1..{BURST}: {command} &")
    started = time.monotonic()
    shells = [
        subprocess.Popen(
            shlex.split(command),
            cwd=stage.directory,
            env=stage.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for _ in range(BURST)
    ]
    _until(api, "all leases to be assigned", lambda pool: pool["leasedReplicas"] == BURST)
    click.echo(f"All {BURST} pipelines have a board after {time.monotonic() - started:.1f} s.")
    stage.show("The pool has grown", "bullpen get exportersets")
    codes = [shell.wait(BURST_SECONDS_MAX) for shell in shells]
    if any(codes):
        raise click.ClickException(f"the shells exited with {codes}")


def _until(api: Api, what: str, done: Callable[[Document], bool]) -> None:
    """Wait for the pool's counts, and say so if it takes a while."""
    path = path_of(resource_named(POOL), "default", "uboot")

    def look() -> bool:
        status = api.request("GET", path).get("status") or {}
        return "replicas" in status and done(status)

    if not look():
        click.echo(f"… waiting for {what}")
        wait_for(look, seconds=POOL_SECONDS_MAX, what=what)
