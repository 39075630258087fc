"""``bullpen up``: the whole service in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from bullpen.api.paths import Document
from bullpen.cli.options import data_option, default_data_directory
from bullpen.cli.process_options import traced, tracing_from


@click.command()
@click.option(
    "-f",
    "--filename",
    "manifests",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Apply this manifest once the service is running. May be repeated.",
)
@click.option(
    "--example",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Apply an example that comes with Bullpen, such as uboot-pool. May be repeated.",
)
@data_option
@click.option(
    "--listen",
    default="127.0.0.1",
    show_default=True,
    envvar="BULLPEN_LISTEN",
    help="Address to listen on.",
)
@click.option(
    "--endpoint",
    default="",
    metavar="HOST",
    envvar="BULLPEN_ENDPOINT",
    help="Host name or address that other machines use; needed with --listen 0.0.0.0 or ::.",
)
@click.option(
    "--port-base",
    default=8080,
    show_default=True,
    envvar="BULLPEN_PORT_BASE",
    type=click.IntRange(0, 65000),
    help="First port; 0 chooses free ports.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Settings file; see docs/reference/settings.md.",
)
@traced
@click.option("-v", "--verbose", is_flag=True, help="Log more.")
def up(
    manifests: tuple[Path, ...],
    chosen: tuple[str, ...],
    data: Path | None,
    listen: str,
    endpoint: str,
    port_base: int,
    config: Path | None,
    tracing_endpoint: str,
    tracing_ratio: float,
    verbose: bool,
) -> None:
    """Run the whole service on this machine until Ctrl-C or SIGTERM."""
    from bullpen.app import process
    from bullpen.app.config import load
    from bullpen.app.embedded import Settings
    from bullpen.app.up import up as run

    applied = (*manifests, *(_example(name) for name in chosen))
    process.configure_logs(verbose=verbose)
    settings = Settings(
        data=data or default_data_directory(),
        listen=listen,
        endpoint=endpoint,
        port_base=port_base,
        manifests=applied,
        tracing=tracing_from(tracing_endpoint, tracing_ratio),
        config=load(config),
    )
    run(settings, announce=_announce)


def _example(name: str) -> Path:
    from bullpen.cli.manifests import example, examples

    if name not in examples():
        raise click.UsageError(f"there is no example {name!r}; there are {', '.join(examples())}")
    return example(f"{name}.yaml")


def _announce(endpoints: Document, applied: list[str]) -> None:
    where = f" --data {Path(endpoints['kubeconfig']).parent}"
    for name in applied:
        click.echo(f"{name} applied")
    click.echo("Bullpen is up.")
    click.echo(f"  API server     {endpoints['apiserver']}")
    click.echo(f"  dashboard      {endpoints['dashboard']}")
    click.echo(f"  controller     {endpoints['controller']}")
    click.echo(f"  router         {endpoints['router']}")
    click.echo(f"  login          {endpoints['login']}")
    click.echo(f"  kubeconfig     {endpoints['kubeconfig']}")
    click.echo(f"  client config  {endpoints['client']}")
    click.echo()
    click.echo("Open the dashboard; this link signs you in once, within 15 minutes:")
    # What is not a terminal is a log, which others may read.
    link = endpoints["link"] if sys.stdout.isatty() else f"printed by: bullpen dashboard{where}"
    click.echo(f"  {link}")
    click.echo("Or try, in another terminal:")
    click.echo(f"  kubectl --kubeconfig {endpoints['kubeconfig']} get exporters")
    click.echo(f"  jmp get exporters --client-config {endpoints['client']}")
    click.echo(f"  bullpen status{where}")
    click.echo("Press Ctrl-C to stop.")
