"""``bullpen router``: an additional router, in a process of its own."""

from __future__ import annotations

import asyncio
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from bullpen.cli.options import data_option, default_data_directory
from bullpen.cli.process_options import (
    EVERYWHERE,
    joining,
    served_over_tls,
    settings_from,
    tls_from,
    traced,
    tracing_from,
)

IN_A_POD = "KUBERNETES_SERVICE_HOST"


@click.command()
@data_option
@joining
@click.option(
    "--name",
    default=lambda: socket.gethostname().lower(),
    envvar="BULLPEN_ROUTER_NAME",
    help="Unique name [default: that of the host].",
)
@click.option(
    "--port",
    default=0,
    show_default=True,
    envvar="BULLPEN_PORT",
    type=click.IntRange(0, 65535),
    help="Port; 0 chooses a free port.",
)
@click.option(
    "--endpoint",
    default="",
    envvar="BULLPEN_ENDPOINT",
    help="host:port that clients and exporters connect to, if different.",
)
@click.option(
    "--drain",
    default=0.0,
    show_default=True,
    envvar="BULLPEN_DRAIN",
    type=click.FloatRange(0),
    help="Seconds for which streams may continue after SIGTERM.",
)
@served_over_tls
@traced
def router(
    data: Path | None,
    name: str,
    listen: str,
    port: int,
    endpoint: str,
    drain: float,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tracing_endpoint: str,
    tracing_ratio: float,
    verbose: bool,
    **join: Any,
) -> None:
    """Run an additional router in its own process; new streams go to the least loaded router.

    With --data or $BULLPEN_DATA it serves the lab in that data directory; with --kubeconfig,
    or in a Pod, it serves the lab in the cluster.
    """
    import uvloop

    from bullpen.app import process
    from bullpen.app.router import RouterSettings, run

    chosen = data or os.environ.get("BULLPEN_DATA")
    clustered = not chosen and bool(join["kubeconfig"] or os.environ.get(IN_A_POD))
    listen = listen or (EVERYWHERE if clustered else "127.0.0.1")
    settings = RouterSettings(
        name=name,
        home=settings_from(listen=listen, **join)
        if clustered
        else data or default_data_directory(),
        listen=listen,
        port=port,
        endpoint=endpoint,
        tls=tls_from(tls_cert, tls_key, tls_ca),
        tracing=tracing_from(tracing_endpoint, tracing_ratio),
        drain=timedelta(seconds=drain),
    )
    process.configure_logs(verbose=verbose)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, announce=lambda where: click.echo(f"Routing at {where}.")))
