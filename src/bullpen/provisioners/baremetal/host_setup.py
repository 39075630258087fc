"""Prepares a host: what it has, and the environment in which its agent runs.

The host runs this file before it has anything else of ours, with its own Python: it uses nothing
but the standard library, and nothing that old Pythons lack, so that they can say that they are.

    python3 - probe DIRECTORY LAB
    python3 - unpack HOME DIGEST ARCHIVE
"""

import fcntl
import json
import os
import platform
import shutil
import sys
import tarfile

ENVIRONMENTS, LABS = "environments", "labs"
ENVIRONMENT_LOCK = ".lock"
"""Locked by every agent that runs in an environment."""

PUBLIC, PRIVATE = 0o755, 0o700
STATE = "agent.json"


def default_directory() -> str:
    """Where everything is, unless the host's settings say so."""
    if os.geteuid() == 0:
        return "/var/lib/bullpen-host"
    return os.path.join(os.path.expanduser("~"), ".local", "share", "bullpen-host")


def probe(directory: str, lab: str) -> None:
    """Print what this host is and has, as JSON."""
    directory = os.path.abspath(os.path.expanduser(directory or default_directory()))
    environments = os.path.join(directory, ENVIRONMENTS)
    agents = os.path.join(directory, LABS, lab)
    os.makedirs(environments, mode=PUBLIC, exist_ok=True)
    os.makedirs(agents, mode=PRIVATE, exist_ok=True)
    found = {
        "python": list(sys.version_info[:2]),
        "machine": platform.machine(),
        "directory": os.path.realpath(directory),
        # Instances see real paths only.
        "home": os.path.realpath(environments),
        "environments": [name for name in os.listdir(environments) if not name.startswith(".")],
        "agents": [
            name for name in os.listdir(agents) if os.path.exists(os.path.join(agents, name, STATE))
        ],
    }
    json.dump(found, sys.stdout)


def unpack(environments: str, digest: str, archive: str) -> None:
    """Make an environment of an archive, and delete those that no agent uses."""
    place = os.path.join(environments, digest)
    partial = archive + ".d"
    try:
        with tarfile.open(archive) as content:
            content.extractall(partial)
        open(os.path.join(partial, ENVIRONMENT_LOCK), "w").close()
        os.chmod(partial, PUBLIC)
        if not os.path.exists(place):
            os.rename(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        os.unlink(archive)
    for name in os.listdir(environments):
        if name != digest and not name.startswith("."):
            delete_unused(os.path.join(environments, name))


def delete_unused(place: str) -> None:
    """Delete an environment unless an agent runs in it."""
    with open(os.path.join(place, ENVIRONMENT_LOCK), "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1] == "probe":
        probe(*sys.argv[2:])
    else:
        unpack(*sys.argv[2:])
