"""The identity of a lab at providers: kept with its data directory, and not with copies of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bullpen.datadir import lab_identity
from bullpen.datadir.directory import Layout
from bullpen.datadir.lab_identity import LabIdentity, Place, identity
from bullpen.errors import Refused
from bullpen.kit.ids import RandomIds

HERE = Place(machine="m", inode=1)
IDS = RandomIds()


def test_a_new_lab_gets_a_fresh_identity() -> None:
    assert identity(None, HERE, fresh="new") == LabIdentity(id="new", place=HERE)


@pytest.mark.parametrize("place", [Place(machine="m", inode=2), Place(machine="n", inode=1)])
def test_a_copy_is_another_lab(place: Place) -> None:
    assert identity(LabIdentity(id="old", place=place), HERE, fresh="new").id == "new"


def test_without_a_place_a_copy_takes_over() -> None:
    assert identity(LabIdentity(id="old"), HERE, fresh="new") == LabIdentity(id="old", place=HERE)


def test_a_renamed_directory_keeps_its_identity_and_a_copied_one_does_not(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    machine = tmp_path / "machine-id"
    machine.write_text("abc\n")

    def of(name: str) -> str:
        return lab_identity.ensure(Layout(tmp_path / name), IDS, machine_id=machine)

    first = of("first")
    assert of("first") == first
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    (tmp_path / "first").rename(tmp_path / "renamed")
    assert of("renamed") == first
    copied = of("copy")
    assert copied != first
    assert of("copy") == copied

    path = tmp_path / "copy" / "lab.json"
    path.write_text(json.dumps({"id": first}))
    assert of("copy") == first, "a person said that it replaces the original"
    machine.write_text("another\n")
    assert of("renamed") != first, "the disk is in another machine"


def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "lab.json").write_text("{")
    with pytest.raises(Refused, match="remove it to start as another lab"):
        lab_identity.ensure(Layout(tmp_path), IDS)
