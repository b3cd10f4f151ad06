"""Signing in, scopes, keys, colours, addresses, polling, an outage, and what the first page costs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from tests.console.conftest import OpenPage
from tests.console.page import Page
from tests.console.world import PROXY_USER, World
from tests.support import servers
from tests.support.serving import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Route

pytestmark = pytest.mark.process

MOST_BYTES = 200_000


def test_a_user_signs_in_and_out(browser: Browser, world: World) -> None:
    page = Page(browser.new_context(), world.url)
    page.expected.append("401")
    page.view("streams/orders", "Sign in")
    page.get("textbox", "Access token").fill("hr_0123456789ab_0123456789012345678901234567890123456789")
    page.click("Sign in")
    page.see("The token is unknown or revoked")
    page.get("textbox", "Access token").fill(world.admin)
    page.click("Sign in")
    page.settled("orders")  # the address that the user came for
    cookie = next(one for one in page.context.cookies() if one["name"] == "headrace_session")
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"]) == (True, "Strict", "/")
    assert page.tab.evaluate("document.cookie") == ""
    assert world.admin not in page.tab.evaluate("JSON.stringify([localStorage, sessionStorage])")
    page.click("Sign out")
    page.settled("Sign in")
    page.tab.reload()
    page.settled("Sign in")
    page.close()
    page.check()


def test_a_user_whom_a_proxy_signs_in_needs_no_token(browser: Browser, world: World) -> None:
    page = Page(browser.new_context(extra_http_headers={PROXY_USER: "ann@example.com"}), world.url)
    page.view("streams/orders", "orders")
    page.see("ann@example.com")
    page.tab.locator("tbody tr").first.wait_for()
    for name in ("Publish", "Edit settings", "Sign out"):  # the token of the proxies has `consume` only
        assert page.get("button", name, exact=True).count() == 0
    page.close()
    page.check()


def test_a_token_of_one_stream_shows_that_stream_and_no_acts(open_page: OpenPage, world: World) -> None:
    page = open_page("streams", token=world.reader)
    page.get("link", "orders", exact=True).wait_for()
    assert page.get("link", "payments", exact=True).count() == 0
    page.click("orders", "link", exact=True)
    page.settled("orders")
    page.tab.locator("tbody tr").first.wait_for()
    for name in ("Publish", "Edit settings"):
        assert page.get("button", name, exact=True).count() == 0
    page.view("streams/orders/consumers/bill?tab=blocked", "bill")
    page.tab.locator("tbody tr").first.wait_for()
    for name in ("Pause", "Seek", "Replay", "Edit settings", "Redrive", "Discard"):
        assert page.get("button", name, exact=True).count() == 0
    page.view("streams/orders/consumers/ship/dead-letters", "Dead letters")
    page.tab.locator("tbody tr").first.wait_for()
    assert page.get("button", re.compile("Redrive|Discard")).count() == 0
    for name in ("Audit", "Schedules", "Tokens"):
        assert page.get("link", name).count() == 0
    page.view("tokens", "Tokens")
    page.see("Your token may not see tokens")
    assert page.get("button", "Create a token").count() == 0


def test_what_a_token_may_not_do_is_refused_by_the_server_too(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/ship", token=world.reader)
    page.expected.append("403")
    status = page.tab.evaluate(
        """async () => (await fetch("../v1/streams/orders/consumers/ship/pause",
            {method: "POST", body: "{}", headers: {"content-type": "application/json", "x-headrace-console": "1"}})).status"""
    )
    assert status == 403


def test_everything_is_reached_by_keys(open_page: OpenPage) -> None:
    page = open_page()
    keyboard = page.tab.keyboard
    for key, heading in (
        ("s", "Streams"),
        ("c", "Consumers"),
        ("u", "Sources"),
        ("p", "Processes"),
        ("e", "Schedules"),
        ("j", "Jobs"),
        ("a", "Audit log"),
        ("t", "Tokens"),
    ):
        keyboard.press("g")
        keyboard.press(key)
        page.settled(heading)
    keyboard.press("g")
    keyboard.press("s")
    page.settled("Streams")
    page.tab.locator("[data-search]").wait_for()
    keyboard.press("/")
    keyboard.type("pay")
    page.until("location.search === '?q=pay'")
    page.get("link", "orders", exact=True).wait_for(state="detached")
    page.tab.locator("h1").focus()
    keyboard.press("?")
    page.tab.locator("dialog[open]").wait_for()
    keyboard.press("Escape")
    page.tab.locator("dialog[open]").wait_for(state="detached")


def test_the_skip_link_leads_past_the_navigation(open_page: OpenPage) -> None:
    page = open_page("streams")
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.tab.keyboard.press("Enter")
    page.until("document.activeElement.tagName === 'H1'")


def test_the_colours_that_were_chosen_are_remembered(open_page: OpenPage) -> None:
    page = open_page("", color_scheme="light")
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.tab.evaluate(ground)
    page.get("combobox", "Colours").select_option("dark")
    dark = page.tab.evaluate(ground)
    assert dark != light
    page.tab.reload()
    page.settled("Overview")
    assert page.tab.evaluate(ground) == dark
    page.get("combobox", "Colours").select_option("auto")
    assert page.tab.evaluate(ground) == light


def test_a_filter_has_an_address_and_goes_back(open_page: OpenPage) -> None:
    page = open_page("consumers")
    page.get("button", "Lag").click()
    page.until("location.search.includes('sort=lag') && location.search.includes('desc=true')")
    page.get("combobox", "State").select_option("paused")
    page.get("link", "ship", exact=True).wait_for(state="detached")
    page.get("link", "ledger", exact=True).wait_for()
    page.tab.reload()
    page.get("link", "ledger", exact=True).wait_for()
    assert page.get("link", "ship", exact=True).count() == 0
    page.click("ledger", "link", exact=True)
    page.settled("ledger")
    page.tab.go_back()
    page.settled("Consumers")
    assert "sort=lag" in page.tab.url


def test_times_have_the_exact_one_in_their_title(open_page: OpenPage) -> None:
    page = open_page("streams/orders", timezone_id="Asia/Tokyo", locale="en-GB")
    found = page.tab.locator("tbody time").first
    found.wait_for()
    title = found.get_attribute("title") or ""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? UTC", title), title
    tokyo = page.tab.evaluate(
        "(at) => new Date(at).toLocaleTimeString('en-GB', {timeZone: 'Asia/Tokyo'})", found.get_attribute("datetime")
    )
    assert tokyo in found.inner_text()


def test_a_hidden_tab_asks_nothing(open_page: OpenPage) -> None:
    page = open_page("streams")
    asked: list[str] = []
    page.tab.evaluate(
        """() => { Object.defineProperty(document, "hidden", {get: () => window.away, configurable: true});
                   window.away = true; document.dispatchEvent(new Event("visibilitychange")); }"""
    )
    page.tab.on("request", lambda request: asked.append(request.url))
    # Timers of the page run on: three seconds of them pass without a question.
    page.tab.evaluate("new Promise((done) => setTimeout(done, 2500))")
    assert asked == []
    with page.tab.expect_request("**/v1/live/streams*"):
        page.tab.evaluate("() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }")


def test_an_outage_is_said_what_was_shown_stays_and_all_goes_on_after_it(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/ship")
    page.expected.extend(["503", "Failed to load resource", "408"])
    page.see("At seq")
    world.cut()
    try:
        page.tab.locator(".banner.bad").wait_for()
        page.see("At seq")
        assert page.tab.locator(".figures").is_visible()
    finally:
        world.heal()
    page.tab.locator(".banner.bad").wait_for(state="detached", timeout=30_000)
    page.view("streams/orders")
    page.tab.locator("tbody tr").first.wait_for()


def test_a_server_that_is_away_is_said_and_tried_again(open_page: OpenPage) -> None:
    page = open_page("streams/orders")
    page.expected.append("ERR_")
    page.tab.locator("tbody tr").first.wait_for()
    page.context.set_offline(True)
    page.tab.get_by_text("The server does not answer.").wait_for()
    assert page.tab.locator("tbody tr").first.is_visible()
    page.context.set_offline(False)
    page.tab.locator(".banner.bad").wait_for(state="detached", timeout=30_000)


def test_the_frame_is_shown_before_a_live_state_that_is_late(
    sessions: Callable[[str], BrowserContext], world: World
) -> None:
    page = Page(sessions(world.admin), world.url)
    asked: list[Route] = []
    page.tab.route("**/v1/me", lambda route: (asked.append(route), route.continue_()))
    held: list[Route] = []
    page.tab.route("**/v1/live", lambda route: held.append(route))
    page.tab.goto(f"{world.url}/console/")
    page.get("heading", "Overview").wait_for()
    page.get("link", "Streams", exact=True).first.wait_for()
    page.tab.locator("main .loading").wait_for()
    assert (len(asked), len(held)) == (1, 1)  # what is asked early isn't asked again
    page.tab.unroute("**/v1/live")
    held[0].continue_()
    page.tab.locator("main .figures").wait_for()
    page.close()
    page.check()


def test_the_first_page_is_small(browser: Browser, world: World) -> None:
    context = browser.new_context()
    page = Page(context, world.url)
    page.expected.append("401")
    page.view("", "Sign in")
    page.get("textbox", "Access token").fill(world.admin)
    page.click("Sign in")
    page.settled("Overview")
    page.see("Needs attention")
    transferred = page.tab.evaluate("performance.getEntriesByType('resource').map((one) => one.encodedBodySize)")
    assert sum(transferred) < MOST_BYTES
    page.close()
    page.check()


def test_the_first_token_of_a_server_is_shown_though_the_server_wants_one_from_then_on(
    browser: Browser, server_dsn: str, template: str
) -> None:
    with servers.clone(server_dsn, template) as dsn, serving(dsn) as url:
        page = Page(browser.new_context(), url)
        page.expected.append("401")
        page.view("tokens", "Tokens")
        page.see("until the first token exists")
        page.click("Create a token")
        dialog = page.tab.locator("dialog[open]")
        dialog.get_by_text("It is the first token.").wait_for()
        page.get("textbox", "Name").fill("ops")
        dialog.get_by_role("button", name="Create the token").click()
        page.get("heading", "Sign in to Headrace").wait_for()
        text = dialog.locator(".secret").inner_text()
        dialog.get_by_role("button", name="Close").click()
        page.get("textbox", "Access token").fill(text)
        page.click("Sign in")
        page.settled("Tokens")
        page.tab.locator("tbody tr", has_text="ops").wait_for()
        page.close()
        page.check()
