"""``bullpen``: finds the command, runs it, converts errors to messages and exit codes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

import click

from bullpen import __version__
from bullpen.cli.options import Exit, exit_for, suggestion
from bullpen.errors import LabError

COMMANDS = {
    "up": ("bullpen.cli.up:up", "Run the whole service on this machine."),
    "dashboard": (
        "bullpen.cli.dashboard:dashboard",
        "Print a link to sign in at the dashboard.",
    ),
    "demo": ("bullpen.cli.demo:demo", "Demonstrate a pool of virtual boards, then clean up."),
    "status": ("bullpen.cli.status:status", "Show pools, exporters and leases."),
    "top": ("bullpen.cli.top:top", "Show the status, and keep it current."),
    "apply": ("bullpen.cli.apply:apply", "Create or change objects to match manifests."),
    "get": ("bullpen.cli.get:get", "Show objects."),
    "describe": ("bullpen.cli.describe:describe", "Show one object and its events."),
    "scale": ("bullpen.cli.scale:scale", "Set a pool's ceiling."),
    "scale-down": ("bullpen.cli.scale_down:scale_down", "Remove members of a pool by name."),
    "pause": ("bullpen.cli.changes:pause", "Stop a pool."),
    "resume": ("bullpen.cli.changes:resume", "Let a paused pool work again."),
    "shell": ("bullpen.cli.shell:shell", "Lease a target, and use it in a shell."),
    "run": ("bullpen.cli.shell:run", "Lease a target for one command."),
    "console": ("bullpen.cli.shell:console", "Lease a target, and attach to its console."),
    "lease": ("bullpen.cli.changes:lease", "Release, extend or transfer leases."),
    "claim": ("bullpen.cli.claim:claim", "Claim several targets at once."),
    "rollback": ("bullpen.cli.rollback:rollback", "Give a pool an earlier template."),
    "delete": ("bullpen.cli.delete:delete", "Delete objects."),
    "events": ("bullpen.cli.events:events", "Show events."),
    "audit": ("bullpen.cli.audit:audit", "Show changes and refused requests."),
    "logs": ("bullpen.cli.logs:logs", "Show the log of a virtual target's exporter."),
    "retained": ("bullpen.cli.retained:retained", "List or delete retained disks and logs."),
    "cloud": ("bullpen.cli.cloud:cloud", "List and delete machines at providers."),
    "client": ("bullpen.cli.identities:client", "Create clients, with a config for jmp."),
    "exporter": ("bullpen.cli.identities:exporter", "Create, disable and rotate exporters."),
    "controller": ("bullpen.cli.controller:controller", "Run the controller of a cluster."),
    "provisioner": (
        "bullpen.cli.provisioner:provisioner",
        "Manage the pools of one provisioner in a cluster.",
    ),
    "router": ("bullpen.cli.router:router", "Run an additional router in its own process."),
    "service": ("bullpen.cli.service:service", "Install systemd units for this machine."),
    "restore": ("bullpen.cli.restore:restore", "List backups, or restore one."),
    "doctor": ("bullpen.cli.doctor:doctor", "Check this machine, and show how to fix problems."),
    "completion": ("bullpen.cli.completion:completion", "Print a shell's completion script."),
    "crds": ("bullpen.cli.install:crds", "Print the CustomResourceDefinitions."),
    "manifests": ("bullpen.cli.install:manifests", "Print the manifests for a cluster."),
    "schedule": ("bullpen.cli.schedule:schedule", "Show what a claim for several targets gets."),
    "sim": ("bullpen.cli.sim:sim", "Simulate the lab with faults, from a seed."),
    "bench": ("bullpen.cli.bench:bench", "Run benchmarks; results are ratios to references."),
}
"""Module and summary of each command; only the called command is imported."""


IN_CHECKOUT_ONLY = ("sim", "bench")
"""Commands whose package of the same name is not in the wheel."""


def _is_installed(command: str) -> bool:
    if command not in IN_CHECKOUT_ONLY:
        return True
    return importlib.util.find_spec(f"bullpen.{command}") is not None


class LazyGroup(click.Group):
    """Imports a command's module when it is called, so that ``--help`` is instant."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name in COMMANDS if _is_installed(name)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if not _is_installed(cmd_name):
            raise click.ClickException(
                f"{cmd_name} is not included in the installed package; run it from a checkout"
            )
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            hint = suggestion(name, self.list_commands(ctx)) or "bullpen --help lists the commands"
            raise click.UsageError(f"there is no command {name!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="bullpen")
def cli() -> None:
    """Test targets, physical or virtual, for people and pipelines."""


def main() -> None:
    """The console entry point."""
    leave_forks_alone()
    try:
        result = cli.main(standalone_mode=False)
        code = result if isinstance(result, int) else Exit.OK
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = Exit.INTERRUPTED
    except LabError as error:
        code = _tell(error)
    except BaseExceptionGroup as group:
        # Parts that run together fail together; an error raised on purpose is the reason.
        said = group.subgroup(LabError)
        if said is None:
            raise
        code = _tell(_first(said))
    except BrokenPipeError:
        # The reader of our output has gone, which is not an error.
        sys.stderr.close()
        code = Exit.OK
    sys.exit(code)


def leave_forks_alone() -> None:
    """Keep gRPC's fork handlers out of the programs that this process starts.

    uvloop starts a program with fork, and the handlers abort the child if one of gRPC's
    threads was busy at that moment. Nothing here uses gRPC after a fork. gRPC reads the
    variable when it is first used.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")


def _tell(error: LabError) -> int:
    click.echo(f"bullpen: {error.message}", err=True)
    return exit_for(error)


def _first(group: BaseExceptionGroup[LabError]) -> LabError:
    found = group.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
