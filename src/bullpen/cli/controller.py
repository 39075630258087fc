"""``bullpen controller``: leases, exporters, clients and their gRPC services, in a cluster."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from bullpen.cli.process_options import (
    config_option,
    joining,
    served_over_tls,
    settings_from,
    tls_from,
    traced,
    tracing_from,
)


@click.command()
@joining
@click.option(
    "--port",
    default=8082,
    show_default=True,
    envvar="BULLPEN_PORT",
    type=click.IntRange(0, 65535),
    help="Port of the gRPC services; 0 chooses a free port.",
)
@click.option(
    "--endpoint",
    default="",
    envvar="BULLPEN_ENDPOINT",
    help="host:port that clients and exporters connect to, if different.",
)
@click.option(
    "--login-port",
    default=8086,
    show_default=True,
    envvar="BULLPEN_LOGIN_PORT",
    type=click.IntRange(-1, 65535),
    help="Port of the login discovery; -1 disables it.",
)
@click.option(
    "--scaler-port",
    default=8085,
    show_default=True,
    envvar="BULLPEN_SCALER_PORT",
    type=click.IntRange(0, 65535),
    help="Port of the external scaler for KEDA.",
)
@click.option(
    "--scaler-client-ca",
    envvar="BULLPEN_SCALER_CLIENT_CA",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="CA of KEDA's client certificates; without it, there is no external scaler.",
)
@click.option(
    "--api-port",
    default=-1,
    show_default=True,
    envvar="BULLPEN_API_PORT",
    type=click.IntRange(-1, 65535),
    help="Port of the API server that removes members by name; -1 disables it.",
)
@click.option(
    "--pod",
    default="",
    envvar="BULLPEN_POD",
    help="The Pod of this process, which gets a label while it leads [default: none].",
)
@served_over_tls
@traced
@config_option
def controller(
    port: int,
    endpoint: str,
    login_port: int,
    scaler_port: int,
    scaler_client_ca: Path | None,
    api_port: int,
    pod: str,
    config: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    tls_ca: Path | None,
    tracing_endpoint: str,
    tracing_ratio: float,
    verbose: bool,
    **join: Any,
) -> None:
    """Run the controller of a cluster. One of several replicas leads, the others are standbys."""
    import uvloop

    from bullpen.app import process
    from bullpen.app.config import load
    from bullpen.app.controller import ControllerSettings, run

    settings = ControllerSettings(
        join=settings_from(**join),
        port=port,
        endpoint=endpoint,
        login_port=login_port,
        scaler_port=scaler_port,
        scaler_client_ca=scaler_client_ca,
        api_port=api_port,
        pod=pod,
        tls=tls_from(tls_cert, tls_key, tls_ca),
        tracing=tracing_from(tracing_endpoint, tracing_ratio),
        config=load(config),
    )
    process.configure_logs(verbose=verbose)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, announce=click.echo))
