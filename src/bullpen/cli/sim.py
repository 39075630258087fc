"""``bullpen sim``: the whole lab under virtual time, with faults, from a seed."""

from __future__ import annotations

import itertools
import sys
import time

import click

from bullpen.cli.options import Exit, output
from bullpen.cli.output import echo_document
from bullpen.sim.campaign import Summary, outcomes
from bullpen.sim.campaign import shrink as shrunk
from bullpen.sim.plan import Home, Size
from bullpen.sim.run import Outcome, run

PROGRESS_SECONDS = 0.5


@click.command()
@click.option("--seed", default=1, show_default=True, help="The first seed.")
@click.option("--runs", default=1, show_default=True, help="Number of seeds; 0 runs without end.")
@click.option(
    "--home",
    type=click.Choice([home.value for home in Home]),
    default=Home.EMBEDDED.value,
    show_default=True,
    help="Where objects are stored.",
)
@click.option(
    "--size",
    type=click.Choice([size.value for size in Size]),
    default=Size.USUAL.value,
    show_default=True,
    help="Size of a run: small sizes give many different runs, large sizes many leases.",
)
@click.option("--until", type=float, default=None, help="Stop after this many seconds.")
@click.option("--leases", type=int, default=None, help="Stop after this many leases.")
@click.option("--jobs", default=1, show_default=True, help="Number of processes.")
@click.option("--shrink", is_flag=True, help="Make a failing run as short as possible.")
@click.option("--trace", default=40, show_default=True, help="Trace lines to show of a failure.")
@output("text", "json")
def sim(
    seed: int,
    runs: int,
    home: str,
    size: str,
    until: float | None,
    leases: int | None,
    jobs: int,
    shrink: bool,
    trace: int,
    output: str,
) -> int:
    """Run seeds and check every promise after every commit. Exits with 10 if one is broken."""
    seeds = itertools.count(seed) if runs == 0 else range(seed, seed + runs)
    click.echo(f"seed {seed}, {runs or 'all following'} {size} runs, {home} home", err=True)
    began = shown = time.monotonic()
    summary = Summary()
    for outcome in outcomes(seeds, Home(home), size=Size(size), jobs=jobs):
        summary = summary.plus(outcome)
        if not outcome.ok:
            return _failed(shrunk(outcome, run) if shrink else outcome, trace, output)
        now = time.monotonic()
        if sys.stderr.isatty() and now - shown > PROGRESS_SECONDS:
            shown = now
            click.echo(f"\r{_line(summary, now - began)}", err=True, nl=False)
        if until is not None and now - began > until:
            break
        if leases is not None and summary.leases >= leases:
            break
    _passed(summary, time.monotonic() - began, output)
    return Exit.OK


def _line(summary: Summary, seconds: float) -> str:
    return (
        f"{summary.runs} runs, {summary.leases} leases, {summary.commits} commits: no promise"
        f" broken in {summary.seconds:.0f} s of virtual time, {summary.seconds / seconds:.0f} times"
        f" as fast as real time, {summary.leases / seconds:.0f} leases a second"
    )


def _passed(summary: Summary, seconds: float, output: str) -> None:
    if output == "json":
        facts = {
            "runs": summary.runs,
            "leases": summary.leases,
            "commits": summary.commits,
            "virtualSeconds": round(summary.seconds, 3),
            "seconds": round(seconds, 3),
        }
        echo_document(facts, "json")
    else:
        click.echo(
            f"\r{_line(summary, seconds)}" if sys.stderr.isatty() else _line(summary, seconds)
        )


def _failed(outcome: Outcome, trace: int, output: str) -> int:
    plan = outcome.plan
    again = f"bullpen sim --seed {plan.seed} --home {plan.home} --size {plan.size}"
    if output == "json":
        facts = {
            "seed": plan.seed,
            "home": plan.home.value,
            "size": plan.size.value,
            "violations": [str(found) for found in outcome.violations],
            "steps": [f"{step.number} {step.at:.3f} {step.act}" for step in plan.steps],
            "trace": list(outcome.tail[-trace:]),
            "again": again,
        }
        echo_document(facts, "json")
        return Exit.VIOLATED
    click.echo("\n".join(outcome.tail[-trace:]))
    click.echo(f"\nseed {plan.seed} broke a promise:")
    for found in outcome.violations:
        click.echo(f"  {found}")
    steps = ", ".join(f"{step.number} {step.act}" for step in plan.steps)
    click.echo(f"steps ({len(plan.steps)}): {steps}")
    click.echo(f"to reproduce: {again}")
    return Exit.VIOLATED
