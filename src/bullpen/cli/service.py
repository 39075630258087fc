"""``bullpen service``: systemd units for the service and for exporters."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bullpen.cli.options import F, default_data_directory, output
from bullpen.cli.output import echo_document, table
from bullpen.errors import Conflict, Refused

if TYPE_CHECKING:
    from bullpen.app.systemd import Choices

SYSTEM_UNITS = Path("/etc/systemd/system")
SYSTEM_DATA = Path("/var/lib/bullpen")
SYSTEM_EXPORTERS = "/etc/jumpstarter/exporters"
USER_EXPORTERS = "%h/.config/jumpstarter/exporters"


@click.group()
def service() -> None:
    """Install systemd units for the service and for exporters."""


def _place(function: F) -> F:
    """Options that say where units are."""
    function = click.option(
        "--directory",
        type=click.Path(path_type=Path, file_okay=False),
        help="Where units are [default: /etc/systemd/system, or ~/.config/systemd/user].",
    )(function)
    return _for_user(function)


def _for_user(function: F) -> F:
    return click.option(
        "--user", is_flag=True, help="For the systemd of the current user, not of the machine."
    )(function)


def _choices(function: F) -> F:
    """Options that say what is in the unit of the service, as for ``bullpen up``."""
    for option in (
        click.option(
            "--config",
            type=click.Path(path_type=Path, dir_okay=False),
            help="Settings file; see docs/reference/settings.md.",
        ),
        click.option(
            "--port-base", type=click.IntRange(0, 65000), help="First port; 0 takes free ones."
        ),
        click.option(
            "--endpoint", default="", metavar="HOST", help="Host that other machines use."
        ),
        click.option("--listen", default="", help="Address to listen on."),
        click.option(
            "--data",
            type=click.Path(path_type=Path, file_okay=False),
            help="Data directory [default: /var/lib/bullpen; with --user as for bullpen up].",
        ),
    ):
        function = option(function)
    return function


@service.command()
@_place
@_choices
@click.option("--force", is_flag=True, help="Overwrite units that a person has changed.")
@output("table", "json", "yaml")
def install(
    user: bool,
    directory: Path | None,
    force: bool,
    output: str,
    **choices: Any,
) -> None:
    """Write bullpen.service and bullpen-exporter@.service, and say how to start them.

    A unit that a person has changed is left alone and nothing is written, unless --force is
    given. Nothing is started.
    """
    from bullpen.app.systemd import units
    from bullpen.datadir.directory import PUBLIC, write_atomically

    place = directory or _units_directory(user=user)
    wanted = units(_chosen(user=user, **choices))
    found = {name: _read(place / name) for name in wanted}
    if not force:
        _refuse_changed(place, found)
    rows = []
    for name, text in wanted.items():
        if found[name] != text:
            write_atomically(place / name, text, mode=PUBLIC)
        rows.append((name, str(place / name), _outcome(found[name], text)))
    _tell(rows, _next_after_install(user=user), output)


@service.command()
@_place
@click.option("--force", is_flag=True, help="Remove units that are changed or enabled.")
@output("table", "json", "yaml")
def uninstall(user: bool, directory: Path | None, force: bool, output: str) -> None:
    """Remove both units. The data directory is left alone.

    Units that a person has changed, or that are still enabled, are kept unless --force is given.
    """
    from bullpen.app.systemd import EXPORTER, SERVICE

    place = directory or _units_directory(user=user)
    found = {name: _read(place / name) for name in (SERVICE, EXPORTER)}
    if not force:
        _refuse_enabled(place, user=user)
        _refuse_changed(place, found)
    rows = []
    for name, text in found.items():
        if text is not None:
            _remove(place / name)
        rows.append((name, str(place / name), "removed" if text is not None else "absent"))
    _tell(rows, [f"{_systemctl(user=user)} daemon-reload"], output)


@service.command()
@click.argument("unit", type=click.Choice(("service", "exporter")), default="service")
@_for_user
@_choices
def show(unit: str, user: bool, **choices: Any) -> None:
    """Print the unit of the service, or of exporters, as it would be installed."""
    from bullpen.app.systemd import EXPORTER, SERVICE, units

    made = units(_chosen(user=user, **choices))
    click.echo(made[SERVICE if unit == "service" else EXPORTER], nl=False)


def _chosen(
    *,
    user: bool,
    data: Path | None,
    listen: str,
    endpoint: str,
    port_base: int | None,
    config: Path | None,
) -> Choices:
    from bullpen.app.systemd import Choices

    programs = Path(sys.executable).parent
    program = programs / "bullpen"
    default = default_data_directory() if user else SYSTEM_DATA
    return Choices(
        bullpen=(str(program),) if program.exists() else (sys.executable, "-m", "bullpen"),
        jmp=str(programs / "jmp"),
        data=(data or default).absolute(),
        user=user,
        listen=listen,
        endpoint=endpoint,
        port_base=port_base,
        config=config.absolute() if config else None,
        exporters=USER_EXPORTERS if user else SYSTEM_EXPORTERS,
    )


def _units_directory(*, user: bool) -> Path:
    if not user:
        return SYSTEM_UNITS
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "systemd" / "user"


def _read(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from None


def _remove(path: Path) -> None:
    try:
        path.unlink()
    except OSError as error:
        raise Refused(f"{path} cannot be removed: {error.strerror}") from None


def _refuse_changed(place: Path, found: dict[str, str | None]) -> None:
    from bullpen.app.systemd import is_as_written

    changed = [
        str(place / name) for name, text in found.items() if text and not is_as_written(text)
    ]
    if changed:
        raise Conflict(
            f"changed since it was installed, or from elsewhere: {', '.join(changed)}. Nothing was"
            " done. Keep changes in a drop-in (systemctl edit), or use --force to discard them"
        )


def _refuse_enabled(place: Path, *, user: bool) -> None:
    """systemd keeps links to what it starts by itself; they must not outlive the units."""
    names = ("bullpen.service", "bullpen-exporter@*.service")
    enabled = sorted({path.name for name in names for path in place.glob(f"*.wants/{name}")})
    if enabled:
        raise Conflict(
            f"{', '.join(enabled)} would be left enabled without a unit, and nothing was done."
            f" First run: {_systemctl(user=user)} disable --now {' '.join(enabled)}"
        )


def _systemctl(*, user: bool) -> str:
    return "systemctl --user" if user else "systemctl"


def _outcome(before: str | None, after: str) -> str:
    if before is None:
        return "created"
    return "unchanged" if before == after else "replaced"


def _next_after_install(*, user: bool) -> list[str]:
    systemctl = _systemctl(user=user)
    commands = [
        f"{systemctl} daemon-reload",
        f"{systemctl} enable --now bullpen.service",
        f"{systemctl} enable --now bullpen-exporter@NAME.service",
    ]
    if user:
        commands.append(f"loginctl enable-linger {shlex.quote(os.environ.get('USER', ''))}".strip())
    return commands


def _tell(rows: list[tuple[str, str, str]], commands: list[str], form: str) -> None:
    if form != "table":
        listed = [dict(zip(("name", "path", "outcome"), row, strict=True)) for row in rows]
        echo_document({"units": listed, "next": commands}, form)
        return
    click.echo(table(("unit", "path", "outcome"), rows))
    click.echo("\nNext:")
    for command in commands:
        click.echo(f"  {command}")
