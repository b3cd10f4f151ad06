"""Serving of the console: its page and files at any mount point, what protects them, and API clients that see nothing of
it."""

from __future__ import annotations

import gzip
import re
from collections.abc import AsyncIterator
from urllib.parse import urljoin

import httpx
import pytest
import pytest_asyncio
from starlette.applications import Starlette
from starlette.routing import Mount

from headrace import App
from headrace.server.asgi import Server
from headrace.server.console.console import POLICY, console_page
from headrace.server.console.files import SCRIPT, static_files
from headrace.server.http import Scope
from tests.server.calling import Api

pytestmark = pytest.mark.asyncio

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8", "user-agent": "Mozilla/5.0"}
VIEWS = (
    "",
    "streams",
    "streams/orders",
    "streams/a/",
    "streams/orders/consumers/a%2Fb",
    "streams/orders/consumers/a%2Fb/",
)


@pytest_asyncio.fixture
async def mounted(dsn: str) -> AsyncIterator[httpx.AsyncClient]:
    app = App(dsn)
    web = Starlette(routes=[Mount("/a/b", app=Server(app))])
    async with (
        app.running(),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://localhost") as it,
    ):
        yield it


async def _check_views(client: httpx.AsyncClient, root: str) -> None:
    """Check that each view's page finds the console's root, and so its files and the API."""
    for view in VIEWS:
        answer = await client.get(f"{root}console/{view}", headers=BROWSER)
        assert answer.status_code == 200, view
        base = re.search('<base href="(.*?)">', answer.text)
        assert base is not None
        url = urljoin(str(answer.url), base[1])
        assert url == f"http://{answer.url.host}{root}console/", view
        for path in re.findall('(?:src|href)="(static/[^"]+)"', answer.text):
            file = await client.get(urljoin(url, path))
            assert file.status_code == 200, path
        assert (await client.get(urljoin(url, "../v1/me"))).status_code == 200


async def test_every_view_has_the_page_which_finds_its_files(api: Api) -> None:
    await _check_views(api.client, "/")


async def test_the_console_works_below_a_mount_point(mounted: httpx.AsyncClient) -> None:
    await _check_views(mounted, "/a/b/")


async def test_a_browser_is_led_from_the_root_to_the_console(api: Api, mounted: httpx.AsyncClient) -> None:
    for client, paths, target in (
        (api.client, ("", "/", "/console"), "/console/"),
        (mounted, ("/a/b", "/a/b/", "/a/b/console"), "/a/b/console/"),
    ):
        for path in paths:
            answer = await client.get(path, headers=BROWSER)
            if answer.status_code == 307:  # Starlette itself adds a slash to the mount point
                answer = await client.get(answer.headers["location"], headers=BROWSER)
            assert answer.status_code == 302, path
            assert urljoin(str(answer.url), answer.headers["location"]).endswith(target)
            assert httpx.URL(urljoin(str(answer.url), answer.headers["location"])).path == target


async def test_a_client_of_the_api_sees_no_redirect(api: Api) -> None:
    for accept in ("*/*", "application/json"):
        answer = await api.client.get("/", headers={"accept": accept})
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    for method in ("POST", "DELETE", "PUT"):
        for path in ("/", "/console/", "/console/static/x"):
            assert (await api.client.request(method, path, headers={"accept": "text/html"})).status_code in (404, 405)


async def test_the_page_is_given_without_a_token_and_from_links_elsewhere(api: Api) -> None:
    foreign = {**BROWSER, "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    for _ in range(2):
        for path in ("/console/", "/console/streams/orders"):
            assert (await api.client.get(path, headers=foreign)).status_code == 200
        await api.server.app.admin.create_token(f"ops{_}", ["admin"])
        api.server.access.changed("")
    assert (await api.client.get("/v1/streams")).status_code == 401


async def test_the_page_runs_only_files_of_the_server(api: Api) -> None:
    answer = await api.client.get("/console/", headers=BROWSER)
    assert answer.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]* src=)", answer.text)
    assert not re.search(r"<style|\sstyle=|\son\w+=", answer.text)


async def test_files_are_kept_by_browsers_under_their_version(api: Api) -> None:
    found = static_files()
    file = found.by_path[SCRIPT]
    path = f"/console/static/{found.version}/{SCRIPT}"
    answer = await api.client.get(path, headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.content == file.content
    assert "immutable" in answer.headers["cache-control"]
    assert answer.headers["content-type"].startswith("text/javascript")
    plain = await api.client.get(path, headers={"accept-encoding": "identity"})
    assert plain.content == file.content
    again = await api.client.get(path, headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    older = await api.client.get(path.replace(found.version, "0123456789ab"))
    assert (older.status_code, older.headers["cache-control"]) == (200, "no-cache")
    assert gzip.decompress(file.compressed or b"") == file.content


async def test_nothing_but_the_console_is_served_as_a_file(api: Api) -> None:
    for name in (
        "../console.py",
        "..%2fconsole.py",
        "%2e%2e/console.py",
        "vendor/README.md",
        "",
        "vendor",
        "nothing.js",
        "shell.js",
        "vendor/preact.js",
    ):
        answer = await api.client.get(f"/console/static/{static_files().version}/{name}")
        assert answer.status_code == 404, name
        assert answer.headers["content-type"].startswith("text/plain")


async def test_a_head_request_gets_no_body(api: Api) -> None:
    answer = await api.client.head("/console/", headers=BROWSER)
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 0
    assert answer.content == b""


async def test_a_host_without_a_raw_path_is_served() -> None:
    scope: Scope = {"method": "GET", "path": "/console/streams/orders", "headers": []}
    page = console_page(scope, scope["path"])
    assert page is not None
    assert b'<base href="../">' in page.body
