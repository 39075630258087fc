"""Firmware for microcontrollers, built here: it prints a banner and echoes what it receives."""

from __future__ import annotations

import subprocess
from pathlib import Path

UNO = """\
    rjmp main
main:                       ; the stack at the end of memory, receiver and transmitter on
    ldi r16, 0xff
    out 0x3d, r16
    ldi r16, 0x08
    out 0x3e, r16
    ldi r16, 0x18
    sts 0xC1, r16
    ldi r30, lo8(banner)
    ldi r31, hi8(banner)
next:
    lpm r16, Z+
    tst r16
    breq echo
    rcall put
    rjmp next
echo:
    lds r17, 0xC0
    sbrs r17, 7
    rjmp echo
    lds r16, 0xC6
    rcall put
    rjmp echo
put:
    lds r17, 0xC0
    sbrs r17, 5
    rjmp put
    sts 0xC6, r16
    ret
banner:
    .asciz "uno is ready\\r\\n"
"""

CORTEX_M3 = Path(__file__).parents[2] / "examples" / "echo.s"


def uno(directory: Path) -> Path:
    return _built(directory, "uno", UNO, ("avr-as", "-mmcu=avr5"), ("avr-ld", "-mavr5"))


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
