"""``bullpen logs``: the log of a virtual target's exporter."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import click

from bullpen.cli.connection import Api, path_of, resource_named
from bullpen.cli.options import data_option, default_data_directory, namespaced
from bullpen.errors import NotFound

LOOK_SECONDS = 0.2


@click.command()
@click.argument("exporter")
@data_option
@namespaced
@click.option("-f", "--follow", is_flag=True, help="Then show new output, until Ctrl-C.")
def logs(exporter: str, data: Path | None, namespace: str, follow: bool) -> None:
    """Show the log of EXPORTER, a virtual target that runs on this machine."""
    from bullpen.placements.local.layout import Layout

    root = data or default_data_directory()
    path = Layout(root.resolve()).log((namespace, exporter))
    if not path.exists():
        _explain(Api.from_data(root), namespace, exporter)
    _show(path, follow=follow)


def _show(path: Path, *, follow: bool) -> None:
    with path.open("rb") as file:
        while True:
            while chunk := file.read(1 << 16):
                sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()
            if not follow or not path.exists():
                return
            time.sleep(LOOK_SECONDS)


def _explain(api: Api, namespace: str, exporter: str) -> None:
    """Explain why there is no log: no such exporter, or it runs elsewhere."""
    api.request("GET", path_of(resource_named("exporters"), namespace, exporter))
    raise NotFound(
        f"exporter {exporter} does not run on this machine; look at the output of its 'jmp run'."
        f" 'bullpen describe exporter {exporter}' shows its conditions and events"
    )
