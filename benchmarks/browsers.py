"""Browsers that look at the console: light ones, which ask as its page does, and a real one."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http.client import HTTPResponse

import msgspec

from benchmarks.checks import CheckFailed
from benchmarks.first_page import chromium, visitor

PATHS = ("/v1/live", "/v1/live/streams?sort=rate&desc=true&offset=0&limit=50")
"""The requests of the page once a second, while it shows the streams."""

VIEWS = (
    "/v1/live/streams/idle-{number}/consumers/c0",
    "/v1/live/streams/idle-{number}",
    "/v1/streams/idle-{number}/consumers/c0/dead_letters",
    "/v1/samples?kind=stream&stream=idle-{number}",
    "/v1/jobs",
)
"""The requests of other views. Each browser shows another one, of another stream, and asks it once a second."""

INTERVAL = 1.0


class Asked:
    """The requests of light browsers: the number of requests, of those with no new answer, and the times of all."""

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
async def real(port: int, cookie: str) -> AsyncIterator[bool]:
    """Keep a real browser at the console. Yields False if this machine has none."""
    async with AsyncExitStack() as stack:
        browser = await stack.enter_async_context(chromium())
        if browser is not None:
            page = await (await stack.enter_async_context(visitor(browser, port, cookie))).new_page()
            await page.goto(f"http://127.0.0.1:{port}/console/")
            await page.locator(".figures").wait_for()
            await page.goto(f"http://127.0.0.1:{port}/console/streams?sort=rate&desc=true")
        yield browser is not None


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of times in milliseconds."""
    found = sorted(values)
    return found[min(int(len(found) * share), len(found) - 1)] * 1000 if found else 0.0
