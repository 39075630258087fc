"""Which files a machine's own description makes QEMU open, beside those it names plainly.

For images and arguments of a class, which are trusted; what a lessee sent is never followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bullpen.drivers.image_headers import HEADER_BYTES_MAX, backing_name

CHAIN_LENGTH_MAX = 16
_PATH = re.compile(r"(?:^|[=:])(/[^,]*)")


def image_chain(image: Path) -> Iterator[Path]:
    """The image and what it is based on, as far as these are files here."""
    current: Path | None = image
    for _ in range(CHAIN_LENGTH_MAX):
        if current is None:
            return
        yield current
        current = _backing(current)


def _backing(image: Path) -> Path | None:
    try:
        with image.open("rb") as file:
            name = backing_name(file.read(HEADER_BYTES_MAX))
    except OSError:
        return None  # it is where the machine runs, or QEMU says what is wrong with it
    return image.parent / name.removeprefix("file:") if name else None


def named_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Absolute paths in QEMU's arguments that exist here."""
    for argument in arguments:
        for path in _PATH.findall(argument):
            if Path(path).exists():
                yield path
