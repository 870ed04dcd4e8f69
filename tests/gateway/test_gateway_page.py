"""The page at ``/``: its files, their headers, and that they are all the page is made of."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from gateway_fakes import FakeEngineClient, call, make_state

from gateway.app import create_app
from gateway.page_files import CONTENT_TYPES, FOLDER, page_files

FILES = sorted(FOLDER.iterdir())
ROOT = Path(__file__).parents[2]


def test_every_file_has_a_path_and_a_type(app: Any) -> None:
    assert len(page_files()) == len(FILES)
    for path, file in page_files().items():
        answer = call(app, path, method="GET")
        assert answer.status == 200
        assert answer.body == file.body
        assert answer.headers["content-type"] in CONTENT_TYPES.values()
        assert int(answer.headers["content-length"]) == len(file.body)
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
    assert call(app, "/", method="GET").headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize(("sent", "status"), [("{}", 304), ('"x", W/{}', 304), ("*", 304), ('"x"', 200), ("", 200)])
def test_a_browser_that_has_it_need_not_get_it_again(app: Any, sent: str, status: int) -> None:
    first = call(app, "/page/app.js", method="GET")
    assert first.headers["cache-control"] == "no-cache"
    etag = first.headers["etag"]
    headers = [(b"if-none-match", sent.format(etag).encode())]
    again = call(app, "/page/app.js", method="GET", headers=headers)
    assert (again.status, again.headers["etag"]) == (status, etag)
    assert bool(again.body) == (status == 200)
    assert call(app, "/page/app.js", method="HEAD").headers["etag"] == etag


@pytest.mark.parametrize("path", ["/page", "/page/", "/index.html", "/page/index.html", "/page/../auth.py", "/page/x"])
def test_other_paths_are_unknown(app: Any, path: str) -> None:
    answer = call(app, path, method="GET")
    assert answer.status == 404
    assert answer.json["error"]["message"] == "no such path"
    assert call(app, "/", method="POST").status == 405


def test_the_page_needs_no_key_and_what_it_asks_for_does(engine: FakeEngineClient) -> None:
    app = create_app(make_state(engine, config={"api_key": ("secret",)}))
    for path in page_files():
        assert call(app, path, method="GET").status == 200
    for path in ("/page/x", "//", "/v1/models", "/metrics", "/debug/requests"):
        assert call(app, path, method="GET").status == 401


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_all_ours(file: Path) -> None:
    """Nothing is loaded from elsewhere, nothing is inline that the policy would have to allow."""
    text = file.read_text()
    addresses = set(re.findall(r"\w+://[^\s\"']+", text)) - {"http://www.w3.org/2000/svg"}
    assert addresses == set()
    assert not re.search(
        r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=|javascript:|@import|innerHTML|eval\(", text
    )


def test_every_id_that_a_script_wants_is_there() -> None:
    known = set(re.findall(r'\sid="([\w-]+)"', (FOLDER / "index.html").read_text()))
    scripts = "".join(file.read_text() for file in FILES if file.suffix == ".js")
    wanted = set(re.findall(r'byId\("([\w-]+)"\)', scripts))
    assert wanted
    assert wanted <= known


def test_the_wheel_has_the_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["gateway"] == ["page/*"]
