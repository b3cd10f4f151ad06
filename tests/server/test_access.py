"""Access checks: which calls pass, how soon a change has an effect, and how they behave without a database."""

from __future__ import annotations

import asyncio
import random
import string
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace import store
from headrace.admin import Admin
from headrace.model.errors import StoreUnavailable
from headrace.model.tokens import NEEDS, Forbidden, Need, TokenExists, Unauthorized, UnknownToken, mint
from headrace.server.access import scopes
from headrace.server.access.identification import Identification
from headrace.server.access.scopes import Access
from headrace.server.errors import problem_of
from headrace.server.options import Options

STREAMS = ("orders", "orders2", "order")


class FakeDatabase:
    """A fake path to the database that can fail or block, and that counts its calls."""

    def __init__(self, database: Any) -> None:
        self._database = database
        self.away = False
        self.breaks = 0  # the number of calls that fail while they run
        self.passed = 0
        self.open = asyncio.Event()
        self.open.set()
        self.arrived = asyncio.Event()

    async def fetch(self, *args: Any) -> Any:
        return await self._through(self._database.fetch, args)

    async def fetchval(self, *args: Any) -> Any:
        return await self._through(self._database.fetchval, args)

    async def _through(self, method: Callable[..., Any], args: Any) -> Any:
        if self.away:
            raise StoreUnavailable("The database is away.")
        self.passed += 1
        found = await method(*args)
        self.arrived.set()
        await self.open.wait()  # the result that was read is outdated by now
        if self.breaks:
            self.breaks -= 1
            raise StoreUnavailable("The connection broke.")
        return found


class Checks:
    """The access checks of a server on a real database, with clocks that the test controls."""

    def __init__(self, database: store.Database, **options: Any) -> None:
        self.admin = Admin(database)
        self.database = FakeDatabase(database)
        self.now = 1000.0
        self.date = datetime.now(UTC).timestamp()
        self.access = Access(lambda: self.database, clock=lambda: self.now, date=lambda: self.date, **options)  # type: ignore[arg-type, return-value]

    async def token(self, name: str, *scopes: str, **options: Any) -> str:
        """Create a token elsewhere and return the header with it."""
        return f"Bearer {(await self.admin.create_token(name, scopes, **options)).token}"

    async def passes(self, header: str | None, need: Need = "consume", stream: str | None = "orders") -> bool:
        try:
            await self.access.check(header, need, stream)
        except (Unauthorized, Forbidden):
            return False
        return True

    async def refusal(self, header: str | None) -> str:
        with pytest.raises(Unauthorized) as caught:
            await self.access.check(header, "consume", "orders")
        return str(caught.value)


@pytest.fixture
def checks(database: store.Database) -> Checks:
    return Checks(database)


