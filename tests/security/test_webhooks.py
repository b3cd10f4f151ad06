"""Webhooks as an attacker sends them, who has seen genuine deliveries but not the secret."""

from __future__ import annotations

import asyncio
import base64
import hmac
import time
from typing import Any

import pytest
import pytest_asyncio

from headrace import store
from headrace.server.dialects import webhook_sources
from tests.server.calling import Api
from tests.server.delivering import OK, deliver, messages, source
from tests.sources.test_signatures import signed
from tests.support.waiting import until_blocked

pytestmark = pytest.mark.asyncio

STANDARD_SECRET = "whsec_AAECAwQFBgcICQoLDA0ODw=="
FORGED: list[dict[str, str]] = [
    {"webhook-id": "other"}, {"svix-id": "other"}, {"x-github-delivery": "other"}, {"Webhook-Id": "other", "svix-id": "third"},
    {"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}, {"content-encoding": "gzip"},
    {"idempotency-key": "other"}, {"x-request-id": "other"}, {"x-github-event": "other"},
]  # fmt: skip
"""Headers that no signature covers."""


def _signed(scheme: str, body: bytes) -> dict[str, str]:
    return signed(scheme, _secret(scheme), body, time.time())


def _secret(scheme: str) -> str:
    return STANDARD_SECRET if scheme == "standard" else "x"


def _svix(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("webhook-", "svix-"): value for name, value in headers.items()}


CASES = [
    ("standard", b'{"id": "evt_1"}', False), ("standard", b'{"id": "evt_1"}', True), ("github", b'{"a": 1}', False),
    ("stripe", b'{"id": "evt_1"}', False), ("stripe", b"id=evt_1&a=2", False), ("stripe", b'\xef\xbb\xbf {"id": "evt_1"}', False),
]  # fmt: skip


async def test_no_header_beside_the_signature_makes_a_replay_a_new_message(api: Api) -> None:
    for number, (scheme, body, svix) in enumerate(CASES):
        name = f"hook-{number}"
        await api.stream(name)
        await source(api, name, name, signature=scheme, secret=_secret(scheme))
        genuine = _svix(_signed(scheme, body)) if svix else _signed(scheme, body)
        assert (await deliver(api, body, name, genuine)).json() == OK
        for forged in FORGED:
            if not genuine.keys() & {header.lower() for header in forged}:
                answer = await deliver(api, body, name, {**forged, **genuine}, "?id=other")
                assert answer.json() == OK or answer.status_code == 415, "a body that is said to be compressed"
        assert len(await messages(api, name)) == 1, CASES[number]


async def test_an_id_can_not_be_used_up_beforehand(api: Api) -> None:
    """The attacker has one genuine delivery, and knows the id of the next one."""
    old = b'{"id": "evt_0"}'
    next_ids = {"webhook-id": "id-1", "svix-id": "id-1", "x-github-delivery": "id-1"}
    for number, (scheme, body, svix) in enumerate(CASES):
        name = f"hook-{number}"
        await api.stream(name)
        await source(api, name, name, signature=scheme, secret=_secret(scheme))
        replayed = _signed(scheme, old)
        if scheme == "standard":  # an old delivery with an id of its own, signed under the other prefix
            replayed = _signed_standard("id-0", old)
            replayed = replayed if svix else _svix(replayed)
        for forged in ({**next_ids, **replayed}, next_ids):
            await deliver(api, old, name, forged)
        genuine = _svix(_signed(scheme, body)) if svix else _signed(scheme, body)
        assert (await deliver(api, body, name, {**genuine, "x-github-delivery": "id-1"})).json() == OK
        assert len(await messages(api, name)) == 2, CASES[number]


def _signed_standard(message_id: str, body: bytes) -> dict[str, str]:
    """Return the headers of a delivery with this id."""
    stamp = str(int(time.time()))
    key = base64.b64decode(STANDARD_SECRET.removeprefix("whsec_"))
    mac = hmac.digest(key, f"{message_id}.{stamp}.".encode() + body, "sha256")
    signature = f"v1,{base64.b64encode(mac).decode()}"
    return {"webhook-id": message_id, "webhook-timestamp": stamp, "webhook-signature": signature}


async def test_without_a_signature_an_id_is_used_up_by_an_equal_body_only(api: Api) -> None:
    await api.stream()
    await source(api)
    for body in (b'"forged"', b'"genuine"', b'"genuine"'):
        assert (await deliver(api, body, headers={"webhook-id": "id-1"})).json() == OK
    assert [one["data"] for one in await messages(api)] == ["forged", "genuine"]


# --- replays, and ids that are used up by publishing


async def _later(api: Api, seconds: float) -> None:
    """Make all message ids older, and forget those that are too old."""
    database = api.server.app.database
    await database.fetchval(
        "update headrace_internal.message_ids set published_at = published_at - make_interval(secs => $1)", seconds
    )
    for stream in await database.fetch("select id from headrace_internal.streams"):
        async with database.transaction() as connection:
            # While the server's own sweeper is at work, the deletion would do nothing.
            await connection.fetchval("select pg_advisory_xact_lock(1212498510, $1)", stream["id"])
            await connection.fetchrow(
                "select * from headrace_internal.delete_old_message_ids($1, '-infinity')", stream["id"]
            )


@pytest.mark.parametrize("window", [0, 10, 120, 300, 599, 3600])
async def test_no_delivery_is_accepted_again_while_its_signature_may_be(api: Api, window: int) -> None:
    """The time of a signature may be 5 minutes ahead or behind, so one can be accepted for 10 minutes."""
    await api.stream(dedupe_window=window)
    genuine = {scheme: _signed(scheme, b'{"id": "evt_1"}') for scheme in ("standard", "stripe")}
    for scheme, headers in genuine.items():
        await source(api, scheme, signature=scheme, secret=_secret(scheme))
        assert (await deliver(api, b'{"id": "evt_1"}', scheme, headers)).json() == OK
    for seconds in (1, 119, 180, 280):  # less than 600 together, with a margin for a slow machine
        await _later(api, seconds)
        for scheme, headers in genuine.items():
            assert (await deliver(api, b'{"id": "evt_1"}', scheme, headers)).json() == OK
    assert len(await messages(api)) == 2
    await _later(api, 3600)  # such signatures are refused by their time
    assert not await api.server.app.database.fetchval("select count(*) from headrace_internal.message_ids")


@pytest.mark.parametrize(("before", "after"), [(3600, 1), (120, 0), (1, 3600), (599, 1), (1, 120)])
async def test_a_change_of_the_window_lets_no_delivery_in_again(api: Api, before: int, after: int) -> None:
    await api.stream(dedupe_window=before)
    await source(api, signature="stripe", secret="x")
    headers = _signed("stripe", b'{"id": "evt_1"}')
    await deliver(api, b'{"id": "evt_1"}', headers=headers)
    await _later(api, 30)
    await api.call("PATCH", "/streams/orders", {"dedupe_window": after})
    for seconds in (0, 60, 500):
        await _later(api, seconds)
        assert (await deliver(api, b'{"id": "evt_1"}', headers=headers)).json() == OK
    assert len(await messages(api)) == 1


async def test_other_ids_are_remembered_for_the_window_alone(api: Api) -> None:
    await api.stream(dedupe_window=10)
    await source(api)
    for seconds in (5, 11):
        assert (await deliver(api, b'"ping"')).json() == OK
        await api.post("/streams/orders/messages", {"key": "a", "data": 1, "message_id": "timed-webhook:hook:1"})
        await _later(api, seconds)
    await deliver(api, b'"ping"')
    assert len(await messages(api)) == 3


async def test_a_publisher_can_not_use_up_the_id_of_a_delivery(api: Api, database_of: store.Database) -> None:
    await api.stream()
    for number, (scheme, body, _) in enumerate(CASES):
        name = f"hook-{number}"
        await source(api, name, signature=scheme, secret=_secret(scheme))
        assert (await deliver(api, body, name, _signed(scheme, body))).json() == OK
    ids = [row["message_id"] for row in await database_of.fetch("select message_id from headrace_internal.message_ids")]
    assert len(ids) == len(CASES)
    for message_id in (*ids, "headrace:", "headrace:webhook:hook:1"):
        one = {"key": "a", "data": 1, "message_id": message_id}
        answer = await api.refused("POST", "/streams/orders/messages", one, status=422)
        assert "reserved" in answer["summary"]
        answer = await api.refused(
            "POST", "/streams/orders/messages", {"messages": [{"key": "a", "data": 1}, one]}, status=422
        )
        assert list(answer["validation_errors"]) == ["messages[1].message_id"]
    for message_id in ("hook-0:id-1", "hook:1", " headrace:webhook:1", "Headrace:1", "headrace"):  # as they always were
        await api.post("/streams/orders/messages", {"key": "a", "data": 1, "message_id": message_id})
    assert len(await messages(api)) == len(CASES) + 5


# --- rotation of secrets


async def _accepted(api: Api, name: str, secrets: dict[str, str]) -> list[str]:
    """Return the names of the secrets with which a delivery is accepted."""
    found = []
    for known_as, secret in secrets.items():
        body = f'"{known_as} {time.monotonic()}"'.encode()
        answer = await deliver(api, body, name, signed("github", secret, body, time.time()))
        assert answer.status_code in (200, 401), answer.text
        if answer.status_code == 200:
            found.append(known_as)
    return found


SECRETS = {"old": "hush", "new": "quiet", "third": "silence"}
ROTATIONS: list[tuple[dict[str, Any], str]] = [
    ({"secret": "quiet"}, "new"), ({"secrets": ["quiet"]}, "new"), ({"secrets": ["quiet", "hush"]}, "old new"),
    ({"secrets": ["quiet", "…"]}, "old new"), ({"secrets": ["…", "quiet"]}, "old new"), ({"secret": "…"}, "old"),
    ({"secrets": ["…"]}, "old"), ({"secrets": ["quiet", "…", "silence"]}, "old new third"), ({"max_body": 1000}, "old"),
]  # fmt: skip


async def test_a_change_of_secrets_counts(api: Api) -> None:
    await api.stream()
    for method in ("PATCH", "PUT"):
        for number, (change, accepted) in enumerate(ROTATIONS):
            name = f"{method.lower()}-{number}"
            await source(api, name, signature="github", secret="hush")
            assert await _accepted(api, name, SECRETS) == ["old"]
            changed = await api.call(method, f"/sources/{name}", change)
            assert changed["secrets"] == ["…"] * len(accepted.split())
            assert await _accepted(api, name, SECRETS) == accepted.split()


async def test_hidden_secrets_stand_for_those_that_the_source_has(api: Api, database_of: store.Database) -> None:
    async def stored() -> Any:
        return (await store.source_with_secrets(database_of, "hook")).settings["secrets"]

    await api.stream()
    await source(api, signature="github", secrets=["a", "b"])
    for secrets, expected in (
        (["…", "…"], ["a", "b"]), (["…", "c", "…"], ["a", "c", "b"]), (["d", "…"], ["d", "a", "c", "b"]),
        (["…", "e", "…", "…", "…"], ["d", "e", "a", "c", "b"]),
    ):  # fmt: skip
        await api.call("PATCH", "/sources/hook", {"secrets": secrets})
        assert await stored() == expected
    for refused in (["…", "…"], ["…"] * 6, ["…"] * 4 + ["x"], ["x"] * 4 + ["…"]):
        await api.refused("PATCH", "/sources/hook", {"secrets": refused}, status=422)
    assert await stored() == ["d", "e", "a", "c", "b"]
    await source(api, "open")
    await api.refused("PATCH", "/sources/open", {"signature": "github", "secrets": ["…"]}, status=422)
    for given in ({"secret": "…"}, {"secrets": ["x", "…"]}):
        new = {"name": "new", "stream": "orders", "signature": "github", **given}
        assert "hidden" in (await api.refused("POST", "/sources", new, status=422))["summary"]


async def test_two_changes_at_once_lose_no_secret(api: Api, database_of: store.Database) -> None:
    await api.stream()
    await source(api, signature="github", secret="hush")
    async with database_of.transaction() as other:
        await store.lock_source(other, (await store.source(other, "hook")).id)
        changing = asyncio.create_task(api.call("PATCH", "/sources/hook", {"max_body": 1000}))
        await until_blocked(database_of, other)
        rotated = {**(await store.source_with_secrets(other, "hook")).settings, "secrets": ["quiet"]}
        await store.edit_source(other, (await store.source(other, "hook")).id, rotated)
    assert (await changing)["max_body"] == 1000
    assert (await store.source_with_secrets(database_of, "hook")).settings["secrets"] == ["quiet"]


@pytest_asyncio.fixture
async def database_of(api: Api) -> store.Database:
    return api.server.app.database


# --- unknown names, which anyone may ask for without a token


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of names that each query has looked up."""
    counts: list[int] = []
    real = store.webhook_sources

    async def counted(executor: Any, names: Any) -> Any:
        counts.append(len(names))
        return await real(executor, names)

    monkeypatch.setattr(store, "webhook_sources", counted)
    return counts


async def test_requests_for_unknown_names_cost_few_queries(
    api: Api, queries: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_sources, "MISSING_TTL", 1000.0)  # this test takes longer than a second now and then
    await api.stream()
    await source(api)
    began = time.monotonic()
    for round_ in range(3):
        answers = await asyncio.gather(*(deliver(api, b"{}", f"nope-{round_}-{number}") for number in range(200)))
        assert {answer.status_code for answer in answers} == {404}
    await asyncio.gather(*(deliver(api, b"{}", "nope-2-7") for _ in range(200)))
    assert len(queries) <= 3 + 10 * (time.monotonic() - began)
    assert sum(queries) == 600
    assert (await deliver(api, b"{}")).json() == OK


async def test_a_source_that_was_asked_for_before_it_is_created_works_at_once(api: Api) -> None:
    await api.stream()
    assert (await deliver(api, b"{}")).status_code == 404
    await source(api)
    assert (await deliver(api, b"{}")).json() == OK


async def test_one_cancelled_request_does_not_end_the_look_up_of_others(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await api.stream()
    await source(api)
    real, asked = store.webhook_sources, asyncio.Event()

    async def first_hangs(executor: Any, names: Any) -> Any:
        if not asked.is_set():
            asked.set()
            await asyncio.Event().wait()
        return await real(executor, names)

    monkeypatch.setattr(store, "webhook_sources", first_hangs)
    first = asyncio.create_task(deliver(api, b"1"))
    await asked.wait()
    second = asyncio.create_task(deliver(api, b"2"))
    await asyncio.sleep(0)
    first.cancel()
    assert (await second).json() == OK


async def test_a_change_during_a_look_up_is_not_hidden_by_it(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.stream()
    await source(api, signature="github", secret="old")
    real, asked, go_on = store.webhook_sources, asyncio.Event(), asyncio.Event()

    async def slow(executor: Any, names: Any) -> Any:
        found = await real(executor, names)
        asked.set()
        await go_on.wait()
        return found

    monkeypatch.setattr(store, "webhook_sources", slow)
    early = asyncio.create_task(deliver(api, b"1", headers=signed("github", "old", b"1", time.time())))
    await asked.wait()
    await api.call("PATCH", "/sources/hook", {"secret": "new"})
    go_on.set()
    await early
    assert (await deliver(api, b"2", headers=signed("github", "old", b"2", time.time()))).status_code == 401
    assert (await deliver(api, b"3", headers=signed("github", "new", b"3", time.time()))).json() == OK
