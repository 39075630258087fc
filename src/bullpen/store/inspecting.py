"""Reading a database to the last byte: is it sound, and what does it hold?

``load`` is how one is opened; ``inspect`` is for copies, which nobody writes to. What is
found sound by one is found sound by the other.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import apsw

from bullpen.store import file
from bullpen.store.ledger import Ledger
from bullpen.store.limits import DEFAULT_LIMITS, Limits
from bullpen.store.replay import Check, anything, replay

_SELECT_OLDEST = "SELECT value FROM meta WHERE name = 'oldest'"
_SELECT_LOG = "SELECT revision, key, verb, value FROM log ORDER BY revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a sound database holds."""

    revision: int
    """The newest."""

    keys: int


def inspect(path: Path, *, check: Check = anything) -> Content:
    """What the database at ``path`` holds, after reading all of it. Raises ``Refused``."""
    with file.refusals(path):
        file.check_header(path)
        uri = f"{path.absolute().as_uri()}?immutable=1"
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        with contextlib.closing(apsw.Connection(uri, flags=flags)) as connection:
            file.check_content(connection, path)
            ledger = load(connection, path, DEFAULT_LIMITS, check)
    page = ledger.scan("", "", 0, None)
    return Content(revision=ledger.revision, keys=page.remaining)


def load(connection: apsw.Connection, path: Path, limits: Limits, check: Check) -> Ledger:
    """Everything in the log. Raises ``Refused``."""
    with file.refusals(path):
        oldest = connection.execute(_SELECT_OLDEST).get
        rows = connection.execute(_SELECT_LOG)
        return replay(rows, oldest=oldest, limits=limits, check=check)
