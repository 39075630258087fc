"""``bullpen completion``: prints a script that lets a shell complete commands."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_BULLPEN_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a completion script. Try: source <(bullpen completion bash)"""
    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(ctx.find_root().command, {}, "bullpen", VARIABLE).source())
