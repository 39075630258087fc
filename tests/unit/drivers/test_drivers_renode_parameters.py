"""The monitor commands for a board in Renode, and what is wrong with parameters or a command."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.api.exporter_template import Driver
from bullpen.drivers.renode_parameters import (
    CommandRefused,
    FirmwareUnknown,
    RenodeParameters,
    Snapshot,
    command_line,
    lessee_command,
    load_script,
    machine_commands,
)
from bullpen.provisioners.renode import DRIVER, PUBLISHED_DRIVER, RenodeRecipe

PLATFORM = {"platform": "platforms/cpus/miv.repl"}


def causes(**given: Any) -> list[tuple[str, str]]:
    return [(cause.field, cause.message) for cause in RenodeRecipe().check(given)]


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({}, "parameters", "give one of platform, script and snapshot"),
        ({**PLATFORM, "script": {"path": "/b.resc"}}, "parameters", "give one of platform"),
        ({"platform": "a; quit"}, "parameters.platform", "should match"),
        ({"script": {"path": "/a b"}}, "parameters.script.path", "must consist of"),
        ({**PLATFORM, "firmware": {"path": '/a"'}}, "parameters.firmware.path", "must consist"),
        ({**PLATFORM, "uart": "a\nquit"}, "parameters.uart", "should match"),
        ({**PLATFORM, "uarts": {"b": "a; quit"}}, "parameters.uarts.b", "is not the name of a"),
        ({**PLATFORM, "uarts": {"power": "b"}}, "parameters.uarts.power", "is a driver of every"),
        ({**PLATFORM, "gdb": True, "uarts": {"gdb": "b"}}, "parameters.uarts.gdb", "GDB server"),
        ({**PLATFORM, "extraCommands": ["a\nb"]}, "parameters.extraCommands[0]", "one line"),
        ({**PLATFORM, "extraCommands": ['a """']}, "parameters.extraCommands[0]", "several lines"),
        ({**PLATFORM, "ready": "("}, "parameters.ready", "is not a regular expression"),
        ({**PLATFORM, "readable": ["opt"]}, "parameters.readable[0]", "not an absolute path"),
        ({**PLATFORM, "loadAddress": "80"}, "parameters.loadAddress", "should match"),
        (
            {"snapshot": {"path": "/s"}, "firmware": {"path": "/f"}},
            "parameters.firmware",
            "is part of the snapshot",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_its_path(
    given: dict[str, Any], field: str, words: str
) -> None:
    found = causes(**given)
    assert [name for name, _ in found] == [field]
    assert words in found[0][1]


def test_the_published_driver_is_refused_because_it_opens_ports() -> None:
    published = (Driver(name="board", type=PUBLISHED_DRIVER),)
    (cause,) = RenodeRecipe().check(PLATFORM, published)
    assert cause.field == "drivers[0].type"
    assert f"use {DRIVER}" in cause.message


def test_renode_opens_no_port_and_keeps_its_files_together() -> None:
    line = command_line(RenodeParameters(platform="a"), "/dir")
    assert line[:3] == ("env", "-C", "/dir")
    assert {"HOME=/dir", "--console", "--disable-gui", "--plain"} <= set(line)
    assert line[-2:] == ("--config", "/dir/config")


def test_a_machine_is_created_loaded_or_made_by_a_script() -> None:
    wanted = RenodeParameters(platform="a.repl", machine_name="board")
    paths = {"firmware": "/f.elf", "script": "", "snapshot": ""}
    assert machine_commands(wanted, **paths) == (
        'mach create "board"',
        "machine LoadPlatformDescription @a.repl",
    )
    assert machine_commands(wanted, **{**paths, "script": "/s.resc"}) == (
        "$bin=@/f.elf",
        "include @/s.resc",
    )
    assert machine_commands(wanted, **{**paths, "snapshot": "/s"}) == ("Load @/s", "mach set 0")


def test_firmware_is_loaded_by_what_it_is() -> None:
    wanted = RenodeParameters(platform="a", load_address="0x8000")
    assert "sysbus LoadELF @/f\n" in load_script(wanted, "/f", b"\x7fELF")
    assert "sysbus LoadHEX @/f\n" in load_script(wanted, "/f", b":100")
    assert "sysbus LoadBinary @/f 0x8000\n" in load_script(wanted, "/f", b"\0\0\0\0")
    with pytest.raises(FirmwareUnknown, match="set loadAddress"):
        load_script(RenodeParameters(platform="a"), "/f", b"\0\0\0\0")


@pytest.mark.parametrize("command", ["quit", "Save @../x", "Save @/x", "pause; quit", "i @/x"])
def test_a_lessee_may_not_execute_just_any_command(command: str) -> None:
    with pytest.raises(CommandRefused, match="is not allowed on this target; allowed: pause"):
        lessee_command(command, raw=False)
    assert lessee_command(command, raw=True) == command


@pytest.mark.parametrize("command", ["", "a\nb", 'macro x """', "a" * 2000])
def test_some_commands_are_refused_always(command: str) -> None:
    with pytest.raises(CommandRefused, match="a monitor command must"):
        lessee_command(command, raw=True)


@pytest.mark.parametrize("raw", [True, False])
def test_snapshots_have_names_not_paths(raw: bool) -> None:
    assert lessee_command("Save @one", raw=raw) == Snapshot(saves=True, name="one")
    assert lessee_command("Load @one-2", raw=raw) == Snapshot(saves=False, name="one-2")
