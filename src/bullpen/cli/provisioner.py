"""``bullpen provisioner``: the pools of one provisioner, in a process of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bullpen.cli.process_options import FILE, config_option, joining, settings_from

if TYPE_CHECKING:
    from bullpen.placements.pod.rendering import PodSettings


@click.command()
@click.option(
    "--provisioner",
    required=True,
    envvar="BULLPEN_PROVISIONER",
    help="Provisioner whose pools to manage, such as qemu.jumpstarter.dev.",
)
@joining
@click.option(
    "--placement",
    type=click.Choice(("pod", "local")),
    default="pod",
    show_default=True,
    envvar="BULLPEN_PLACEMENT",
    help="Where targets run: as Pods of the cluster, or on this machine.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    envvar="BULLPEN_DATA",
    help="Directory for targets that run on this machine.",
)
@click.option(
    "--exporter-image",
    default="",
    envvar="BULLPEN_EXPORTER_IMAGE",
    help="Image of exporters, unless a class or set names another.",
)
@click.option(
    "--runtime-image",
    multiple=True,
    metavar="NAME=IMAGE",
    envvar="BULLPEN_RUNTIME_IMAGES",
    help="Image in which targets run, such as qemu=…; may be repeated.",
)
@click.option(
    "--pull-secret",
    multiple=True,
    envvar="BULLPEN_PULL_SECRETS",
    help="Secret to pull images with; may be repeated.",
)
@click.option(
    "--pod-service-account",
    default="",
    envvar="BULLPEN_POD_SERVICE_ACCOUNT",
    help="Service account of the Pods; its token is never mounted.",
)
@click.option(
    "--tls-ca",
    type=FILE,
    envvar="BULLPEN_TLS_CA",
    help="CA certificate for exporters [default: the one that the controller publishes].",
)
@config_option
def provisioner(
    provisioner: str,
    placement: str,
    data: Path | None,
    exporter_image: str,
    runtime_image: tuple[str, ...],
    pull_secret: tuple[str, ...],
    pod_service_account: str,
    tls_ca: Path | None,
    config: Path | None,
    verbose: bool,
    **join: Any,
) -> None:
    """Manage the pools of one provisioner. One of several replicas is the leader."""
    import uvloop

    from bullpen.app import process
    from bullpen.app.config import load
    from bullpen.app.provisioner import ProvisionerSettings, run

    if placement == "local" and data is None:
        raise click.UsageError("--placement local requires --data")
    pods = _pods(exporter_image, runtime_image, pull_secret, pod_service_account)
    settings = ProvisionerSettings(
        provisioner=provisioner,
        join=settings_from(**join),
        pods=pods if placement == "pod" else None,
        data=data,
        ca=tls_ca,
        config=load(config),
    )
    process.configure_logs(verbose=verbose)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(settings, announce=click.echo))


def _pods(
    image: str, runtimes: tuple[str, ...], pull_secrets: tuple[str, ...], account: str
) -> PodSettings:
    from bullpen.placements.pod.rendering import PodSettings

    pairs = [text.partition("=") for text in runtimes]
    if not all(name and found for name, _, found in pairs):
        raise click.UsageError("write --runtime-image as NAME=IMAGE")
    return PodSettings(
        exporter_image=image,
        runtime_images={name: found for name, _, found in pairs},
        pull_secrets=pull_secrets,
        service_account=account,
    )
