"""Every view: it shows its data, is accessible in light and dark, fits a phone, and asks nothing elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.console import browser as browsers
from tests.console.conftest import OpenPage
from tests.console.page import Page
from tests.console.world import World, deliver
from tests.versions.fetching import NotFetchedError

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

pytestmark = pytest.mark.process

VIEWS = {
    "overview": ("", "Overview"),
    "streams": ("streams", "Streams"),
    "stream": ("streams/orders", "orders"),
    "stream-consumers": ("streams/orders?tab=consumers", "orders"),
    "stream-scheduled": ("streams/emails?tab=scheduled", "emails"),
    "stream-charts": ("streams/orders?tab=charts", "orders"),
    "stream-settings": ("streams/orders?tab=settings", "orders"),
    "message": ("streams/orders/messages/11", "Message 11"),
    "consumers": ("consumers", "Consumers"),
    "consumer": ("streams/orders/consumers/ship", "ship"),
    "consumer-messages": ("streams/orders/consumers/notify?tab=messages", "notify"),
    "consumer-blocked": ("streams/orders/consumers/bill?tab=blocked", "bill"),
    "consumer-charts": ("streams/orders/consumers/ship?tab=charts", "ship"),
    "consumer-settings": ("streams/orders/consumers/ship?tab=settings", "ship"),
    "dead-letters": ("streams/orders/consumers/ship/dead-letters", "Dead letters"),
    "sources": ("sources", "Sources"),
    "source": ("sources/shop", "shop"),
    "source-postgres": ("sources/warehouse", "warehouse"),
    "source-stopped": ("sources/returns", "returns"),
    "consumer-push": ("streams/payments/consumers/receipts?tab=push", "receipts"),
    "processes": ("processes", "Processes"),
    "schedules": ("schedules", "Schedules"),
    "schedule": ("schedules/payments/digest", "digest"),
    "jobs": ("jobs", "Jobs"),
    "audit": ("audit", "Audit log"),
    "tokens": ("tokens", "Tokens"),
}


@pytest.fixture(scope="module")
def axe() -> str:
    browsers.require()
    try:
        return browsers.axe()
    except NotFetchedError as error:
        pytest.skip(f"THE CONSOLE'S ACCESSIBILITY IS NOT TESTED: {error}")


@pytest.fixture(scope="module")
def wanderer(world: World, sessions: Callable[..., BrowserContext]) -> Iterator[Page]:
    """A page that goes from view to view."""
    page = Page(sessions(world.admin), world.url)
    yield page.view("")
    page.close()


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_is_accessible_and_fits_every_window(wanderer: Page, axe: str, name: str) -> None:
    path, heading = VIEWS[name]
    page = wanderer
    page.tab.emulate_media(color_scheme="light")
    page.tab.set_viewport_size({"width": 1280, "height": 900})
    page.go(path, heading)
    assert page.overflow() <= 0
    assert page.accessible(axe) == []
    page.tab.emulate_media(color_scheme="dark")
    page.tab.set_viewport_size({"width": 390, "height": 844})
    assert page.overflow() <= 0
    assert page.accessible(axe) == []
    page.check()


def test_the_page_for_signing_in_is_accessible(open_page: OpenPage, axe: str) -> None:
    page = open_page("sign-in")
    for scheme in ("light", "dark"):
        page.tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        assert page.accessible(axe) == []


def test_dialogs_are_accessible(open_page: OpenPage, axe: str) -> None:
    page = open_page("streams/orders/consumers/ship")
    for name in ("Pause", "Seek", "Replay", "Edit settings", "Keys"):
        page.click(name, exact=True)
        page.tab.locator("dialog[open]").wait_for()
        for scheme in ("light", "dark"):
            page.tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            assert page.accessible(axe) == [], name
        page.tab.keyboard.press("Escape")
        page.tab.locator("dialog[open]").wait_for(state="detached")


def test_the_overview_says_what_needs_attention_and_leads_there(open_page: OpenPage) -> None:
    page = open_page()
    page.see("Needs attention")
    page.click("orders / bill", "link")
    page.settled("bill")
    assert page.tab.url.endswith("/console/streams/orders/consumers/bill")


def test_of_many_that_need_attention_the_worst_are_shown_until_one_asks_for_all(open_page: OpenPage) -> None:
    page = open_page("streams")

    def many(body: Any) -> None:
        (first, *_) = body["data"]["attention"]
        body["data"]["attention"] = [{**first, "name": f"c{number}"} for number in range(23)]

    page.alter("**/v1/live", many)
    page.view("")
    rows = page.tab.locator(".attention li")
    rows.nth(9).wait_for()
    assert rows.count() == 10
    page.click("Show all 23")
    rows.nth(22).wait_for()


def test_a_stream_shows_its_newest_messages_first_and_goes_on(open_page: OpenPage) -> None:
    page = open_page("streams/orders")
    rows = page.tab.locator("tbody tr")
    rows.nth(49).wait_for()
    first, second = (int(page.cells(row)[0].replace(",", "")) for row in (0, 1))
    assert first > second
    page.click("Show more")
    rows.nth(99).wait_for()
    page.get("button", "newer message").wait_for()  # the load continues
    page.click("newer message")
    page.until(f"Number(document.querySelector('tbody a')?.textContent.replace(/\\D/g, '')) > {first}")


def test_messages_that_are_listed_already_are_not_offered_as_newer_ones(open_page: OpenPage) -> None:
    """The live state may be older than the list of messages that is loaded beside it."""
    page = open_page("streams")
    answered = 0

    def older(body: Any) -> None:
        nonlocal answered
        answered += 1
        body["data"]["last_seq"] = 100 + answered

    page.alter("**/live/streams/orders", older)
    page.view("streams/orders")
    page.tab.locator("tbody tr").nth(49).wait_for()
    before = answered
    while answered < before + 3:
        page.tab.wait_for_timeout(20)
    assert page.tab.get_by_role("button", name="newer message").count() == 0


def test_messages_are_listed_from_a_seq_and_of_a_key(open_page: OpenPage) -> None:
    page = open_page("streams/orders?from=11")
    page.until("document.querySelector('tbody a')?.textContent === '11'")
    page.get("searchbox", "Exactly the key").fill("orders.fr.2")
    page.get("searchbox", "From seq or time").fill("")
    page.click("Search")
    page.until(
        "[...document.querySelectorAll('td.key-column')].length && [...document.querySelectorAll('td.key-column')].every((one) => one.textContent === 'orders.fr.2')"
    )
    assert "key=orders.fr.2" in page.tab.url


def test_a_search_by_filter_and_condition_shows_its_progress(open_page: OpenPage) -> None:
    page = open_page("streams/orders")
    page.get("searchbox", "Keys").fill("orders.us.>")
    page.get("searchbox", "Condition").fill("data.total > 400")
    page.click("Search")
    page.see("examined")
    page.until(
        "[...document.querySelectorAll('td.key-column')].length && [...document.querySelectorAll('td.key-column')].every((one) => one.textContent.startsWith('orders.us.'))"
    )
    page.tab.reload()  # the address has the search
    page.see("examined")


def test_a_search_that_finds_nothing_says_what_to_do(open_page: OpenPage) -> None:
    page = open_page("streams/orders?filter=nothing.%3E")
    page.see("No message matches")


def test_a_wrong_condition_is_explained(open_page: OpenPage) -> None:
    page = open_page("streams/orders")
    page.expected.append("422")
    page.get("searchbox", "Condition").fill("data.total >")
    page.click("Search")
    page.tab.locator(".failure").wait_for()


def test_a_message_has_its_data_and_its_journey(open_page: OpenPage) -> None:
    page = open_page("streams/orders/messages/11")
    page.settled("Message 11")
    page.see('"total": 77')
    page.see("9007199254741004")  # beyond what a number of JavaScript can be
    page.see("the warehouse 2 is closed")
    page.click("History of its key", "link")
    page.settled("orders")


def test_a_message_links_to_its_trace(open_page: OpenPage, world: World) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    seq = world.do(lambda app: app.publish("emails", "traced.1", {}, headers=headers))
    page = open_page(f"streams/emails/messages/{seq}")
    page.settled(f"Message {seq}")
    link = page.tab.get_by_role("link", name=trace)
    assert link.get_attribute("href") == f"https://traces.example/trace/{trace}"


def test_webhooks_that_were_received_and_refused_are_seen(open_page: OpenPage, world: World) -> None:
    assert deliver(world.url, {"type": "paid"}) == 200
    assert deliver(world.url, {"type": "paid"}, secret="whsec_AAAA") == 401
    page = open_page("sources/shop")
    page.settled("shop")
    page.see("accepted")
    page.see("refused")


def test_what_does_not_exist_is_said(open_page: OpenPage) -> None:
    page = open_page("streams/nothing")
    page.expected.append("404")
    page.tab.locator(".failure").wait_for()
    page.view("nowhere")
    page.see("The address leads to no view")


def test_a_push_consumer_shows_its_target_what_that_answered_and_its_breaker(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/payments/consumers/erp?tab=push")
    page.see(f"{world.target}/away")
    page.tab.locator(".facts").get_by_text("open").wait_for()
    page.see("The endpoint responded with 503.")
    page.see(re.compile(r"^(<1|\d+) ms$"))
    page.view("streams/payments/consumers/receipts?tab=push", "receipts")
    page.tab.locator("tbody").get_by_text("200").first.wait_for()
    page.tab.locator("tbody").get_by_text("503").first.wait_for()
    page.tab.locator(".facts").get_by_text("closed").wait_for()
    assert "s3cr3t" not in page.tab.content()
    page.view("", "Overview")
    page.click("payments / erp", "link")
    page.settled("erp")


@pytest.mark.long
def test_a_source_that_stopped_shows_the_statement_that_mends_it(open_page: OpenPage, world: World) -> None:
    page = open_page("sources/returns")
    page.see("The captured database has no publication returns.")
    statement = page.tab.locator(".mend pre").inner_text()
    world.do(lambda app: app.database.fetch(statement))
    for verb in ("Pause", "Resume"):  # else it is tried again after ten seconds
        page.click(verb, exact=True)
        page.act(verb)
    page.tab.locator("h1 ~ .state, .heading .state").get_by_text("running").first.wait_for()
    page.tab.locator(".mend").wait_for(state="detached")
    page.view("sources", "Sources")
    page.get("link", "returns", exact=True).wait_for()


def test_a_source_shows_its_slot_and_lag_and_is_paused_and_resumed(open_page: OpenPage, world: World) -> None:
    page = open_page("sources/warehouse")
    facts = page.tab.locator(".facts").first
    facts.get_by_text("headrace_warehouse_").wait_for()
    facts.get_by_text("public.products").wait_for()
    page.until("/WAL held\\s*[\\d.,]+ [kMG]?B/.test(document.querySelector('.facts').innerText)")
    page.click("Pause", exact=True)
    page.tab.locator("dialog[open]").get_by_text("keeps its WAL").wait_for()
    page.act("Pause")
    page.click("Resume", exact=True)
    page.act("Resume")
    page.get("button", "Pause", exact=True).wait_for()


@pytest.mark.long
def test_a_backfill_is_started_shows_its_progress_and_is_cancelled(open_page: OpenPage) -> None:
    page = open_page("sources/warehouse")
    page.see("No backfills")
    page.click("Start a backfill")
    page.get("combobox", "Tables").select_option("public.products")
    page.act("Start")
    page.until("document.querySelector('progress')?.value > 0")
    page.see("of about")
    page.tab.locator("[aria-labelledby=backfills] tbody").get_by_role("button", name="Cancel").click()
    page.tab.locator("dialog[open]").get_by_text("stay in the stream").wait_for()
    page.act("Cancel the backfill")
    page.tab.locator("[aria-labelledby=backfills]").get_by_text("cancelled").first.wait_for()


@pytest.mark.long
def test_failed_changes_are_seen_tried_again_and_dropped(open_page: OpenPage, axe: str, world: World) -> None:
    world.do(
        lambda app: app.database.fetch(
            "insert into products values (901, 'a', null), (902, 'b', null), (903, 'c', null)"
        )
    )
    page = open_page("sources/warehouse")
    failures = page.tab.locator("[aria-labelledby=failures] tbody tr")
    failures.nth(2).wait_for()
    page.see("a product without a price can't be sold")
    page.see("public.products.901")
    failures.first.get_by_role("button", name="Retry").click()
    page.act("Retry 1 failed change")
    page.until(
        "/\\t2\\t/.test(document.querySelector('[aria-labelledby=failures] tbody tr').innerText)"
    )  # it has failed again
    assert page.overflow() <= 0
    assert page.accessible(axe) == []
    failures.first.get_by_role("button", name="Drop").click()
    page.tab.locator("dialog[open]").get_by_text("1 change is deleted").wait_for()
    page.act("Drop 1 failed change")
    page.see("1 change dropped.")
    page.until("document.querySelectorAll('[aria-labelledby=failures] tbody tr').length === 2")
    page.click("Drop all")
    page.act("Drop all failed changes")
    page.tab.locator("[aria-labelledby=failures]").wait_for(state="detached")


def test_an_entry_of_the_audit_log_that_another_role_wrote_is_marked(open_page: OpenPage, world: World) -> None:
    forged = """insert into headrace_internal.audit (id, actor, via, role, action, stream, object_kind, object_name, details)
        values (headrace_internal.audit_id(clock_timestamp()), 'ops', 'console', 'app_billing', 'stream.update', 'orders', 'stream', 'orders', '{}')"""
    world.do(lambda app: app.database.fetch(forged))
    page = open_page("audit?action=stream.update")
    page.see("as role app_billing")
    page.view("audit?action=stream.create", "Audit log")
    page.tab.locator("tbody tr").first.wait_for()
    assert page.text("as role").count() == 0
