"""The images: pinned, for nobody in particular to run, and with nothing that is not there.

They are not built here, which takes minutes and a base image; docs/how-to/kubernetes.md has
the two commands.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bullpen.placements.pod.rendering import USER
from support.k8s_helm import ROOT

IMAGES = ROOT / "deploy" / "images"
FILES = ("Containerfile", "Containerfile.qemu")
files = pytest.mark.parametrize("name", FILES)


def instructions(name: str) -> list[tuple[str, str]]:
    """Instructions and what follows them, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (IMAGES / name).read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(word, rest) for line in lines if line for word, _, rest in [line.partition(" ")]]


def pins(path: Path) -> dict[str, set[str]]:
    """Hashes by name and version."""
    found = {}
    for entry in re.split(r"\n(?=[a-zA-Z0-9])", re.sub(r"(?m)^\s*#.*\n", "", path.read_text())):
        if "==" in entry:
            found[entry.split()[0]] = set(re.findall(r"sha256:[0-9a-f]{64}", entry))
    return found


@files
def test_it_runs_as_the_user_the_pods_name(name: str) -> None:
    *_, (user,) = [[rest] for word, rest in instructions(name) if word == "USER"]
    assert user == f"{USER}:{USER}"


@files
def test_every_stage_starts_from_the_base_that_was_chosen(name: str) -> None:
    stages = [rest for word, rest in instructions(name) if word == "FROM"]
    assert stages
    assert all(stage.startswith("${BASE}") for stage in stages)


@files
def test_nothing_is_fetched_but_packages(name: str) -> None:
    words = {word for word, _ in instructions(name)}
    assert words <= {"ARG", "FROM", "ENV", "RUN", "COPY", "LABEL", "USER", "WORKDIR", "EXPOSE",
                     "ENTRYPOINT"}  # fmt: skip
    for word, rest in instructions(name):
        assert word != "RUN" or not re.search(r"\b(curl|wget|git)\b", rest)
        assert "apt-get install" not in rest or "--no-install-recommends" in rest
        if "pip " in rest and " install " in rest:
            assert "--require-hashes" in rest or "--no-index" in rest


@files
def test_what_is_copied_is_in_the_repository(name: str) -> None:
    for word, rest in instructions(name):
        if word == "COPY" and not rest.startswith("--from"):
            source, _ = rest.split()
            built = source.startswith("dist/")  # by `make dist`
            assert built or (ROOT / source).exists(), source


def test_the_image_has_the_versions_that_are_tested() -> None:
    tested, shipped = pins(ROOT / "requirements.lock"), pins(IMAGES / "requirements.lock")
    assert shipped.items() <= tested.items(), "run `make lock`"


def test_the_image_has_every_dependency() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    block = project.split("dependencies = [")[1].split("]")[0]
    wanted = {name.lower() for name in re.findall(r'"([A-Za-z0-9-]+)', block)}
    assert wanted <= {pin.partition("==")[0] for pin in pins(IMAGES / "requirements.lock")}
