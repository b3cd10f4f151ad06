"""A browser and a live server, which the tests of this folder share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.console import browser as browsers
from tests.console.page import Page
from tests.console.world import World
from tests.console.world import world as running_world
from tests.support import servers

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

OpenPage = Callable[..., Page]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    browsers.require()
    with browsers.browser() as started:
        yield started


@pytest.fixture(scope="package")
def world(server_dsn: str, template: str) -> Iterator[World]:
    browsers.require()
    with servers.clone(server_dsn, template) as dsn, running_world(dsn) as made:
        yield made


@pytest.fixture(scope="package")
def sessions(browser: Browser, world: World) -> Callable[[str], BrowserContext]:
    """Return a function that returns a new context of a browser that is signed in with a token."""
    states: dict[str, object] = {}

    def signed_in(token: str, **options: object) -> BrowserContext:
        if token not in states:
            context = browser.new_context()
            headers = {"x-headrace-console": "1", "origin": world.url}
            answer = context.request.post(f"{world.url}/v1/session", data={"token": token}, headers=headers)
            assert answer.ok, answer.text()
            states[token] = context.storage_state()
            context.close()
        return browser.new_context(storage_state=states[token], **options)  # type: ignore[arg-type]

    return signed_in


@pytest.fixture
def open_page(world: World, sessions: Callable[..., BrowserContext]) -> Iterator[OpenPage]:
    """Return a function that opens a view. At the end each page must have had no error, and no request elsewhere."""
    pages: list[Page] = []

    def opened(path: str = "", token: str | None = None, **options: object) -> Page:
        context = sessions(token or world.admin, **{"viewport": {"width": 1280, "height": 900}, **options})
        page = Page(context, world.url)
        pages.append(page)
        page.view(path)
        return page

    yield opened
    for page in pages:
        page.close()
    for page in pages:
        page.check()
