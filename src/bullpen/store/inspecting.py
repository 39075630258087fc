"""Reads a database completely: is it valid, and what does it contain?

``load`` is used to open one; ``inspect`` is for copies, which have no writer. Both agree on
whether a database is valid.
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
    """The content of a valid database."""

    revision: int
    """The newest revision."""

    keys: int


def inspect(path: Path, *, check: Check = anything) -> Content:
    """The content of the database at ``path``, after reading all of it. Raises ``Refused``."""
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
