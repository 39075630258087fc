"""Services for tests: one for a file, or one of a test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.real_service import Service, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a file; each test uses names of its own."""
    with running_service(tmp_path_factory.mktemp("lab")) as running:
        yield running


@pytest.fixture
def fresh_service(tmp_path: Path) -> Iterator[Service]:
    """A service of its own for a test that stops or harms it."""
    with running_service(tmp_path) as running:
        yield running
