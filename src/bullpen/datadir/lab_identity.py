"""The identity of this lab at providers, which machines carry that cost money.

It is kept in the data directory and is no part of the backups. A copy of the directory, or a
backup that is restored elsewhere, is another lab: it must neither use nor delete the machines
of the first one.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from bullpen.datadir.directory import SECRET, Layout, write_atomically
from bullpen.errors import Refused
from bullpen.kit.ids import Ids

log = logging.getLogger("bullpen.app")

MACHINE_ID = Path("/etc/machine-id")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the data directory is. A renamed one is in the same place, a copy is not."""

    machine: str
    inode: int


class LabIdentity(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    place: Place | None = None
    """None if a person has removed it, so that a copy takes the place of the original."""


def identity(found: LabIdentity | None, place: Place, *, fresh: str) -> LabIdentity:
    """The identity of the lab in ``place``; ``fresh`` is used for a new lab and for a copy."""
    if found is not None and found.place in (None, place):
        return LabIdentity(id=found.id, place=place)
    return LabIdentity(id=fresh, place=place)


def ensure(layout: Layout, ids: Ids, *, machine_id: Path = MACHINE_ID) -> str:
    """Read or create the identity. Raises ``Refused`` if its file is damaged."""
    found = _read(layout.lab_identity)
    place = Place(machine=_machine(machine_id), inode=layout.root.stat().st_ino)
    wanted = identity(found, place, fresh=ids.uid())
    if found is not None and found.id != wanted.id:
        facts = {"key": layout.root, "before": found.id, "now": wanted.id}
        log.warning("the data directory is a copy, so this is another lab", extra=facts)
    if wanted != found:
        content = msgspec.json.format(msgspec.json.encode(wanted), indent=2) + b"\n"
        write_atomically(layout.lab_identity, content, mode=SECRET)
    return wanted.id


def known(layout: Layout) -> str:
    """The identity that the service of a data directory has; empty if none has run there."""
    found = _read(layout.lab_identity)
    return found.id if found is not None else ""


def _read(path: Path) -> LabIdentity | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=LabIdentity)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError) as error:
        raise Refused(
            f"{path} cannot be read: {error}. It identifies this lab at providers of machines;"
            " restore it, or remove it to start as another lab, which leaves such machines alone"
        ) from None


def _machine(path: Path) -> str:
    """The id of this machine; empty where there is none."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
