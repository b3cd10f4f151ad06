"""The console's first page in a real browser: how long it takes from the navigation until it is drawn, and how many bytes it costs."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from benchmarks.checks import CheckFailed

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
           "--disable-component-update", "--disable-sync")  # fmt: skip

OPENINGS = 11
"""Openings of the page that are measured, after one that is not."""

MOST_BYTES = 200_000
"""Bytes that the first page may take."""

WATCH = """{
  const seen = {};
  const waits = () =>
    [...document.querySelectorAll("main .loading, main .samples > p")].some((one) => one.textContent === "Loading…") ||
    document.querySelectorAll(".chart canvas").length < document.querySelectorAll(".chart").length;
  const afterFrame = (note) => requestAnimationFrame(() => scheduler.postTask(note, { priority: "user-blocking" }));
  const observer = new MutationObserver(() => {
    if (!document.querySelector("main .figures")) return;
    if (!seen.shown) {
      seen.shown = performance.now();
      afterFrame(() => (seen.drawn = performance.now()));
    }
    if (waits()) return;
    observer.disconnect();
    afterFrame(() => console.debug("firstPage", JSON.stringify({ ...seen, complete: performance.now() })));
  });
  observer.observe(document, {childList: true, subtree: true, characterData: true});
}"""
"""Logs milliseconds since the navigation began, see `Opening`. It is no part of the page, and runs before the page's scripts. Until it
has logged them nothing is evaluated in the page: the scripts that Playwright needs for that take the page's time."""

SIZES = """() => {
  const all = [...performance.getEntriesByType("resource"), ...performance.getEntriesByType("navigation")];
  return [all.reduce((sum, one) => sum + one.encodedBodySize, 0), all.length];
}"""


class Opening(msgspec.Struct, frozen=True):
    """The times of one opening of the first page.

    Attributes:
        shown_ms: milliseconds from the start of the navigation until the overview with its data is in the document.
        drawn_ms: until the page's thread has done the frame that draws it.
        complete_ms: until its lists and charts are drawn, too.
        sent_bytes: bytes of all bodies as they were sent.
        requests: their number.
    """

    shown_ms: float
    drawn_ms: float
    complete_ms: float
    sent_bytes: int
    requests: int


class FirstPage(msgspec.Struct, frozen=True):
    """The times of openings of the first page: medians, the extremes of `shown_ms`, and the most bytes."""

    openings: int
    shown_ms: float
    least_shown_ms: float
    most_shown_ms: float
    drawn_ms: float
    complete_ms: float
    sent_bytes: int
    requests: int


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser | None]:
    """Start a browser. None if this machine has none."""
    program = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if program is None or importlib.util.find_spec("playwright") is None:
        yield None
        return
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        try:
            yield browser
        finally:
            await browser.close()


@asynccontextmanager
async def visitor(browser: Browser, port: int, cookie: str) -> AsyncIterator[BrowserContext]:
    """A signed-in user with empty caches."""
    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    name, _, value = cookie.partition("=")
    await context.add_cookies([{"name": name, "value": value, "url": f"http://127.0.0.1:{port}"}])
    try:
        yield context
    finally:
        await context.close()


async def first_page(port: int, cookie: str, openings: int = OPENINGS) -> FirstPage | None:
    """Open the first page repeatedly, each time with empty caches, in one browser that runs. None without a browser.

    Raises:
        CheckFailed: it takes more bytes than it may.
    """
    async with chromium() as browser:
        if browser is None:
            return None
        await _opening(browser, port, cookie)  # the browser itself is warm
        found = [await _opening(browser, port, cookie) for _ in range(openings)]
    return _together(found)


async def _opening(browser: Browser, port: int, cookie: str) -> Opening:
    async with visitor(browser, port, cookie) as context:
        page = await context.new_page()
        await page.add_init_script(WATCH)
        await page.goto("about:blank")
        async with page.expect_console_message(lambda message: message.text.startswith("firstPage ")) as logged:
            await page.goto(f"http://127.0.0.1:{port}/console/", wait_until="commit")
        seen = msgspec.json.decode((await logged.value).text.removeprefix("firstPage "))
        sent_bytes, requests = await page.evaluate(SIZES)
        return Opening(seen["shown"], seen["drawn"], seen["complete"], int(sent_bytes), int(requests))


def _together(found: Sequence[Opening]) -> FirstPage:
    shown = [one.shown_ms for one in found]
    sent_bytes = max(one.sent_bytes for one in found)
    if sent_bytes > MOST_BYTES:
        raise CheckFailed(f"The console's first page takes {sent_bytes:,} bytes, and {MOST_BYTES:,} are allowed.")
    return FirstPage(
        openings=len(found),
        shown_ms=statistics.median(shown),
        least_shown_ms=min(shown),
        most_shown_ms=max(shown),
        drawn_ms=statistics.median(one.drawn_ms for one in found),
        complete_ms=statistics.median(one.complete_ms for one in found),
        sent_bytes=sent_bytes,
        requests=max(one.requests for one in found),
    )
