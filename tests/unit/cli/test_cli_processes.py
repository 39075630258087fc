"""The processes of a cluster are set by flags and variables, and all of them are written down."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from bullpen.cli.controller import controller
from bullpen.cli.provisioner import provisioner
from bullpen.cli.router import router

REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "processes.md"


@pytest.mark.parametrize("command", [controller, provisioner, router], ids=lambda c: c.name)
def test_every_setting_has_a_variable_and_both_are_in_the_reference(command: click.Command) -> None:
    text = REFERENCE.read_text()
    for option in command.params:
        if option.name == "data" and command is router:
            continue  # what $BULLPEN_DATA says comes after other ways to find a service
        assert isinstance(option.envvar, str), option.name
        assert f"`{option.envvar}`" in text
        assert any(f"`{flag}`" in text for flag in option.opts), option.opts


@pytest.mark.parametrize(
    ("command", "words", "said"),
    [
        pytest.param(
            controller,
            ["--tls-cert", __file__],
            "--tls-cert, --tls-key and --tls-ca must be given together",
            id="half a certificate",
        ),
        pytest.param(
            provisioner,
            ["--provisioner", "mock.jumpstarter.dev", "--placement", "local"],
            "--placement local requires --data",
            id="nowhere to put targets",
        ),
        pytest.param(
            provisioner,
            ["--provisioner", "mock.jumpstarter.dev", "--runtime-image", "qemu"],
            "write --runtime-image as NAME=IMAGE",
            id="an image without a name",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    command: click.Command, words: list[str], said: str
) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2
    assert said in result.output
