"""The credentials of a running instance change in place, and nothing of the old ones stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bullpen.placements.local import layout
from bullpen.placements.local.layout import State


def state(user: int = 0) -> State:
    return State(
        key=("lab", "a"),
        owner_uid="u",
        provisioner="p",
        token="t",
        memory_bytes=0,
        cpus=0.0,
        single_use=True,
        retain=False,
        user=user,
    )


def test_files_are_replaced_added_and_removed(tmp_path: Path) -> None:
    place = tmp_path / "a"
    layout.prepare(place, state(), {"key": b"old", "gone": b"x"})
    layout.put_credentials(place, state(), {"key": b"new", "more": b"y"})
    found = {path.name: path.read_bytes() for path in (place / layout.CREDENTIALS).iterdir()}
    assert found == {"key": b"new", "more": b"y"}
    for path in (place / layout.CREDENTIALS).iterdir():
        assert path.stat().st_mode & 0o777 == layout.SECRET


def test_granted_files_are_replaced_and_the_class_s_own_are_left(tmp_path: Path) -> None:
    place = tmp_path / "a"
    layout.prepare(place, state(), {"key": b"of the class"}, {"session": b"old"})
    layout.put_granted(place, state(), {"session": b"new"})
    layout.put_credentials(place, state(), {})
    assert [*(place / layout.CREDENTIALS).iterdir()] == []
    (session,) = (place / layout.GRANTED).iterdir()
    assert session.read_bytes() == b"new"
    assert session.stat().st_mode & 0o777 == layout.SECRET


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_a_confined_instance_can_read_them_and_nobody_else(tmp_path: Path) -> None:
    place, user = tmp_path / "a", 60_123
    layout.prepare(place, state(user), {"key": b"old"}, {"session": b"old"})
    layout.put_credentials(place, state(user), {"key": b"new"})
    layout.put_granted(place, state(user), {"session": b"new"})
    for path in (place / layout.CREDENTIALS / "key", place / layout.GRANTED / "session"):
        found = path.stat()
        assert (found.st_uid, found.st_gid) == (0, user)
        assert found.st_mode & 0o777 == layout.GROUP_READS