def at_once(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run the coroutine, which must finish without waiting, and return its result or raise its error."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise AssertionError("it waited")


# --- no tokens


@pytest.mark.asyncio
async def test_everything_passes_while_no_token_was_ever_made(checks: Checks) -> None:
    assert not checks.access.open  # it isn't known yet
    for header in (None, "Basic abc", f"Bearer {mint().text}"):
        assert await checks.passes(header, "admin", None)
    assert checks.access.open
    assert checks.database.passed == 1


@pytest.mark.asyncio
async def test_the_first_token_made_anywhere_closes_it_within_two_seconds(checks: Checks) -> None:
    assert await checks.passes(None)
    await checks.token("ci", "consume")
    checks.now += 0.9
    assert checks.access.open
    checks.now += 1.1
    assert not checks.access.open
    assert not await checks.passes(None)
    checks.now += 1000
    assert not checks.access.open


@pytest.mark.asyncio
async def test_the_first_token_made_here_closes_it_at_once(checks: Checks) -> None:
    assert await checks.passes(None)
    created = await checks.admin.create_token("ci", ["consume"])
    checks.access.changed(created.id)
    assert not checks.access.open
    assert not await checks.passes(None)
    assert await checks.passes(f"Bearer {created.token}")


@pytest.mark.asyncio
async def test_revoking_the_last_token_does_not_open_it(checks: Checks) -> None:
    await checks.token("ci", "consume")
    await checks.admin.revoke_token("ci")
    assert not await checks.passes(None)


@pytest.mark.asyncio
async def test_an_expired_token_does_not_open_it(checks: Checks) -> None:
    await checks.token("ci", "consume", expires_in="1ms")
    assert not await checks.passes(None)


# --- tokens


@pytest.mark.asyncio
async def test_a_token_opens_what_its_scopes_name(checks: Checks) -> None:
    header = await checks.token("shop", "publish:orders", "consume:parcels")
    assert await checks.passes(header, "publish", "orders")
    assert await checks.passes(header, "consume", "parcels")
    with pytest.raises(Forbidden, match=r"'shop' lacks .* 'publish:parcels', or 'publish'"):
        await checks.access.check(header, "publish", "parcels")
    with pytest.raises(Forbidden, match="'admin'"):
        await checks.access.check(header, "admin", None)


@pytest.mark.asyncio
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer  "])
async def test_the_scheme_may_be_written_as_one_likes(checks: Checks, scheme: str) -> None:
    token = (await checks.token("ci", "consume")).partition(" ")[2]
    assert await checks.passes(f"{scheme} {token}")


@pytest.mark.asyncio
async def test_without_a_well_formed_token_it_says_what_header_is_wanted(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    token = header.partition(" ")[2]
    broken = [
        None, "", "Bearer", "Bearer ", token, f"Basic {token}", f"Bearer{token}", f"{header} ", f"{header}\n", f" {header}",
        f"{header}, {header}", f"Bearer\t{token}", f"Bearer {token[:40]}", f"Bearer {token}{'a' * 64}", "Bearer " + "ſ" * 56,
    ]  # fmt: skip
    for one in broken:
        assert "`Authorization: Bearer hr_…`" in await checks.refusal(one), one


@pytest.mark.asyncio
async def test_unknown_revoked_and_wrong_tokens_get_the_same_answer(checks: Checks) -> None:
    good, revoked = await checks.token("good", "consume"), await checks.token("gone", "consume")
    await checks.admin.revoke_token("gone")
    assert await checks.passes(good)
    wrong = good[:-1] + ("a" if good[-1] != "a" else "b")
    answer = {await checks.refusal(one) for one in (f"Bearer {mint().text}", revoked, wrong, good.upper())}
    assert len(answer) == 1
    assert "unknown or revoked" in answer.pop()


@pytest.mark.asyncio
async def test_the_id_of_one_token_with_the_secret_of_another_opens_nothing(checks: Checks) -> None:
    one, other = await checks.token("one", "consume"), await checks.token("other", "consume")
    mixed = "_".join([*one.split("_")[:2], other.split("_")[2]])
    assert "unknown" in await checks.refusal(mixed)


@pytest.mark.asyncio
async def test_a_token_that_expired_opens_nothing_and_says_so(checks: Checks) -> None:
    header = await checks.token("brief", "consume", expires_in="1h")
    checks.date += 3590
    assert await checks.passes(header)
    checks.date += 20
    assert "'brief' has expired" in await checks.refusal(header)
    assert "unknown" in await checks.refusal(header[:-3] + "000")  # a wrong secret does not reveal the expiry


@pytest.mark.asyncio
async def test_a_request_is_admitted_with_any_good_token_and_where_none_is_wanted(checks: Checks) -> None:
    token = await checks.token("ci", "consume:parcels")
    good, none = ({"headers": [(b"host", b"here"), *more]} for more in ([(b"authorization", token.encode())], []))
    identification = Identification(checks.access, lambda: checks.database, Options())  # type: ignore[arg-type, return-value]
    for path in ("/v1/streams", "/api/streams/orders/messages", "/v1/nowhere", "/v1/webhooks", "/v1/webhook/shop"):
        caller = await identification.caller(good, path)
        assert (caller.name, caller.via, caller.scopes) == ("ci", "token", {"consume:parcels"})
        with pytest.raises(Unauthorized):
            await identification.caller(none, path)
    for path in ("/health", "/openapi.json", "/docs", "/", "/v1/session"):
        assert (await identification.caller(none, path)).scopes == set()


@pytest.mark.asyncio
async def test_everything_is_admitted_while_no_token_was_ever_made(checks: Checks) -> None:
    assert (await checks.access.caller(None)).via == "open"


# --- how soon a change has an effect


@pytest.mark.asyncio
async def test_a_known_token_is_judged_without_waiting_for_anything(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    passed = checks.database.passed
    at_once(checks.access.check(header, "consume", "orders"))
    assert checks.database.passed == passed


@pytest.mark.asyncio
async def test_a_token_made_elsewhere_counts_at_once(checks: Checks) -> None:
    await checks.token("first", "consume")
    assert not await checks.passes(None)
    assert await checks.passes(await checks.token("second", "consume"))


@pytest.mark.asyncio
async def test_a_revocation_elsewhere_counts_within_two_seconds(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    await checks.admin.revoke_token("ci")
    checks.now += 0.9
    assert await checks.passes(header)
    checks.now += 1.1
    assert not await checks.passes(header)


@pytest.mark.asyncio
async def test_a_revocation_here_counts_at_once(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    revoked = await checks.admin.revoke_token("ci")
    checks.access.changed(revoked.id)
    assert not await checks.passes(header)


@pytest.mark.asyncio
async def test_a_revocation_here_counts_also_when_the_token_is_being_read(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    checks.now += 1.5
    checks.database.arrived.clear()
    checks.database.open.clear()
    reading = asyncio.create_task(checks.passes(header))
    await checks.database.arrived.wait()  # it has read the unchanged token
    checks.access.changed((await checks.admin.revoke_token("ci")).id)
    checks.database.open.set()
    assert not await reading
    assert not await checks.passes(header)


@pytest.mark.asyncio
async def test_one_reads_anew_while_others_go_on_with_what_is_known(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    checks.now += 1.5
    checks.database.arrived.clear()
    checks.database.open.clear()
    reading = asyncio.create_task(checks.passes(header))
    await checks.database.arrived.wait()
    at_once(checks.access.check(header, "consume", "orders"))
    checks.now += 0.5  # two seconds are too old
    late = asyncio.create_task(checks.passes(header))
    await asyncio.sleep(0)
    assert not late.done()
    checks.database.open.set()
    assert await asyncio.gather(reading, late) == [True, True]


# --- concurrent calls


@pytest.mark.asyncio
async def test_waiting_calls_share_a_statement(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert not await checks.passes(None)
    checks.database.open.clear()
    first = asyncio.create_task(checks.passes(f"Bearer {mint().text}"))
    await checks.database.arrived.wait()
    passed = checks.database.passed
    others = [
        asyncio.create_task(checks.passes(one)) for one in [header, *(f"Bearer {mint().text}" for _ in range(200))]
    ]
    await asyncio.sleep(0)
    checks.database.open.set()
    assert await asyncio.gather(first, *others) == [False, True, *[False] * 200]
    assert checks.database.passed == passed + 1


@pytest.mark.asyncio
async def test_a_client_that_goes_away_takes_nothing_from_the_calls_that_wait_with_it(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    checks.database.open.clear()
    waiting = [asyncio.create_task(checks.passes(header)) for _ in range(4)]
    await checks.database.arrived.wait()
    waiting[0].cancel()  # the call that reads
    waiting[2].cancel()
    await asyncio.sleep(0)
    checks.database.open.set()
    assert await asyncio.gather(waiting[1], waiting[3]) == [True, True]


@pytest.mark.asyncio
async def test_the_cache_is_bounded(database: store.Database) -> None:
    checks = Checks(database, max_tokens=3)
    headers = [await checks.token(f"t{n}", "consume") for n in range(5)]
    for header in headers:
        assert await checks.passes(header)
    passed = checks.database.passed
    for header in headers[2:]:
        assert await checks.passes(header)
    assert checks.database.passed == passed
    assert await checks.passes(headers[0])
    assert checks.database.passed == passed + 1


@pytest.mark.asyncio
async def test_unknown_tokens_evict_no_known_ones(database: store.Database) -> None:
    checks = Checks(database, max_tokens=1)
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    for _ in range(5):
        assert not await checks.passes(f"Bearer {mint().text}")
    at_once(checks.access.check(header, "consume", "orders"))


# --- unavailable database


@pytest.mark.asyncio
async def test_known_tokens_are_accepted_for_a_minute_while_the_database_is_away(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    checks.database.away = True
    for _ in range(11):
        checks.now += 5
        assert await checks.passes(header)
        at_once(checks.access.check(header, "consume", "orders"))  # the database was asked a moment ago
    checks.now += 5
    with pytest.raises(StoreUnavailable):
        await checks.access.check(header, "consume", "orders")
    checks.database.away = False
    checks.now += 1
    assert await checks.passes(header)


@pytest.mark.asyncio
async def test_an_unknown_token_is_not_judged_while_the_database_is_away(checks: Checks) -> None:
    header = await checks.token("ci", "consume")
    assert not await checks.passes(None)
    checks.database.away = True
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await checks.access.check(header, "consume", "orders")
    assert "`Authorization" in await checks.refusal(None)
    checks.database.away = False
    checks.now += 1
    assert await checks.passes(header)


@pytest.mark.asyncio
async def test_one_failure_is_over_with_the_next_answer(checks: Checks) -> None:
    headers = [await checks.token(f"t{n}", "consume") for n in range(3)]
    assert not await checks.passes(None)
    checks.database.arrived.clear()
    checks.database.open.clear()
    first = asyncio.create_task(checks.passes(headers[0]))
    await checks.database.arrived.wait()
    second = asyncio.create_task(checks.passes(headers[1]))  # waits for the next statement
    await asyncio.sleep(0)
    checks.database.breaks = 1
    checks.database.open.set()
    with pytest.raises(StoreUnavailable, match="broke"):
        await first
    assert await second
    assert await checks.passes(headers[2])


@pytest.mark.asyncio
async def test_no_call_passes_before_it_is_known_whether_there_are_tokens(checks: Checks) -> None:
    checks.database.away = True
    with pytest.raises(StoreUnavailable):
        await checks.access.check(None, "consume", "orders")
    assert not checks.access.open


@pytest.mark.asyncio
async def test_an_open_server_stays_open_for_a_minute_while_the_database_is_away(checks: Checks) -> None:
    assert await checks.passes(None)
    checks.database.away = True
    checks.now += 59
    assert await checks.passes(None)
    checks.now += 1
    with pytest.raises(StoreUnavailable):
        await checks.access.check(None, "consume", "orders")


@pytest.mark.asyncio
async def test_a_database_that_does_not_answer_delays_no_call_for_long(database: store.Database) -> None:
    checks = Checks(database)
    header = await checks.token("ci", "consume")
    assert await checks.passes(header)
    checks.access._cache._timeout = 0.1
    checks.now += 5
    checks.database.open.clear()
    assert await checks.passes(header)
    with pytest.raises(StoreUnavailable):
        await checks.access.check(f"Bearer {mint().text}", "consume", "orders")


# --- properties


class TokenInMemory:
    """A token in memory, for properties that need many runs."""

    def __init__(self, *scopes: str) -> None:
        self.minted = mint()
        self._row = {
            "id": self.minted.id, "name": "ci", "scopes": list(scopes), "created_at": datetime.now(UTC),
            "expires_at": datetime.now(UTC) + timedelta(days=1), "revoked_at": None, "digest": self.minted.digest,
        }  # fmt: skip
        self.access = Access(lambda: self)  # type: ignore[arg-type, return-value]

    async def fetchval(self, *_: Any) -> bool:
        return True

    async def fetch(self, _: str, ids: list[str]) -> list[dict[str, Any]]:
        return [self._row] if self.minted.id in ids else []

    def refusal_of(self, header: str, need: Need = "admin", stream: str | None = None) -> type[Exception] | None:
        try:
            asyncio.run(self.access.check(header, need, stream))
        except (Unauthorized, Forbidden) as error:
            return type(error)
        return None


ALTERED = ("replace", "insert", "delete", "swap", "case", "double")
_token = TokenInMemory("admin")
_letters = st.sampled_from(string.digits + string.ascii_letters + "_ -.") | st.characters()


@given(st.sampled_from(ALTERED), st.integers(0, 55), _letters)
@example("case", 0, "a")
@example("insert", 55, "\n")
def test_no_altered_token_is_accepted(how: str, place: int, letter: str) -> None:
    text = _token.minted.text
    place %= len(text)
    before, char, after = text[:place], text[place], text[place + 1 :]
    altered = {
        "replace": before + letter + after,
        "insert": before + char + letter + after,
        "delete": before + after,
        "swap": before + after[:1] + char + after[1:],
        "case": before + char.swapcase() + after,
        "double": before + char + char + after,
    }[how]
    expected = None if altered == text else Unauthorized
    assert _token.refusal_of(f"Bearer {altered}") is expected


@given(
    st.lists(st.tuples(st.sampled_from(NEEDS), st.none() | st.sampled_from(STREAMS)), min_size=1, max_size=3),
    st.sampled_from(NEEDS),
    st.none() | st.sampled_from(STREAMS),
)
def test_no_scope_opens_what_it_does_not_name(
    held: list[tuple[Need, str | None]], need: Need, stream: str | None
) -> None:
    token = TokenInMemory(*(action if place is None else f"{action}:{place}" for action, place in held))
    fits = any(action in (need, "admin") and place in (None, stream) for action, place in held)
    assert token.refusal_of(f"Bearer {token.minted.text}", need, stream) is (None if fits else Forbidden)


def test_random_tokens_are_not_accepted() -> None:
    chance = random.Random(5)
    letters = string.digits + string.ascii_letters
    for _ in range(200):
        secret = "".join(chance.choices(letters, k=40))
        assert _token.refusal_of(f"Bearer hr_{_token.minted.id}_{secret}") is Unauthorized


# --- descriptions for people


@pytest.mark.process
def test_the_page_has_the_table_that_routes_apply() -> None:
    answer = [line for line in (scopes.__doc__ or "").splitlines() if line.startswith("|")]
    page = (Path(__file__).parents[2] / "docs/access.md").read_text(encoding="utf-8")
    assert len(answer) > 8
    assert "\n".join(answer) in page


# --- errors over HTTP


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Unauthorized("No."), 401, "unauthorized"),
        (Forbidden("No."), 403, "forbidden"),
        (UnknownToken("No."), 404, "unknown_token"),
        (TokenExists("No."), 409, "exists"),
    ],
)
def test_each_refusal_has_its_status(error: Exception, status: int, code: str) -> None:
    problem = problem_of(error)
    assert (problem.status, problem.code, str(problem)) == (status, code, "No.")
    assert problem.headers == ({"www-authenticate": "Bearer"} if status == 401 else {})
