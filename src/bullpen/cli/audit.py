"""``bullpen audit``: shows changes and refusals from the audit log."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path

import click

from bullpen.api.paths import Document
from bullpen.cli.options import data_option, default_data_directory, output
from bullpen.cli.output import table
from bullpen.errors import BadRequest, NotFound
from bullpen.kit import durations, times

HEADERS = ("time", "who", "verb", "what", "namespace", "from", "outcome")


@click.command()
@data_option
@click.option("--who", default="", help="Only requests of this user; * and ? are wildcards.")
@click.option("--what", default="", help="Only requests with this verb, resource or RESOURCE/NAME.")
@click.option("--since", default="", help="Only newer requests: a duration such as 2h, or a time.")
@output("table", "json")
def audit(data: Path | None, who: str, what: str, since: str, output: str) -> None:
    """Show the audit log of a data directory, oldest first.

    The service need not be running. With -o json the events are printed as they are stored,
    one per line, in the format of audit.k8s.io/v1.
    """
    from bullpen.audit.log import Query, read
    from bullpen.datadir.directory import Layout
    from bullpen.kit.clock import SystemClock

    directory = Layout((data or default_data_directory()).resolve()).audit
    if not directory.is_dir():
        raise NotFound(
            f"{directory} does not exist: nothing was recorded yet, or audit.enabled is false."
            " Name the data directory with --data or $BULLPEN_DATA"
        )
    query = Query(who=who, what=what, since=moment(since, now=SystemClock().now()))
    found = read(directory, query)
    if output == "json":
        for event in found:
            click.echo(json.dumps(event, ensure_ascii=False))
        return
    rows = [row(event) for event in found]
    if rows:
        click.echo(table(HEADERS, rows))
    else:
        click.echo("No audit events found.", err=True)


def moment(text: str, *, now: datetime) -> datetime | None:
    """The time in ``text``: a duration before ``now``, or a time."""
    if not text:
        return None
    try:
        ago = durations.parse(text)
    except ValueError:
        try:
            return times.parse(text)
        except ValueError:
            raise BadRequest(
                f"--since {text!r} is neither a duration such as 2h"
                " nor a time such as 2026-01-31T12:00:00Z"
            ) from None
    return now - max(ago, timedelta())


def row(event: Document) -> tuple[str, ...]:
    """One event as a line of the table."""
    from bullpen.audit.log import users, what

    reference = event.get("objectRef") or {}
    status = event.get("responseStatus") or {}
    outcome = " ".join(str(part) for part in (status.get("code"), status.get("reason")) if part)
    return (
        str(event.get("stageTimestamp", ""))[:19] + "Z",
        " as ".join(users(event)),
        str(event.get("verb", "")),
        what(event),
        str(reference.get("namespace", "")),
        ",".join(event.get("sourceIPs") or ()),
        outcome,
    )
