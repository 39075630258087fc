"""A database made from a backup, such that no revision is ever given out twice.

Between the backup and the damage revisions were given out that the backup knows nothing
of, and watchers and clients hold on to them. So the restored state begins far ahead of
where the backup ends, without a history: whoever resumes from an older revision is told
that it is gone and reads again.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from bullpen.store import file, inspecting
from bullpen.store.inspecting import Content
from bullpen.store.pruning import prune
from bullpen.store.replay import Check, anything

REVISION_LEAP = 10**12
"""More than can have been given out since the backup: three years of 10,000 a second."""


def rebuild(backup: Path, target: Path, *, check: Check = anything) -> Content:
    """Write the database a backup stands for to ``target``; what it holds.

    Raises ``Refused`` and leaves nothing when the backup is not sound.
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
