"""Takes pictures of every view for the documentation: `python -m tests.console.pictures [NAME …]`.

Each view is taken at the width of a desktop and of a phone, light and dark, into `docs/console/`, on a live server with
load. Chromium writes WebP.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace import App
from headrace.model.errors import BackfillExists
from tests.console import browser as browsers
from tests.console.page import Page
from tests.console.test_views import VIEWS
from tests.console.world import World, deliver, world
from tests.support import servers

FOLDER = Path(__file__).parents[2] / "docs" / "console"
WINDOWS = {"desktop": (1280, 760), "phone": (390, 760)}
SCHEMES = ("light", "dark")  # a change of these is drawn within the time that is waited for charts
QUALITY = 32
"""Of WebP, at which text is still sharp."""

SETTLED = 4.0
"""Seconds until there are rates of the last seconds."""

DIALOGS = {
    "seek": ("streams/orders/consumers/ship", "ship"),
    "publish": ("streams/orders", "orders"),
    "unschedule": ("streams/emails?tab=scheduled", "emails"),
    "token": ("tokens", "Tokens"),
}
"""Views in which a dialog is opened."""

UNSALEABLE = "insert into products values (901, 'umbrella', null), (902, 'anvil', null) on conflict do nothing"
"""Rows that can't become messages."""

MOST_BYTES = 2_400_000
"""The largest size of all pictures together."""


def main(names: list[str]) -> int:
    """Take the pictures. Returns the exit code."""
    reason = browsers.missing()
    if reason is not None:
        print(f"No pictures can be taken: {reason}.")
        return 1
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place, servers.server(Path(place, "postgres")) as server:
        template = servers.ensure_template(server)
        with servers.clone(server, template) as dsn, world(dsn) as made, browsers.browser() as browser:
            _furnish(made)
            time.sleep(SETTLED)
            for name in names or ("sign-in", *VIEWS, *DIALOGS):
                for window, (width, height) in WINDOWS.items():
                    page = Page(browser.new_context(viewport={"width": width, "height": height}), made.url)
                    _show(page, made, name)
                    for scheme in SCHEMES:
                        page.tab.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
                        page.tab.wait_for_timeout(200)
                        _take(page, FOLDER / f"{name}-{window}-{scheme}.webp")
                    page.close()
    total = sum(path.stat().st_size for path in FOLDER.glob("*.webp"))
    print(f"{len(list(FOLDER.glob('*.webp')))} pictures, {total:,} bytes")
    return 0 if total <= MOST_BYTES else 1


def _furnish(made: World) -> None:
    """Let there be something in every view."""
    deliver(made.url, {"type": "paid"})
    deliver(made.url, {"type": "paid"}, secret="whsec_AAAA")

    async def work(app: App) -> None:
        await app.publish_many("emails", [(f"emails.{number}", {"to": f"customer-{number}"}) for number in range(40)])

    made.do(work)
    made.do(_history)
    consumer = "/v1/streams/emails/consumers/send"
    for path, body in (
        (f"{consumer}/pause", {"until": None}),
        (f"{consumer}/resume", {}),
        ("/v1/streams/orders/consumers/ship/dead_letters/redrive", {"seqs": [22]}),
        ("/v1/jobs", {"kind": "purge", "stream": "orders", "consumer": "ship", "selection": {"reason": "rejected"}}),
    ):
        headers = {"authorization": f"Bearer {made.admin}", "content-type": "application/json"}
        request = urllib.request.Request(made.url + path, json.dumps(body).encode(), headers)
        urllib.request.urlopen(request).close()


async def _history(app: App) -> None:
    """Samples of the last day, as a server would have taken them: load that rises and falls with the hours, and a quarter of
    an hour with a slow consumer."""
    await app.database.fetch(
        """with objects (kind, id, rate) as (
               select 0, 0, 42.0
               union all select 1, s.id, case s.name when 'orders' then 25.0 when 'payments' then 12.0 else 5.0 end from headrace_internal.streams as s
               union all select 2, c.id, case s.name when 'orders' then 25.0 when 'payments' then 12.0 else 5.0 end
                         from headrace_internal.consumers as c join headrace_internal.streams as s on s.id = c.stream_id
           ), times (step, at, age) as (
               select 60, t, extract(epoch from clock_timestamp() - t) from generate_series(
                   date_trunc('minute', clock_timestamp()) - interval '1 day', date_trunc('minute', clock_timestamp()) - interval '61 minutes', '1 minute') as t
               union all
               select 10, t, extract(epoch from clock_timestamp() - t) from generate_series(
                   date_trunc('minute', clock_timestamp()) - interval '1 hour', clock_timestamp() - interval '30 seconds', '10 seconds') as t
           ), loads as (
               select o.*, t.*, o.rate * (1 + 0.45 * sin(t.age / 5200) + 0.12 * sin(t.age / 290) + 0.18 * random()) as published,
                      greatest(0, 1 - abs(t.age - 2100) / 500) as jam
               from objects as o cross join times as t
           )
           insert into headrace_internal.samples
               (kind, object_id, step, at, published, finished, lag, lag_seconds, in_flight, parked, blocked, dead_letters)
           select kind, id, step, at, round(published * step), round(published * step * (1 - 0.5 * jam)),
                  round(rate * (2 * random() + 90 * jam)), (random() * 0.4 + 60 * jam)::real, round(rate * (0.1 + 0.2 * random() + 0.6 * jam)),
                  round(8 + 4 * sin(age / 900) + 20 * jam), round(6 + 10 * jam), round(20 + greatest(0, 86400 - age) / 4000 + 8 * jam)
           from loads on conflict do nothing"""
    )


def _show(page: Page, made: World, name: str) -> None:
    if name != "sign-in":
        headers = {"x-headrace-console": "1", "origin": made.url}
        answer = page.context.request.post(f"{made.url}/v1/session", data={"token": made.admin}, headers=headers)
        assert answer.ok, answer.text()
    path, heading = {"sign-in": ("", "Sign in"), **DIALOGS, **VIEWS}[name]
    if name == "source-postgres":
        made.do(lambda app: app.database.fetch(UNSALEABLE))
        with suppress(BackfillExists):
            made.do(lambda app: app.admin.start_backfill("warehouse"))
        time.sleep(SETTLED)
    page.view(path, heading)
    if name == "overview":
        time.sleep(SETTLED)
    if name == "seek":
        page.click("Seek", exact=True)
        page.get("spinbutton", "Seq").fill("120")
        page.tab.locator("dialog[open] .preview").wait_for()
    if name == "publish":
        page.click("Publish", exact=True)
        page.get("textbox", "Key").fill("orders.us.42")
    if name == "unschedule":
        page.click("Cancel all")
    if name == "token":
        page.click("Create a token")
        page.get("textbox", "Name").fill("shipping")
        page.get("textbox", "Stream").fill("orders")
    if "chart" in name or name == "overview":
        page.tab.locator(".chart canvas").first.wait_for()


def _take(page: Page, path: Path) -> None:
    session = page.context.new_cdp_session(page.tab)
    options: dict[str, Any] = {"format": "webp", "quality": QUALITY}
    path.write_bytes(base64.b64decode(session.send("Page.captureScreenshot", options)["data"]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
