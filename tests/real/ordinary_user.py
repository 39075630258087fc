"""Runs a command as an ordinary user, also where this checkout is in a directory of root's.

``python ordinary_user.py UID HOME COMMAND…``, as root. Directories that the user could not
enter are covered, in a mount namespace of this process, and what the command needs of them is
shown again: Python, this checkout and the user's home.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bullpen.drivers import linux
from bullpen.placements.local import exporter_process
from bullpen.placements.local.confinement import covered, outermost

CHECKOUT = Path(__file__).parents[2]


def main(user: int, home: Path, command: list[str]) -> None:
    seen = [
        CHECKOUT,
        home,
        *(Path(path).resolve() for path in (sys.prefix, sys.base_prefix, *sys.path) if path),
    ]
    linux.unshare(linux.CLONE_NEWNS)
    linux.mount("", "/", "", linux.MS_REC | linux.MS_PRIVATE)
    closed = [place for path in seen for place in exporter_process.closed_above(path)]
    handles = {path: os.open(path, os.O_PATH) for path in seen if path.exists()}
    hidden = list(outermost(closed))
    for place in hidden:
        exporter_process.empty(place)
    for path, handle in handles.items():
        if covered(path, hidden):
            exporter_process.show(handle, path)
        os.close(handle)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.chdir(home)
    os.environ["HOME"] = str(home)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
