"""What the commands share: options, exit codes (docs/reference/exit-codes.md), waiting."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from bullpen import errors
from bullpen.client import config
from bullpen.errors import TimedOut

if TYPE_CHECKING:
    from bullpen.cli.connection import Api
    from bullpen.client.config import ClientConfig


class Exit(IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INVALID = 5
    CONFLICT = 6
    FORBIDDEN = 7
    UNHEALTHY = 8
    REFUSED = 9
    VIOLATED = 10
    LACKING = 11
    TIMED_OUT = 12
    UNSATISFIABLE = 13
    LEASE_ENDED = 14
    INTERRUPTED = 130


_CODES: dict[type[errors.LabError], Exit] = {
    errors.LabError: Exit.FAILED,
    errors.BadRequest: Exit.INVALID,
    errors.Invalid: Exit.INVALID,
    errors.TooLarge: Exit.INVALID,
    errors.NotFound: Exit.NOT_FOUND,
    errors.Conflict: Exit.CONFLICT,
    errors.AlreadyExists: Exit.CONFLICT,
    errors.Unauthorized: Exit.FORBIDDEN,
    errors.Forbidden: Exit.FORBIDDEN,
    errors.Unreachable: Exit.UNREACHABLE,
    errors.Refused: Exit.REFUSED,
    errors.TimedOut: Exit.TIMED_OUT,
    errors.LeaseRefused: Exit.UNSATISFIABLE,
}


def exit_for(error: errors.LabError) -> Exit:
    """The exit code of an error, by its nearest class in the table."""
    return next(_CODES[cls] for cls in type(error).__mro__ if cls in _CODES)


LOOK_SECONDS = 0.05


def wait_for(done: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll until ``done`` returns true; raises ``TimedOut`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimedOut(f"timed out after {seconds:g} s waiting for {what}")
        time.sleep(LOOK_SECONDS)


F = TypeVar("F", bound=Callable[..., Any])

KUBECONFIG = "bullpen.kubeconfig"
"""Where the value of ``--kubeconfig`` is kept until the connection is made."""


CLIENT_CONFIG = "bullpen.client-config"
"""Where the value of ``--client-config`` is kept until the config is read."""


def _keep_kubeconfig(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> None:
    ctx.meta[KUBECONFIG] = value


def default_data_directory() -> Path:
    return config.default_data_directory(os.environ, Path.home())


def suggestion(word: str, known: Iterable[str]) -> str:
    """``did you mean x?``, or an empty text if no known word is similar."""
    import difflib

    found = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {found[0]}?" if found else ""


def _connect(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Api:
    from bullpen.cli.connection import Api

    if kubeconfig := ctx.meta.get(KUBECONFIG):
        return Api.from_kubeconfig(kubeconfig)
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
    """``--data DIR`` or ``--kubeconfig FILE`` as an ``Api`` to the service."""
    function = click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path, dir_okay=False),
        is_eager=True,
        expose_value=False,
        callback=_keep_kubeconfig,
        help="Kubeconfig of a service or cluster, instead of a data directory.",
    )(function)
    return click.option(
        "--data",
        "api",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_connect,
        default=None,
        help="Data directory of the service [default: $BULLPEN_DATA, else ~/.local/share/bullpen].",
    )(function)


def _client(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> ClientConfig:
    if chosen := ctx.meta.get(CLIENT_CONFIG):
        return config.load(chosen)
    return config.find(os.environ, value or default_data_directory(), Path.home())


def client_options(function: F) -> F:
    """``--client-config FILE`` or ``--data DIR`` as the ``client`` that asks."""
    function = click.option(
        "--client-config",
        type=click.Path(path_type=Path),
        is_eager=True,
        expose_value=False,
        callback=lambda ctx, parameter, value: ctx.meta.__setitem__(CLIENT_CONFIG, value),
        help="Config file of a jmp client.",
    )(function)
    return click.option(
        "--data",
        "client",
        type=click.Path(path_type=Path, file_okay=False),
        callback=_client,
        default=None,
        help="Data directory of the service [default: $BULLPEN_DATA, else the usual one].",
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
