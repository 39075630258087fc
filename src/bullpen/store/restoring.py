"""A database created from a backup, without ever reusing a revision.

After the backup and before the damage, revisions were issued that the backup does not
contain, and watchers and clients still hold them. So the restored state starts far ahead of
the backup's last revision, without a history: a watcher that resumes from an older revision
gets Gone and lists again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bullpen.store import file, inspecting
from bullpen.store.inspecting import Content
from bullpen.store.pruning import prune
from bullpen.store.replay import Check, anything

REVISION_LEAP = 10**12
"""More than can have been issued since the backup: three years of 10,000 a second."""


def rebuild(backup: Path, target: Path, *, check: Check = anything) -> Content:
    """Write the database of a backup to ``target``; returns its content.

    Raises ``Refused`` and leaves no file when the backup is invalid.
    """
    inspecting.inspect(backup, check=check)
    try:
        with file.refusals(target):
            file.make_private(target)
            shutil.copyfile(backup, target)
            prune(target, leap=REVISION_LEAP)
        return inspecting.inspect(target, check=check)
    except BaseException:
        target.unlink(missing_ok=True)
        raise
