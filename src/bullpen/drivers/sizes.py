"""Sizes of memory and disks in the notation of lessees and QEMU, and for display."""

from __future__ import annotations

import re
from decimal import Decimal

MIB = 1 << 20
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?)(?:([KkMmGgTt])(i?[Bb]|i)?)?")
_EXPONENTS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parsed(size: str) -> int:
    """Bytes of a size such as 512M, 512MiB or 512MB; a number without a unit is bytes."""
    found = _SIZE.fullmatch(size)
    if found is None:
        raise ValueError(f"Invalid size: {size!r}. Use e.g. '20G', '512M', '2T'")
    number, unit, rest = found.groups(default="")
    factor = 1000 if rest.upper() == "B" else 1024
    return int(Decimal(number) * factor ** _EXPONENTS[unit.upper()])


def memory_bytes(size: str) -> int:
    """Bytes of a machine's memory; as for QEMU, a number without a unit is in MiB."""
    return parsed(f"{size}M" if size.isdigit() else size)


def shown(size: int) -> str:
    """A size in the largest unit that divides it."""
    for unit in ("T", "G", "M", "K"):
        if size and size % 1024 ** _EXPONENTS[unit] == 0:
            return f"{size // 1024 ** _EXPONENTS[unit]}{unit}"
    return f"{size} bytes"
