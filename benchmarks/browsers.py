"""Browsers that look at the console: light ones, which ask as its page does, and a real one."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.client import HTTPResponse

import msgspec

from benchmarks.checks import CheckFailed

PATHS = ("/v1/live", "/v1/live/streams?sort=rate&desc=true&offset=0&limit=50")
"""What the page asks once a second, while it shows the streams."""

VIEWS = (
    "/v1/live/streams/idle-{number}/consumers/c0",
    "/v1/live/streams/idle-{number}",
    "/v1/streams/idle-{number}/consumers/c0/dead_letters",
    "/v1/samples?kind=stream&stream=idle-{number}",
    "/v1/jobs",
)
"""What other views ask. Each browser shows another one, of another stream, and asks it once a second."""

INTERVAL = 1.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync")  # fmt: skip


SHOWN = """new MutationObserver((_, observer) => {
  if (!document.querySelector(".figures")) return;
  window.shownAt = performance.now();
  observer.disconnect();
}).observe(document, {childList: true, subtree: true})"""
"""Notes when the page shows its figures, in milliseconds since its navigation."""

SIZES = """() => {
  const all = [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")];
  return [all.reduce((sum, one) => sum + one.encodedBodySize, 0), all.length];
}"""


class FirstPage(msgspec.Struct, frozen=True):
    """What the first page took: milliseconds until it shows its figures, bytes of all bodies as they were sent, requests."""

    took_ms: float
    sent_bytes: int
    requests: int


class Asked:
    """What light browsers have asked: the number of requests, of those with no new answer, and the times of all."""

    def __init__(self) -> None:
        self.requests = 0
        self.unchanged = 0
        self.later = 0
        self.took: list[float] = []


async def first_token(port: int) -> str:
    """Create the first token, with which all browsers sign in."""
    answer = await asyncio.to_thread(_post, port, "tokens", {"name": "console", "scopes": ["admin"]})
    return str(msgspec.json.decode(answer.read())["token"])


async def sign_in(port: int, token: str) -> str:
    """Sign in as the page does, and return the cookie of the new session as `name=value`."""
    answer = await asyncio.to_thread(_post, port, "session", {"token": token})
    return str(answer.headers["set-cookie"]).partition(";")[0]


def _post(port: int, path: str, body: object) -> HTTPResponse:
    url = f"http://127.0.0.1:{port}"
    headers = {"content-type": "application/json", "x-headrace-console": "1", "origin": url}
    request = urllib.request.Request(f"{url}/v1/{path}", msgspec.json.encode(body), headers)
    answer: HTTPResponse = urllib.request.urlopen(request, timeout=10)
    return answer


class _Browser:
    """Asks as the page does: over one connection, signed in, with the ETag of the last answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cookie: str) -> None:
        self._reader, self._writer = reader, writer
        self._cookie = cookie
        self._etags: dict[str, str] = {}

    async def ask(self, path: str, asked: Asked) -> None:
        lines = [f"GET {path} HTTP/1.1", "host: localhost", f"cookie: {self._cookie}", "x-headrace-console: poll"]
        if path in self._etags:
            lines.append(f"if-none-match: {self._etags[path]}")
        began = time.monotonic()
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        status, *found = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in found)}
        await self._reader.readexactly(int(headers.get("content-length", 0)))
        asked.took.append(time.monotonic() - began)
        asked.requests += 1
        code = int(status.split()[1])
        if code == 304:
            asked.unchanged += 1
        elif code == 429:
            asked.later += 1  # many views were asked for, so that this one is refreshed later
        elif code != 200:
            raise CheckFailed(f"GET {path} was answered with {status}.")
        if "etag" in headers:
            self._etags[path] = headers["etag"]


@asynccontextmanager
async def _browser(port: int, cookie: str) -> AsyncIterator[_Browser]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield _Browser(reader, writer, cookie)
    finally:
        writer.close()


async def light(port: int, cookie: str, paths: Sequence[str], asked: Asked, stop: asyncio.Event, offset: float) -> None:
    """Ask every path once a second, from `offset` seconds on, until `stop`."""
    await asyncio.sleep(offset)
    async with _browser(port, cookie) as browser:
        while not stop.is_set():
            began = time.monotonic()
            for path in paths:
                await browser.ask(path, asked)
            left = began + INTERVAL - time.monotonic()
            try:
                await asyncio.wait_for(stop.wait(), max(left, 0.001))
            except TimeoutError:
                continue


async def once(port: int, cookie: str) -> None:
    """Ask every path once, so that the server has made what it makes at its first request."""
    async with _browser(port, cookie) as browser:
        for path in (*PATHS, "/console/", "/v1/me"):
            await browser.ask(path, Asked())


@asynccontextmanager
async def real(port: int, cookie: str) -> AsyncIterator[FirstPage | None]:
    """Keep a real browser at the console. Yields what its first page took, or None if this machine has no browser."""
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        page = await browser.new_page()
        name, _, value = cookie.partition("=")
        await page.context.add_cookies([{"name": name, "value": value, "url": f"http://127.0.0.1:{port}"}])
        await page.goto("about:blank")  # the browser itself is up
        await page.add_init_script(SHOWN)
        await page.goto(f"http://127.0.0.1:{port}/console/", wait_until="commit")
        await page.locator(".figures").wait_for()
        took = float(await page.evaluate("window.shownAt"))
        sizes = await page.evaluate(SIZES)
        await page.goto(f"http://127.0.0.1:{port}/console/streams?sort=rate&desc=true")
        yield FirstPage(took, int(sizes[0]), int(sizes[1]))
        await browser.close()


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of times in milliseconds."""
    found = sorted(values)
    return found[min(int(len(found) * share), len(found) - 1)] * 1000 if found else 0.0
