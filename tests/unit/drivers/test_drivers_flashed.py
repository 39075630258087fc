"""What a lessee gets back of what was flashed is not what the machine has put in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bullpen.drivers.flasher import FlashStore


async def content() -> AsyncIterator[bytes]:
    yield b"firmware"


async def test_a_link_in_place_of_a_flashed_image_is_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    store = FlashStore(lambda: tmp_path, verbatim=("firmware",))
    await store.write("firmware", content(), bytes_max=100)
    flashed = store.get("firmware")
    assert flashed is not None
    with flashed.open() as file:
        assert file.read() == b"firmware"

    flashed.path.unlink()
    flashed.path.symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        flashed.open()
