"""The files a machine's configuration makes QEMU open indirectly.

For images and arguments of a class, which are trusted; references in data from a lessee are
never followed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from bullpen.drivers.image_headers import HEADER_BYTES_MAX, backing_name

CHAIN_LENGTH_MAX = 16
_PATH = re.compile(r"(?:^|[=:])(/[^,]*)")


def image_chain(image: Path) -> Iterator[Path]:
    """The image and its backing files, as far as they exist here."""
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
        return None  # it exists where the machine runs, or QEMU reports the error
    return image.parent / name.removeprefix("file:") if name else None


def named_paths(arguments: Sequence[str]) -> Iterator[str]:
    """Absolute paths in QEMU's arguments that exist here."""
    for argument in arguments:
        for path in _PATH.findall(argument):
            if Path(path).exists():
                yield path
