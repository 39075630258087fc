"""``bullpen demo``: the service doing its main job, in a throw-away directory.

Everything it shows is done by the commands it prints, the published ``jmp`` included.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.exits import Exit
from bullpen.cli.waiting import wait_for

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0

BIN = Path(sys.executable).parent
EXAMPLES = Path(__file__).parents[3] / "examples"


class Stage:
    """Runs commands as a person would, showing what is typed and what comes back."""

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
            raise click.ClickException(f"that exited with {done.returncode}; the demo ends here")

    @contextlib.contextmanager
    def running(self, command: str, log: str) -> Iterator[subprocess.Popen[bytes]]:
        """A program in the background, its output kept aside, ended with the block."""
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


@click.command()
def demo() -> int:
    """Start a lab in a throw-away directory, lease a target with jmp, show it, stop it."""
    with tempfile.TemporaryDirectory(prefix="bullpen-demo-") as directory:
        stage = Stage(Path(directory))
        for name in ("lab.yaml", "mock-exporter.yaml"):
            (stage.directory / name).write_bytes((EXAMPLES / name).read_bytes())
        click.echo("Starting the service …")
        with stage.running("bullpen up --port-base 0", "up.log") as service:
            wait_for(
                lambda: _started(service, stage), seconds=READY_SECONDS_MAX, what="the service"
            )
            _tell(stage)
        if service.returncode:
            click.echo((stage.directory / "up.log").read_text(), err=True)
            return Exit.FAILED
    click.echo("\nStopped cleanly; nothing is left behind. Your own: bullpen up --data ./lab")
    return Exit.OK


def _started(service: subprocess.Popen[bytes], stage: Stage) -> bool:
    if service.poll() is not None:
        log = (stage.directory / "up.log").read_text()
        raise click.ClickException(f"the service stopped while starting:\n{log}")
    return (stage.data / "endpoints.json").exists()


def _tell(stage: Stage) -> None:
    stage.show("Declare a client, a board and a pool", "bullpen apply -f lab.yaml")
    stage.show("A board of our own", "bullpen exporter create mock -l board=mock --out mock.yaml")
    config = stage.directory / "mock.yaml"
    export = (stage.directory / "mock-exporter.yaml").read_text()
    config.write_text(config.read_text().replace("export: {}\n", export))
    click.echo("\n# Its exporter, in the background\n$ jmp run --exporter-config mock.yaml &")
    with stage.running("jmp run --exporter-config mock.yaml", "exporter.log"):
        api = Api.from_data(stage.data)
        wait_for(lambda: _online(api), seconds=READY_SECONDS_MAX, what="the exporter")
        stage.show(
            "What can be leased", "jmp get exporters --client-config lab/clients/default.yaml"
        )
        stage.show(
            "Lease it with the published client, switch it on, give it back",
            "jmp shell --client-config lab/clients/default.yaml -l board=mock -- j power on",
        )
        stage.show("The lease, and where it went", "bullpen get leases")
        stage.show("What happened", "bullpen events")
        stage.show("All at a glance", "bullpen status")


def _online(api: Api) -> bool:
    found = api.request("GET", path_of(resource_named("exporters"), "default", "mock"))
    return (found.get("status") or {}).get("exporterStatus") == "Available"
