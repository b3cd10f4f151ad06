"""Browsers that look at the console: light ones, which ask as its page does, and a real one."""

from __future__ import annotations

import asyncio
import importlib.util
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

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


async def light(port: int, asked: Asked, stop: asyncio.Event, offset: float, paths: Sequence[str]) -> None:
    """Ask every path once a second over one connection, with the ETag of the last answer, until `stop`."""
    await asyncio.sleep(offset)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    etags: dict[str, str] = {}
    try:
        while not stop.is_set():
            began = time.monotonic()
            for path in paths:
                await _ask(reader, writer, path, etags, asked)
            left = began + INTERVAL - time.monotonic()
            try:
                await asyncio.wait_for(stop.wait(), max(left, 0.001))
            except TimeoutError:
                continue
    finally:
        writer.close()


async def once(port: int) -> None:
    """Ask every path once, so that the server has made what it makes at its first request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for path in (*PATHS, "/console/", "/v1/me"):
        await _ask(reader, writer, path, {}, Asked())
    writer.close()


async def _ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, etags: dict[str, str], asked: Asked
) -> None:
    known = f"if-none-match: {etags[path]}\r\n" if path in etags else ""
    began = time.monotonic()
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-headrace-console: poll\r\n{known}\r\n".encode())
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    await reader.readexactly(int(headers.get("content-length", 0)))
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
        etags[path] = headers["etag"]


@asynccontextmanager
async def real(port: int) -> AsyncIterator[FirstPage | None]:
    """Keep a real browser at the console. Yields what its first page took, or None if this machine has no browser."""
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        page = await browser.new_page()
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
