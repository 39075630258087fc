"""Options that many commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from bullpen.cli.connection import Api, default_data_directory

F = TypeVar("F", bound=Callable[..., Any])


def _connect(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Api:
    if ctx.params.get("kubeconfig"):
        return Api.from_kubeconfig(ctx.params["kubeconfig"])
    return Api.from_data(value or default_data_directory())


def data_option(function: F) -> F:
    """``--data DIR`` as a path."""
    return click.option(
        "--data",
        type=click.Path(path_type=Path, file_okay=False),
        default=None,
        help="Data directory [default: $BULLPEN_DATA, else ~/.local/share/bullpen].",
    )(function)


def connected(function: F) -> F:
    """``--data DIR`` as an ``Api`` to the service running there."""
    return click.option(
        "--data",
        "api",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_connect,
        default=None,
        help="Data directory of the service [default: $BULLPEN_DATA, else ~/.local/share/bullpen].",
    )(function)


def namespaced(function: F) -> F:
    return click.option(
        "-n", "--namespace", default="default", show_default=True, help="Namespace."
    )(function)


def output(*forms: str) -> Callable[[F], F]:
    """``-o`` with the output formats of a command; the first is the default."""

    def decorate(function: F) -> F:
        return click.option(
            "-o",
            "--output",
            type=click.Choice(forms),
            default=forms[0],
            show_default=True,
            help="Output format.",
        )(function)

    return decorate
