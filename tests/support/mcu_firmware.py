"""Firmware for microcontrollers, built here: it prints a banner and echoes what it receives."""

from __future__ import annotations

import subprocess
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
UNO, CORTEX_M3 = EXAMPLES / "uno.s", EXAMPLES / "echo.s"


def uno(directory: Path) -> Path:
    return _built(directory, "uno", UNO.read_text(), ("avr-as", "-mmcu=avr5"), ("avr-ld", "-mavr5"))


def cortex_m3(directory: Path) -> Path:
    linker = ("arm-none-eabi-ld", "-Ttext", "0", "-e", "0")
    return _built(directory, "m3", CORTEX_M3.read_text(), ("arm-none-eabi-as",), linker)


def _built(
    directory: Path, name: str, source: str, assembler: tuple[str, ...], linker: tuple[str, ...]
) -> Path:
    source_file, object_file, program = (directory / f"{name}.{end}" for end in ("s", "o", "elf"))
    source_file.write_text(source)
    for command in (
        (*assembler, "-o", str(object_file), str(source_file)),
        (*linker, "-o", str(program), str(object_file)),
    ):
        subprocess.run(command, check=True, capture_output=True, text=True)
    return program
