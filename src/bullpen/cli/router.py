"""``bullpen router``: one more router, in a process of its own."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import click

from bullpen.cli.connection import default_data_directory
from bullpen.cli.options import data_option


@click.command()
@data_option
@click.option("--name", default=lambda: f"{socket.gethostname()}".lower(), help="Unique name.")
@click.option("--listen", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=0, show_default=True, help="Port; 0 takes a free one.")
@click.option("--endpoint", default="", help="host:port clients use for it, if another.")
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def router(
    data: Path | None, name: str, listen: str, port: int, endpoint: str, verbose: bool
) -> None:
    """Run a router of its own for a service; new streams go to the least loaded one."""
    import uvloop

    from bullpen.app import logs
    from bullpen.app.router import RouterSettings, run

    logs.configure(verbose=verbose)
    settings = RouterSettings(
        name=name,
        data=data or default_data_directory(),
        listen=listen,
        port=port,
        endpoint=endpoint,
    )
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, announce=lambda where: click.echo(f"Routing at {where}.")))
