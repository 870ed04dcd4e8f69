"""The files of the page at ``/``: which there are, as which types, and under which paths. Knows no HTTP framework."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file as it is sent. ``etag``: quoted, as in the header field."""

    content_type: str
    body: bytes
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """By path."""
    found = {}
    for file in sorted(FOLDER.iterdir()):
        body = file.read_bytes()
        etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        path = "/" if file.name == INDEX else f"/page/{file.name}"
        found[path] = PageFile(CONTENT_TYPES[file.suffix], body, etag)
    return found
