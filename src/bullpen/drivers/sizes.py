"""Sizes of memory and disks as lessees write them and as they are shown."""

from __future__ import annotations

import re

MIB = 1 << 20
_SIZE = re.compile(r"^([0-9]{1,18})(?:([KkMmGgTt])(?:i?[Bb])?)?$")
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def parsed(size: str) -> int:
    """Bytes of a size such as 512M; a number without a unit is bytes."""
    found = _SIZE.match(size)
    if found is None:
        raise ValueError(f"Invalid size: {size!r}. Use e.g. '20G', '512M', '2T'")
    number, unit = found.groups(default="")
    return int(number) * _FACTORS[unit.upper()]


def shown(size: int) -> str:
    """A size in the largest unit that divides it."""
    for unit in ("T", "G", "M", "K"):
        if size and size % _FACTORS[unit] == 0:
            return f"{size // _FACTORS[unit]}{unit}"
    return f"{size} bytes"
