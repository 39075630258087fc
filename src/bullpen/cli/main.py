"""``bullpen``: finds the command, runs it, turns errors into sentences and exit codes."""

from __future__ import annotations

import importlib
import sys

import click

from bullpen import __version__
from bullpen.cli.exits import Exit, exit_for
from bullpen.errors import LabError

COMMANDS = {
    "up": "bullpen.cli.up:up",
    "status": "bullpen.cli.status:status",
    "apply": "bullpen.cli.apply:apply",
    "get": "bullpen.cli.get:get",
    "describe": "bullpen.cli.describe:describe",
    "delete": "bullpen.cli.delete:delete",
    "scale": "bullpen.cli.scale:scale",
    "events": "bullpen.cli.events:events",
    "crds": "bullpen.cli.crds:crds",
    "bench": "bullpen.cli.bench:bench",
    "demo": "bullpen.cli.demo:demo",
}


class LazyGroup(click.Group):
    """Imports a command's module when it is called, so that ``--help`` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        place = COMMANDS.get(cmd_name)
        if place is None:
            return None
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="bullpen")
def cli() -> None:
    """Test targets, physical or virtual, for people and pipelines."""


def main() -> None:
    """The console entry point."""
    try:
        result = cli.main(standalone_mode=False)
        code = result if isinstance(result, int) else Exit.OK
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = Exit.INTERRUPTED
    except LabError as error:
        click.echo(f"bullpen: {error.message}", err=True)
        code = exit_for(error)
    except BrokenPipeError:
        # The reader of our output left; that is its right and not an error.
        sys.stderr.close()
        code = Exit.OK
    sys.exit(code)
