"""Every page and every table fits a window of 1,280 and of 390 pixels, with long names and large numbers, and cuts no figure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.console.page import Page
from tests.console.test_views import VIEWS
from tests.console.world import World

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Route

pytestmark = pytest.mark.process

NAMES = re.compile(
    "action|actor|consumer|created_by|error|error_type|failed_by|host|key|name|owner|pid|process_id|remote|stream|table"
    "|unique_key|version|why|zone"
)
"""The fields that have a name, or a text without spaces."""

SUFFIX = "-of-a-very-long-name_that.has.no.spaces"
LENGTH, LARGE = 80, 123_456_789_012_345
NOT_LARGE = re.compile(r"(^|_)(ms|id|at|seconds|status|done)$|rates?$|^(p\d\d|latency|lags|value|series)")
"""Numbers that are no counts, sizes or seqs. Durations have units of their own."""

OVERFLOWING = """() => [document.documentElement, ...document.querySelectorAll(
    ".table-scroll, table, .figure, .figure-value, td.number, .facts dd, .state, time, .chart figcaption, .list-head")]
  .filter((one) => one.getClientRects().length && getComputedStyle(one).display !== "inline" && one.scrollWidth > one.clientWidth + 1)
  .map((one) => `${one.tagName}.${one.className} ${one.scrollWidth} > ${one.clientWidth}: ${one.innerText.slice(0, 60)}`)"""
"""What is wider than its place. A pixel is left for fractions."""


def exaggerated(value: Any, field: str = "") -> Any:
    """Return an answer of the API with long names and large numbers."""
    if isinstance(value, dict):
        return {name: exaggerated(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [exaggerated(one, field) for one in value]
    if isinstance(value, str) and NAMES.fullmatch(field):
        return (value + SUFFIX * 3)[:LENGTH]
    if isinstance(value, int) and not isinstance(value, bool) and value and not NOT_LARGE.search(field):
        return LARGE
    return value


def _exaggerate(route: Route) -> None:
    url = re.sub(rf"{SUFFIX[:15]}[\w.-]*", "", route.request.url)  # a view asks for what an answer has named
    answer = route.fetch(url=url)
    if answer.status == 200 and "json" in answer.headers.get("content-type", ""):
        route.fulfill(response=answer, body=json.dumps(exaggerated(answer.json())))
    else:
        route.fulfill(response=answer)


@pytest.fixture(scope="module")
def crowded(world: World, sessions: Callable[..., BrowserContext]) -> Iterator[Page]:
    """A page whose answers are exaggerated."""
    page = Page(sessions(world.admin), world.url)
    page.tab.route("**/v1/**", _exaggerate)
    yield page.view("")
    page.close()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_with_long_names_and_large_numbers_fits_and_cuts_no_figure(crowded: Page, name: str) -> None:
    path, heading = VIEWS[name]
    crowded.tab.set_viewport_size({"width": 1280, "height": 900})
    crowded.go(path, None if heading.startswith("Message") else heading)
    for width in (1280, 390):
        crowded.tab.set_viewport_size({"width": width, "height": 900})
        assert crowded.tab.evaluate(OVERFLOWING) == [], width
