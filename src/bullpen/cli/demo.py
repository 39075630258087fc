"""``bullpen demo``: the service doing its main job, in a throw-away directory."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from bullpen.cli.connection import Api
from bullpen.cli.exits import Exit

READY_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0

EXAMPLE = Path(__file__).parents[3] / "examples" / "lab.yaml"

STEPS = (
    ("Declare a client, a board and a pool", "apply -f {example}"),
    ("What is there now", "get exporters"),
    ("The pool and its limits", "get exportersets -o wide"),
    ("Move the pool's ceiling", "scale exporterset/uboot --replicas=8"),
    ("One object in full", "describe exporterset uboot"),
    ("All at a glance", "status"),
)


@click.command()
def demo() -> int:
    """Start a lab in a throw-away directory, use it, show it, stop it."""
    with tempfile.TemporaryDirectory(prefix="bullpen-demo-") as directory:
        data = Path(directory) / "lab"
        click.echo(f"Starting Bullpen in {data} …")
        service = subprocess.Popen(
            [*_bullpen(), "up", "--data", str(data), "--port-base", "0"],
            stdout=subprocess.DEVNULL,
        )
        try:
            _wait_ready(service, data)
            click.echo(f"It answers at {Api.from_data(data).server}.")
            failed = [title for title, line in STEPS if not _show(title, line, data)]
        finally:
            service.send_signal(signal.SIGTERM)
            code = service.wait(STOP_SECONDS_MAX)
    if failed or code:
        click.echo(f"The demo failed: {', '.join(failed) or f'exit code {code}'}", err=True)
        return Exit.FAILED
    click.echo("\nStopped cleanly; nothing is left behind. Your own: bullpen up --data ./lab")
    return Exit.OK


def _bullpen() -> list[str]:
    return [sys.executable, "-m", "bullpen"]


def _wait_ready(service: subprocess.Popen[bytes], data: Path) -> None:
    from bullpen.cli.waiting import wait_for

    def ready() -> bool:
        if service.poll() is not None:
            raise click.ClickException("the service stopped while starting; its output says why")
        return (data / "endpoints.json").exists()

    wait_for(ready, seconds=READY_SECONDS_MAX, what="the service to answer")


def _show(title: str, line: str, data: Path) -> bool:
    """Run one command as a person would, showing what was typed and what came back."""
    arguments = shlex.split(line.format(example=EXAMPLE))
    click.echo(f"\n# {title}\n$ bullpen {line.format(example='examples/lab.yaml')}")
    command = [*_bullpen(), arguments[0], "--data", str(data), *arguments[1:]]
    return subprocess.run(command, check=False).returncode == 0
