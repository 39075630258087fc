"""The built pages: files of the front end, read once, served with the right headers."""

from __future__ import annotations

import mimetypes
from pathlib import Path

from bullpen.apiserver.http import Response
from bullpen.errors import NotFound

BUILT = Path(__file__).parent / "built"
"""Where the build puts the pages, in a checkout and in the wheel."""

PREFIX = "/dashboard/"
INDEX = "index.html"
ASSETS = "assets/"
"""Files whose names change with their content."""

FILES_MAX = 200

MISSING = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Bullpen</title></head>
<body><h1>The dashboard is not built</h1>
<p>The service works; only its pages are missing. In a checkout, run <code>make setup</code> and
start the service again.</p></body></html>
"""


class Pages:
    def __init__(self, directory: Path = BUILT) -> None:
        """Read all files: they are few and small, and a request then touches no disk."""
        self._files: dict[str, bytes] = {}
        for path in sorted(directory.rglob("*"))[:FILES_MAX] if directory.is_dir() else ():
            if path.is_file():
                self._files[path.relative_to(directory).as_posix()] = path.read_bytes()

    @property
    def built(self) -> bool:
        return INDEX in self._files

    def get(self, path: str) -> Response:
        """The file at ``path`` below the prefix; every page that is no file is the index."""
        if path.startswith(ASSETS):
            body = self._files.get(path)
            if body is None:
                raise NotFound(f"there is no file {path}; reload the page")
            return Response(
                body=body,
                content_type=_type(path),
                headers=(("cache-control", "public, max-age=31536000, immutable"),),
            )
        if path != INDEX and path in self._files:
            return Response(body=self._files[path], content_type=_type(path))
        if not self.built:
            return Response(status=503, body=MISSING, content_type="text/html; charset=utf-8")
        return Response(body=self._files[INDEX], content_type="text/html; charset=utf-8")


def _type(path: str) -> str:
    known = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}
    suffix = Path(path).suffix
    return known.get(suffix) or mimetypes.types_map.get(suffix, "application/octet-stream")
