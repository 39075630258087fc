"""The command line of a program, and what is wrong with parameters beyond their schema."""

from __future__ import annotations

from typing import Any

import pytest

from bullpen.drivers.program_parameters import (
    ConsoleKind,
    FirmwareMissing,
    Placeholders,
    ProgramParameters,
    command,
)
from bullpen.drivers.target_files import File
from bullpen.provisioners.program import ProgramRecipe

VALUES = Placeholders(
    directory="/dir",
    socket="/run/console",
    firmware="/fw.elf",
    files={"rom": "/rom.bin"},
    ports={"console": 4001, "gdb": 4002},
)


def line(*arguments: str, **more: Any) -> tuple[str, ...]:
    return command(ProgramParameters(program="sim", arguments=arguments, **more), VALUES)


def test_every_placeholder_is_filled_wherever_it_stands() -> None:
    found = line("-f={firmware}", "{file:rom}", "{dir}/x", "{port:gdb}", "{{literal}}")
    assert found == (
        "env", "-C", "/dir", "sim",
        "-f=/fw.elf", "/rom.bin", "/dir/x", "4002", "{literal}",
    )  # fmt: skip


def test_the_environment_is_filled_too_and_set_in_order() -> None:
    found = line(environment={"ZED": "{port:console}", "ABC": "{dir}"})
    assert found == ("env", "-C", "/dir", "ABC=/dir", "ZED=4001", "sim")


def test_a_value_is_not_searched_for_placeholders_again() -> None:
    values = Placeholders(directory="/{firmware}")
    wanted = ProgramParameters(program="sim", arguments=("{dir}",))
    assert command(wanted, values)[-1] == "/{firmware}"


def test_missing_firmware_is_an_error_only_where_it_is_used() -> None:
    empty = Placeholders(directory="/dir")
    assert command(ProgramParameters(program="sim"), empty)[-1] == "sim"
    with pytest.raises(FirmwareMissing, match="flash one"):
        command(ProgramParameters(program="sim", arguments=("{firmware}",)), empty)


def causes(**given: Any) -> list[tuple[str, str]]:
    found = ProgramRecipe().check({"program": "sim", **given})
    return [(cause.field, cause.message) for cause in found]


@pytest.mark.parametrize(
    ("given", "field", "words"),
    [
        ({"arguments": ["{fimware}"]}, "parameters.arguments[0]", "{fimware} is not known here"),
        ({"arguments": ["a {"]}, "parameters.arguments[0]", "is not known here"),
        ({"arguments": ["{file:rom}"]}, "parameters.arguments[0]", "{file:rom} is not known"),
        ({"environment": {"A": "{port:x}"}}, "parameters.environment.A", "{port:x} is not known"),
        ({"console": "tcp"}, "parameters.arguments", "must contain {port:console}"),
        ({"console": "unix"}, "parameters.arguments", "must contain {socket}"),
        ({"ready": "("}, "parameters.ready", "is not a regular expression"),
        ({"ptyPattern": "/dev/pts"}, "parameters.ptyPattern", "must have a group"),
        ({"ports": {"console": {}}}, "parameters.ports.console", "use console: tcp"),
        ({"ports": {"power": {}}}, "parameters.ports.power", "is a driver of every target"),
        ({"ports": {"Web": {}}}, "parameters.ports.Web", "lower-case letters"),
        ({"readable": ["opt"]}, "parameters.readable[0]", "not an absolute path"),
        ({"program": "rm -rf"}, "parameters.program", "should match"),
        ({"consol": "tcp"}, "parameters.consol", "there is no such parameter"),
    ],
)
def test_what_cannot_work_is_refused_by_its_path(
    given: dict[str, Any], field: str, words: str
) -> None:
    found = causes(**given)
    assert [name for name, _ in found] == [field]
    assert words in found[0][1]


def test_what_can_work_is_accepted() -> None:
    given = {
        "arguments": ["-k", "{firmware}", "-p", "{port:console}", "-g", "{port:gdb}"],
        "console": ConsoleKind.TCP.value,
        "ports": {"gdb": {}},
        "firmware": {"path": "/fw.elf"},
        "files": {"rom": {"path": "/rom"}},
        "environment": {"ROM": "{file:rom}"},
    }
    assert causes(**given) == []


def test_a_file_by_url_needs_its_digest() -> None:
    assert File(path="/a").path == "/a"
    assert causes(firmware={"url": "https://lab/fw"}) == [
        ("parameters.firmware", "Invalid value: a url needs a digest")
    ]
