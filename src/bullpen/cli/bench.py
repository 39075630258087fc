"""``bullpen bench``: measures, and prints ratios to references measured in the same run."""

from __future__ import annotations

import asyncio
import importlib

import click

from bullpen.cli.options import output
from bullpen.cli.rendering import echo_document

BENCHMARKS = {
    "store": "Durable writes, against bare group-committed SQLite.",
    "apiserver": "Durable writes and watch fan-out over HTTPS.",
    "lease": "Leases over gRPC, against an empty call and one durable commit.",
    "growth": "Cost of a lease by the size of the lab and the length of the queue.",
    "pool": "Exporters of a pool, against starting them by hand; cost by the size of a pool.",
    "router": "Bytes through the router, against a plain TCP relay.",
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--rounds", default=3, show_default=True, help="Repetitions, interleaved.")
@output("table", "json")
def bench(names: tuple[str, ...], rounds: int, output: str) -> None:
    """Run the benchmarks NAMED, or all. Every figure is a ratio to its reference."""
    import uvloop

    from bullpen.bench.measure import render

    results = []
    for name in names or tuple(BENCHMARKS):
        click.echo(f"{name}: {BENCHMARKS[name]}", err=True)
        module = importlib.import_module(f"bullpen.bench.{name}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            results += runner.run(module.run(rounds=rounds))
    if output == "json":
        echo_document([result.document() for result in results], "json")
    else:
        click.echo(render(tuple(results)))
