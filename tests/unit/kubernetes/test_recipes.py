"""The how-tos for clusters and pipelines say only what is there and what would be accepted."""

from __future__ import annotations

import contextlib
import importlib.resources
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest
import yaml

from bullpen.api.resources import RESOURCES
from bullpen.cli.main import cli
from bullpen.errors import Unreachable
from bullpen.install.parts import manifests
from support.k8s_helm import ROOT
from support.k8s_schemas import RELEASES, is_elsewhere, problems

PAGES = sorted(
    page
    for pattern in ("kubernetes*.md", "ci-*.md", "monitor-*.md", "autoscale.md")
    for page in (ROOT / "docs" / "how-to").glob(pattern)
)
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def blocks(page: Path, kind: str) -> Iterator[str]:
    """The fenced blocks whose first line says exactly ``kind``."""
    for name, text in re.findall(
        r"^ *```([a-z ]*)\n(.*?)^ *```$", page.read_text(), re.MULTILINE | re.DOTALL
    ):
        if name == kind:
            yield text


def test_the_pages_are_found() -> None:
    assert len(PAGES) == 8
    known = {"sh", "groovy", "yaml", "yaml values", "yaml gitlab", "yaml github", "yaml prometheus"}
    for page in PAGES:
        found = set(re.findall(r"^ *```([a-z ]+)$", page.read_text(), re.MULTILINE))
        assert found <= known, page


def objects(page: Path) -> Iterator[dict[str, Any]]:
    for text in blocks(page, "yaml"):
        yield from yaml.safe_load_all(text)


@pages
def test_objects_would_be_accepted(page: Path) -> None:
    for document in objects(page):
        resource = RESOURCES.of_kind(document["apiVersion"], document["kind"])
        if resource is not None:
            whole = resource.default({**document})
            assert resource.validate(whole) == ()
            assert resource.unknown_fields(whole) == ()
        elif not is_elsewhere(document):
            for release in RELEASES:
                assert problems(document, release) == []


@pages
def test_values_exist_and_make_a_valid_installation(page: Path) -> None:
    for text in blocks(page, "yaml values"):
        for document in manifests(yaml.safe_load(text), namespace="lab"):
            assert is_elsewhere(document) or problems(document) == []


@pytest.mark.parametrize(
    ("page", "kind", "schema"),
    [
        ("ci-gitlab.md", "yaml gitlab", "gitlab-ci"),
        ("ci-github.md", "yaml github", "github-workflows"),
    ],
)
def test_pipelines_are_as_their_service_wants_them(page: str, kind: str, schema: str) -> None:
    vendored = importlib.resources.files("check_jsonschema") / "builtin_schemas" / "vendor"
    validator = jsonschema_rs.validator_for(json.loads((vendored / f"{schema}.json").read_text()))
    (text,) = blocks(ROOT / "docs" / "how-to" / page, kind)
    document = yaml.load(text, Loader=yaml.BaseLoader)
    # The loader leaves numbers and truth values as text; the schemas want them as they are.
    plain = {("on" if k is True else k): v for k, v in yaml.safe_load(text).items()}
    assert document.keys() == plain.keys()
    assert [error.message for error in validator.iter_errors(plain)] == []


def commands(page: Path) -> Iterator[list[str]]:
    """Every command of ours in a page, as words."""
    for text in blocks(page, "sh"):
        joined = re.sub(r"\\\n\s*", " ", text)
        for line in re.findall(r"^\s*(bullpen [^|\n]*)", joined, re.MULTILINE):
            yield shlex.split(line)


@pages
def test_our_own_commands_have_the_options_that_are_used(page: Path, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").touch()
    for _, name, *arguments in commands(page):
        context = click.Context(cli)
        command = cli.get_command(context, name)
        assert command is not None, name
        given = [a.replace("values.yaml", str(tmp_path / "values.yaml")) for a in arguments]
        with contextlib.suppress(Unreachable):  # all options were known; there is no service here
            command.make_context(name, given, parent=context)


@pages
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"\b(?:deploy|examples)/[\w./-]*\w", page.read_text()):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / name).exists(), name


@pages
def test_metrics_that_are_named_exist(page: Path) -> None:
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    for name in re.findall(r"\bbullpen_[a-z_]+\b", page.read_text()):
        assert f'"{name.removesuffix("_total")}"' in source, name


def test_all_pipelines_take_a_target_in_the_same_way() -> None:
    lines = {
        line.strip().removeprefix("- ").removeprefix("run: ")
        for page in PAGES
        if page.stem.startswith("ci-")
        for line in page.read_text().splitlines()
        if "jmp shell" in line and "$LAB_CLIENT" in line
    }
    assert len(lines) == 1, "tests/real/test_recipes_real.py runs it"
