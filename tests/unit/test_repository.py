"""The repository keeps its own rules: the map is true and every module says what it is for."""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "bullpen"
MODULES = sorted(SOURCE.rglob("*.py"))
MODULE_LINES_MAX = 500
DECIDING = ("api", "core", "identity", "kit")


def packages() -> set[str]:
    return {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def packages_on_the_map() -> set[str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tree = text.split("## Map of the code")[1].split("```")[1]
    return set(re.findall(r"^([a-z]+)/", tree, re.MULTILINE))


def test_the_map_names_every_package_and_only_those() -> None:
    assert packages_on_the_map() == packages()


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/explanation/trust.md"])
def test_every_file_that_a_map_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+(?:[a-z_]+\.[a-z]+)?)`", text))
    missing = [name for name in named if not any((b / name).exists() for b in (ROOT, SOURCE))]
    assert not missing


def test_no_module_is_longer_than_500_lines() -> None:
    long = {str(p.relative_to(SOURCE)): len(p.read_text().splitlines()) for p in MODULES}
    assert not {path: lines for path, lines in long.items() if lines > MODULE_LINES_MAX}


def test_every_room_of_controllers_is_one_of_core() -> None:
    def rooms(package: str) -> set[str]:
        return {path.parent.name for path in (SOURCE / package).glob("*/__init__.py")}

    assert rooms("controllers") == rooms("core")


def test_every_word_of_the_glossary_is_used_where_it_says() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.split("## Words we use")[1].split("\n## ")[0]
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    unused = []
    for words, _, files in rows:
        named = [SOURCE / name for name in re.findall(r"`([a-z_/0-9]+\.py)`", files)]
        used = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", " ".join(path.read_text() for path in named))
        used = re.sub(r"[\W_]+", " ", used).lower()
        unused += [word for word in words.split(",") if word.strip().lower() not in used]
    assert not unused


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_every_module_says_what_it_is_for(path: Path) -> None:
    doc = ast.get_docstring(ast.parse(path.read_text()))
    assert doc, f"{path} has no docstring"
    assert doc.splitlines()[0].endswith((".", "!", ":", ",")) or len(doc.splitlines()) > 1


@pytest.mark.parametrize("package", DECIDING)
def test_what_decides_reads_no_clock_and_draws_no_lots(package: str) -> None:
    allowed = {SOURCE / "kit" / "clock.py", SOURCE / "kit" / "ids.py"}
    for path in (SOURCE / package).rglob("*.py"):
        if path in allowed:
            continue
        names = {
            node.attr
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Attribute)
        }
        assert not names & {"utcnow", "monotonic", "perf_counter", "urandom", "getenv"}, path


def test_every_runtime_dependency_is_justified() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    block = project.split("dependencies = [")[1].split("]")[0]
    names = re.findall(r'"([A-Za-z0-9-]+)', block)
    text = (ROOT / "docs" / "dependencies.md").read_text()
    assert [name for name in names if name not in text] == []


def test_every_exit_code_is_documented() -> None:
    from bullpen.cli.options import Exit

    text = (ROOT / "docs" / "reference" / "exit-codes.md").read_text()
    assert [code.name for code in Exit if f"| {code.value} |" not in text] == []


def test_every_error_reason_is_documented() -> None:
    from bullpen import errors

    text = (ROOT / "docs" / "reference" / "errors.md").read_text()
    reasons = {
        value.reason
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, errors.LabError)
    }
    assert [reason for reason in sorted(reasons) if f"`{reason}`" not in text] == []


def reasons_in(package: str) -> set[str]:
    """Every constant that is given as a ``reason`` somewhere in a package."""
    return {
        keyword.value.value
        for path in (SOURCE / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "reason"
        and isinstance(keyword.value, ast.Constant)
        and isinstance(keyword.value.value, str)
        and keyword.value.value.isalpha()
    }


@pytest.mark.parametrize("package", ["core", "controllers", "services"])
def test_every_condition_and_event_reason_is_documented(package: str) -> None:
    text = (ROOT / "docs" / "reference" / "conditions.md").read_text()
    assert [reason for reason in sorted(reasons_in(package)) if f"`{reason}`" not in text] == []


def test_every_setting_is_documented() -> None:
    from bullpen.app.config import (
        AuditConfig,
        BackupConfig,
        Config,
        ConnectionConfig,
        DashboardClient,
        ExporterConfig,
        ExternalScalerConfig,
        LabelConfig,
        LeaseConfig,
        NamespaceRule,
        OidcIssuer,
        PoolConfig,
        RetainedConfig,
        SandboxConfig,
        WebhookConfig,
    )

    text = (ROOT / "docs" / "reference" / "settings.md").read_text()
    sections = {
        "": Config,
        "leases.": LeaseConfig,
        "exporters.": ExporterConfig,
        "backups.": BackupConfig,
        "retained.": RetainedConfig,
        "audit.": AuditConfig,
        "labels.": LabelConfig,
        "connections.": ConnectionConfig,
        "pools.": PoolConfig,
        "sandbox.": SandboxConfig,
        "externalScaler.": ExternalScalerConfig,
        "oidc[].": OidcIssuer,
        "oidc[].namespaceRules[].": NamespaceRule,
        "oidc[].dashboard.": DashboardClient,
        "webhooks[].": WebhookConfig,
    }
    names = [
        f"{prefix}{field}"
        for prefix, section in sections.items()
        for field in section.__struct_encode_fields__
        if f"{prefix}{field}"
        not in (
            "leases",
            "exporters",
            "backups",
            "retained",
            "labels",
            "connections",
            "pools",
            "audit",
            "sandbox",
            "externalScaler",
            "oidc[].dashboard",
        )
    ]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_every_command_is_in_the_readme_or_the_reference() -> None:
    from bullpen.cli.main import COMMANDS

    text = (ROOT / "docs" / "reference" / "commands.md").read_text()
    assert [name for name in COMMANDS if f"`bullpen {name}" not in text] == []


def test_every_error_has_a_code_on_each_wire() -> None:
    from bullpen import errors
    from bullpen.apiserver.status import code as http_code
    from bullpen.cli.options import exit_for
    from bullpen.services.grpc.errors import code as grpc_code

    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, errors.LabError):
            error = value("x")
            assert 400 <= http_code(error) < 600
            assert grpc_code(error)
            assert exit_for(error)


def test_each_of_upstreams_twenty_gaps_has_a_test() -> None:
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    found = set(map(int, re.findall(r"def test_gap_(\d\d)_", text)))
    assert found == set(range(1, 21))


def test_each_hazard_of_pools_names_tests_that_exist() -> None:
    page = (ROOT / "docs" / "explanation" / "pool-hazards.md").read_text()
    rows = re.findall(r"^\| (\d+) \| .* \|$", page, re.MULTILINE)
    assert rows == [*map(str, range(1, 16)), *map(str, range(1, 6))]
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for row in re.findall(r"^\| \d+ \|.*$", page, re.MULTILINE):
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert [name for name in named if f"def {name}(" not in text] == [], row


def test_every_mutant_can_be_made() -> None:
    """Its line has a home of its own; one that is no longer there would break nothing."""
    found = runpy.run_path(str(ROOT / "scripts" / "mutants"))["MUTANTS"]
    assert len({mutant.name for mutant in found}) == len(found)
    for mutant in found:
        text = (ROOT / "src" / "bullpen" / mutant.file).read_text()
        assert text.count(mutant.old) == 1, mutant.name
        assert (ROOT / mutant.tests).exists(), mutant.name
