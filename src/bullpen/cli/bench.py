"""``bullpen bench``: measures, and prints ratios to references measured in the same run."""

from __future__ import annotations

import asyncio
import importlib
from datetime import UTC, datetime
from pathlib import Path

import click

from bullpen.cli.options import output
from bullpen.cli.output import echo_document

BENCHMARKS = {
    "store": "Durable writes, against plain group-committed SQLite.",
    "apiserver": "Durable writes and watch fan-out over HTTPS.",
    "lease": "Leases over gRPC, against an empty call and one durable commit; and without claims.",
    "growth": "Cost of a lease by the size of the lab and the length of the queue.",
    "pool": "Exporters of a pool, against starting them by hand; cost by the size of a pool.",
    "claims": "A pass over 10,000 waiting claims, one freed device, and claims hard to answer.",
    "router": "Bytes through the router, against a plain TCP relay.",
    "startup": "Start of the command, and of the service after kill -9; cost of ended leases.",
    "shell": "jmp shell, against one without a service; bullpen shell and console.",
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--rounds", default=3, show_default=True, help="Repetitions, interleaved.")
@click.option(
    "--write",
    is_flag=True,
    help="Run all, and publish the figures in README.md and docs/ of the current directory.",
)
@output("table", "json")
def bench(names: tuple[str, ...], rounds: int, write: bool, output: str) -> None:
    """Run the named benchmarks, or all of them. Every figure is a ratio to its reference.

    If a benchmark cannot run, the command names it, publishes nothing and exits with 1.
    """
    import uvloop

    from bullpen.bench import report
    from bullpen.bench.measure import Result, machine_times, render

    if write and names:
        raise click.UsageError("--write publishes all figures of one run; name no benchmark")
    results: list[Result] = []
    failed: list[str] = []
    stolen: dict[str, float] = {}
    for name in names or tuple(BENCHMARKS):
        click.echo(f"{name}: {BENCHMARKS[name]}", err=True)
        module = importlib.import_module(f"bullpen.bench.{name}")
        before = machine_times()
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                results += runner.run(module.run(rounds=rounds))
        except Exception as error:  # after any error, the other benchmarks still run
            failed.append(name)
            click.echo(f"{name} could not run: {type(error).__name__}: {error}", err=True)
        stolen[name] = machine_times().share_since(before)
        click.echo(f"{name}: {stolen[name]:.1%} of the CPU time was stolen by the host", err=True)
    if output == "json":
        echo_document([result.document() for result in results], "json")
    else:
        click.echo(render(tuple(results)))
    if failed:
        raise click.exceptions.Exit(1)
    if write:
        machine = report.machine(datetime.now(UTC))
        found = report.Report(machine=machine, stolen=stolen, results=tuple(results))
        report.write(Path.cwd(), found)
