"""Every act: it says what it will do, does it, and the change is seen in the database."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from headrace import App
from headrace.model.specs import ConsumerSpec
from tests.console.conftest import OpenPage
from tests.console.world import World

pytestmark = pytest.mark.process


def _consumer(world: World, stream: str, name: str) -> Any:
    return world.do(lambda app: app.admin.consumer(stream, name))


def test_a_message_is_published_by_hand(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/emails")
    page.see("The stream has no messages")
    page.click("Publish", exact=True)
    dialog = page.tab.locator("dialog[open]")
    dialog.get_by_text("It can't be taken back.").wait_for()
    page.get("textbox", "Key").fill("emails.1")
    page.get("textbox", "Data (JSON)").fill("{no json")
    dialog.get_by_text("This is not JSON").wait_for()
    assert dialog.get_by_role("button", name="Publish one message").is_disabled()
    page.get("textbox", "Data (JSON)").fill('{"to": "ada", "id": 12345678901234567890}')
    page.act("Publish one message")
    page.see("One message with the key emails.1 was published")
    page.click("newer message")
    page.see("emails.1")
    found = world.do(
        lambda app: app.database.fetchval("select data::text from headrace_streams.emails where key = 'emails.1'")
    )
    assert json.loads(found) == {"to": "ada", "id": 12345678901234567890}
    via = world.do(
        lambda app: app.database.fetchval("select via from headrace_internal.audit where action = 'message.publish'")
    )
    assert via == "console"


def test_a_consumer_is_paused_and_resumed(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/emails/consumers/send")
    page.click("Pause", exact=True)
    page.get("combobox", "How long").select_option("3600")
    page.act("Pause")
    page.click("Resume", exact=True)
    assert _consumer(world, "emails", "send").paused_until is not None
    page.act("Resume")
    page.get("button", "Pause", exact=True).wait_for()
    assert _consumer(world, "emails", "send").paused_until is None


async def _letter(app: App) -> int | None:
    """Publish to a stream with a consumer that nobody runs."""
    await app.admin.create_stream("letters")
    await app.admin.create_consumer(ConsumerSpec(stream="letters", name="post"))
    return await app.admin.send("letters", "letters.1", "{}")


def test_a_message_is_cancelled_for_a_consumer(open_page: OpenPage, world: World) -> None:
    seq = world.do(_letter)
    page = open_page(f"streams/letters/messages/{seq}")
    page.click("Cancel", exact=True)
    page.act("Cancel the message")
    page.see(f"Message {seq} is cancelled.")
    page.see("Cancelled ")
    found = world.do(lambda app: app.admin.journey("letters", seq))
    assert [stop.state for stop in found.consumers] == ["cancelled"]


def test_the_settings_of_a_consumer_are_changed(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/emails/consumers/send?tab=settings", permissions=["clipboard-read", "clipboard-write"])
    page.click("Edit settings")
    dialog = page.tab.locator("dialog[open]")
    dialog.get_by_text("A change applies to new deliveries immediately").wait_for()
    page.get("spinbutton", "Max deliver").fill("7")
    page.get("textbox", "Filters").fill("emails.>\nletters.>")
    page.get("textbox", "Backoff").fill("1s\n10s")
    page.get("combobox", "Ordered").select_option("false")
    dialog.get_by_role("button", name="Copy as CLI").click()
    page.until("navigator.clipboard.readText().then((text) => text.startsWith('headrace '))")
    assert page.tab.evaluate("navigator.clipboard.readText()") == (
        "headrace consumer edit emails send --filter 'emails.>' --filter 'letters.>' --unordered --max-deliver 7"
        f" --backoff 1s,10s --server {world.url}"
    )
    dialog.get_by_text("Max deliver: 3 → 7").wait_for()
    page.act("Change")
    page.see("The settings of send were changed.")
    settings = _consumer(world, "emails", "send").settings
    assert (settings["max_deliver"], list(settings["filters"])) == (7, ["emails.>", "letters.>"])
    assert (settings["backoff"]["delays"], settings["ordered"]) == ([1, 10], False)


def test_an_impossible_setting_is_explained_and_changes_nothing(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/payments?tab=settings")
    page.expected.append("422")
    page.click("Edit settings")
    page.get("spinbutton", "Max storage, in bytes").fill("1")
    page.get("button", "Change", exact=True).click()
    page.tab.locator("dialog[open] .failure").wait_for()
    page.click("Cancel")
    assert world.do(lambda app: app.admin.stream("payments")).max_storage is None


def test_a_seek_says_first_what_comes_again(open_page: OpenPage, world: World) -> None:
    async def prepare(app: App) -> None:
        await app.admin.create_consumer(ConsumerSpec(stream="orders", name="seeker", deliver_policy="new"))

    world.do(prepare)
    before = _consumer(world, "orders", "seeker").position
    page = open_page("streams/orders/consumers/seeker")
    page.expected.append("404")  # until the next snapshot has it
    page.click("Seek", exact=True)
    page.get("spinbutton", "Seq").fill("1")
    preview = page.tab.locator("dialog[open] .preview")
    preview.wait_for()
    assert re.search(r"\d+ messages are redelivered", preview.inner_text())
    page.act("Move the consumer")
    page.see("seeker is now at seq 0")
    assert _consumer(world, "orders", "seeker").position < before


def test_a_replay_says_first_how_many(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/notify")
    page.click("Replay", exact=True)
    page.get("spinbutton", "From seq").fill("11")
    page.get("spinbutton", "To seq").fill("20")
    page.tab.locator("dialog[open] .preview", has_text="10 messages").wait_for()
    page.act(re.compile("Replay 10 messages"))
    page.see("10 messages will be delivered again to notify.")


def test_a_dead_letter_has_its_traceback_and_is_redriven(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/ship/dead-letters?error_type=none")
    page.see("No dead letter matches")
    page.click("Clear")
    page.tab.locator("tbody button.link").first.click()
    page.see("Traceback (most recent call last)")
    seq = int(page.cells(0)[1])
    page.tab.locator(".letter").get_by_role("button", name="Redrive").click()
    page.tab.locator("dialog[open]").get_by_text("attempts are counted from zero").wait_for()
    page.act("Redrive 1 dead letter")
    page.see("1 dead letter redriven.")
    assert seq % 11 == 0 or seq % 17 == 0


def test_selected_dead_letters_are_discarded(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/ship/dead-letters")
    boxes = page.tab.locator("tbody input[type=checkbox]")
    boxes.nth(2).wait_for()
    seqs = [int(page.cells(row)[1]) for row in (1, 2)]
    for row in (1, 2):
        boxes.nth(row).check()
    page.see("2 selected")
    page.click("Discard the selected")
    page.act("Discard 2 dead letters")
    page.see("2 dead letters discarded.")
    left = world.do(lambda app: app.admin.dead_letters("orders", "ship", limit=1000))
    assert not {one.seq for one in left} & set(seqs)


def test_dead_letters_are_grouped_and_filtered(open_page: OpenPage) -> None:
    page = open_page("streams/orders/consumers/ship/dead-letters")
    page.get("combobox", "by").select_option("reason")
    page.click("rejected")
    page.until(
        "document.querySelector('tbody') && [...document.querySelectorAll('tbody .state')].every((one) => one.textContent.includes('rejected'))"
    )
    assert "reason=rejected" in page.tab.url
    page.click("Remove the filter reason")
    page.until("!location.search.includes('reason=rejected')")


def test_all_that_match_are_worked_on_in_the_background_and_cancelled(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/ship/dead-letters?reason=exhausted")
    page.click("Redrive all that match")
    page.tab.locator("dialog[open]").get_by_text("It is done in the background.").wait_for()
    page.act(re.compile("Redrive .* dead letters"))
    page.click("Show", "link")
    page.settled("Jobs")
    page.tab.locator("tbody tr.current").wait_for()
    page.until("/cancelled|done|running/.test(document.querySelector('tbody tr.current')?.textContent)")
    cancel = page.tab.locator("tbody tr.current").get_by_role("button", name="Cancel")
    if cancel.count():  # a quick job is done before anybody can cancel it
        cancel.click()
        page.act("Cancel the job")
    page.until("/cancelled|done/.test(document.querySelector('tbody tr.current')?.textContent)")


def test_dead_letters_are_exported(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("streams/orders/consumers/bill/dead-letters")
    with page.tab.expect_download() as waiting:
        page.click("Export", "link")
    waiting.value.save_as(tmp_path / "letters")
    letters = [json.loads(line) for line in (tmp_path / "letters").read_text().splitlines()]
    assert letters
    assert all(one["seq"] % 40 == 7 for one in letters)


def test_one_dead_letter_and_the_selected_are_exported(open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page("streams/orders/consumers/bill/dead-letters")
    boxes = page.tab.locator("tbody input[type=checkbox]")
    boxes.nth(1).wait_for()
    seqs = [int(page.cells(row)[1]) for row in (0, 1)]
    for row in (0, 1):
        boxes.nth(row).check()
    exported = []
    for name, place in (
        ("Export the selected", page.tab.locator(".list-head")),
        ("Export", page.tab.locator(".letter")),
    ):
        if name == "Export":
            page.tab.locator("tbody button.link").first.click()
        with page.tab.expect_download() as waiting:
            place.get_by_role("link", name=name, exact=True).click()
        waiting.value.save_as(tmp_path / "letters")
        exported.append([json.loads(line)["seq"] for line in (tmp_path / "letters").read_text().splitlines()])
    assert exported == [sorted(seqs), seqs[:1]]


def test_a_blocked_key_shows_its_head_and_goes_on_when_that_is_discarded(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/orders/consumers/bill?tab=blocked")
    head = page.get("link", re.compile("^message")).first
    seq = int(head.inner_text().split()[1].replace(",", ""))
    assert seq % 40 == 7
    page.tab.locator("tbody tr").first.get_by_role("button", name="Discard").click()
    page.act("Discard 1 dead letter")
    page.see("1 dead letter discarded.")
    page.get("link", f"message {seq}", exact=True).wait_for(state="detached")


def test_an_act_is_copied_as_curl_and_as_a_command(open_page: OpenPage, world: World) -> None:
    page = open_page("streams/emails/consumers/send", permissions=["clipboard-read", "clipboard-write"])
    page.click("Pause", exact=True)
    dialog = page.tab.locator("dialog[open]")
    copied = {}
    for name, begin in (("Copy as curl", "curl"), ("Copy as CLI", "headrace")):
        dialog.get_by_role("button", name=name).click()
        page.until(f"navigator.clipboard.readText().then((text) => text.startsWith('{begin} '))")
        copied[name] = page.tab.evaluate("navigator.clipboard.readText()")
    dialog.get_by_role("button", name="Copied").first.wait_for()
    assert copied["Copy as curl"] == (
        f'curl -X POST {world.url}/v1/streams/emails/consumers/send/pause -H "Authorization: Bearer $HEADRACE_TOKEN"'
        """ -H 'Content-Type: application/json' -d '{"until":null}'"""
    )
    assert copied["Copy as CLI"] == f"headrace consumer pause emails send --server {world.url}"
    page.tab.keyboard.press("Escape")
    dialog.wait_for(state="detached")


def test_a_schedule_is_paused_resumed_run_and_deleted(open_page: OpenPage, world: World) -> None:
    page = open_page("schedules")
    page.click("reminders", "link")
    page.settled("reminders")

    def info() -> Any:
        return world.do(lambda app: app.admin.schedule("reminders"))

    for verb, effect, state in (
        ("Pause", "No process publishes its messages", "paused"),
        ("Resume", "Its first due time is counted from now.", "running"),
    ):
        page.click(verb, exact=True)
        page.tab.locator("dialog[open]").get_by_text(effect).wait_for()
        page.act(verb)
        page.tab.locator(".heading .state").get_by_text(state).wait_for()
        assert info().state == state
    messages = info().messages
    page.click("Run now", exact=True)
    page.tab.locator("dialog[open]").get_by_text("besides those of the due times").wait_for()
    page.act("Run now")
    page.see("reminders was asked for a message.")
    world.until(lambda app: _is(app.admin.schedule("reminders"), lambda found: found.messages == messages + 1))
    page.click("Delete", exact=True)
    page.tab.locator("dialog[open]").get_by_text("Remove it from the app as well.").wait_for()
    page.act("Delete")
    page.settled("Schedules")
    page.get("link", "reminders").wait_for(state="detached")


async def _is(found: Any, holds: Any) -> bool:
    return bool(holds(await found))


def test_scheduled_messages_are_seen_and_cancelled(open_page: OpenPage, world: World) -> None:
    async def schedule(app: App) -> None:
        for number in range(3):
            await app.publish("emails", f"unwanted.{number}", {"number": number}, delay="9d")

    async def keys(app: App) -> list[str]:
        return [one.key for one in await app.admin.scheduled_messages("emails")]

    world.do(schedule)
    page = open_page("streams/emails?tab=scheduled")
    rows = page.tab.locator("tbody tr", has_text="unwanted.")
    rows.nth(2).wait_for()
    rows.first.locator("button.link").click()
    page.see('"number": 0')
    for row in (0, 1):
        page.tab.locator("tbody tr", has_text=f"unwanted.{row}").locator("input[type=checkbox]").check()
    page.click("Cancel the selected")
    page.tab.locator("dialog[open]").get_by_text("no consumer of emails gets them").wait_for()
    page.act("Cancel 2 messages")
    page.see("2 messages cancelled.")
    assert [key for key in world.do(keys) if key.startswith("unwanted.")] == ["unwanted.2"]


def test_a_token_is_created_shown_once_and_revoked(open_page: OpenPage, world: World) -> None:
    page = open_page("tokens")
    page.click("Create a token")
    page.get("textbox", "Name").fill("shipper")
    page.get("combobox", "May").select_option("publish")
    page.get("textbox", "Stream").fill("orders")
    page.click("Add a scope")
    page.get("combobox", "May").select_option("consume")
    page.get("textbox", "Stream").fill("emails")
    page.get("combobox", "Expires").select_option("30d")
    dialog = page.tab.locator("dialog[open]")
    dialog.get_by_role("button", name="Create the token").click()
    dialog.get_by_text("It can't be shown again").wait_for()
    text = dialog.locator(".secret").inner_text()
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="detached")
    assert text not in page.tab.content()
    row = page.tab.locator("tbody tr", has_text="shipper")
    row.get_by_text("valid").wait_for()
    (info,) = [one for one in world.do(lambda app: app.admin.tokens()) if one.name == "shipper"]
    assert text.startswith(f"hr_{info.id}_")
    assert (info.scopes, info.expires_at is not None) == (("consume:emails", "publish:orders"), True)
    row.get_by_role("button", name="Revoke").click()
    page.tab.locator("dialog[open]").get_by_text("its name can't be used again").wait_for()
    page.act("Revoke the token")
    row.get_by_text("revoked").wait_for()
    assert row.get_by_role("button", name="Revoke").count() == 0
