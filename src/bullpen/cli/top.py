"""``bullpen top``: the status of the service, kept current in a terminal."""

from __future__ import annotations

import shutil
import sys
import time
from datetime import UTC, datetime, timedelta

import click

from bullpen.cli.connection import Api
from bullpen.cli.options import connected
from bullpen.cli.status import gather, text
from bullpen.errors import LabError
from bullpen.kit import durations

HOME_AND_CLEAR = "\x1b[H\x1b[J"
INTERVAL_MIN = timedelta(milliseconds=200)


def _interval(_: click.Context, option: click.Parameter, given: str) -> timedelta:
    try:
        found = durations.parse(given)
    except ValueError as error:
        raise click.BadParameter(str(error), param=option) from None
    if found < INTERVAL_MIN:
        raise click.BadParameter("must be at least 200ms", param=option)
    return found


@click.command()
@connected
@click.option("--interval", default="2s", show_default=True, callback=_interval,
              metavar="DURATION", help="Time between two looks.")  # fmt: skip
def top(api: Api, interval: timedelta) -> None:
    """Show pools, exporters and leases, and keep them current; Ctrl-C ends it.

    Where the output is no terminal, it is shown once.
    """
    while True:
        shown = _report(api)
        if not sys.stdout.isatty():
            click.echo(shown)
            return
        click.echo(HOME_AND_CLEAR + fitted(shown, *shutil.get_terminal_size()), nl=False)
        time.sleep(interval.total_seconds())


def _report(api: Api) -> str:
    now = datetime.now(UTC)
    try:
        return text(gather(api), now=now)
    except LabError as error:
        # It may be starting again; the next look tells.
        return f"{now:%H:%M:%S}  {error.message}"


def fitted(shown: str, columns: int, rows: int) -> str:
    """As much as fits into a terminal; the last line says what does not."""
    lines = [line[:columns] for line in shown.splitlines()]
    if len(lines) <= rows:
        return "\n".join(lines)
    left = len(lines) - rows + 1
    return "\n".join([*lines[: rows - 1], f"… {left} more lines; bullpen status shows all"])
