"""``bullpen dashboard``: an address that signs in once at the dashboard.

``bullpen dashboard serve`` is the dashboard of a cluster, in a process of its own.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from bullpen.cli.connection import Api
from bullpen.cli.options import data_option, default_data_directory
from bullpen.cli.process_options import FILE, config_option, joining, settings_from

LINKS = "/dashboard/api/links"


@click.group(invoke_without_command=True)
@data_option
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    help="Sign in as the user of this kubeconfig, rather than as the administrator.",
)
@click.pass_context
def dashboard(context: click.Context, data: Path | None, kubeconfig: Path | None) -> None:
    """Print an address that signs in at the dashboard, once and within 15 minutes."""
    if context.invoked_subcommand is not None:
        return
    api = (
        Api.from_kubeconfig(kubeconfig)
        if kubeconfig is not None
        else Api.from_data(data or default_data_directory())
    )
    path = api.request("POST", LINKS)["path"]
    click.echo(f"{api.server}{path}")


@dashboard.command()
@joining
@click.option(
    "--port",
    default=8443,
    show_default=True,
    envvar="BULLPEN_PORT",
    type=click.IntRange(0, 65535),
    help="Port of the dashboard; 0 chooses a free port.",
)
@click.option(
    "--endpoint",
    required=True,
    envvar="BULLPEN_ENDPOINT",
    help="host:port of the controller, as clients and exporters reach it.",
)
@click.option(
    "--service-ca",
    type=FILE,
    envvar="BULLPEN_SERVICE_CA",
    help="CA certificate of the controller and the routers [default: those of the system].",
)
@click.option(
    "--tls-cert",
    type=FILE,
    envvar="BULLPEN_TLS_CERT",
    help="Server certificate [default: a self-signed one, made at each start].",
)
@click.option("--tls-key", type=FILE, envvar="BULLPEN_TLS_KEY", help="Its private key file.")
@config_option
def serve(
    port: int,
    endpoint: str,
    service_ca: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    config: Path | None,
    verbose: bool,
    **join: Any,
) -> None:
    """Run the dashboard of a cluster; people sign in with tokens of the cluster or of clients."""
    import uvloop

    from bullpen.app import process
    from bullpen.app.cluster_dashboard import ClusterDashboardSettings, run
    from bullpen.app.config import load

    if (tls_cert is None) != (tls_key is None):
        raise click.UsageError("give --tls-cert and --tls-key together")
    settings = ClusterDashboardSettings(
        join=settings_from(**join),
        port=port,
        endpoint=endpoint,
        service_ca=service_ca,
        certificate=tls_cert,
        key=tls_key,
        config=load(config),
    )
    process.configure_logs(verbose=verbose)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, announce=lambda where: click.echo(f"Serving at {where}.")))
