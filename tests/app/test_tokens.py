"""Tokens: how the admin creates, lists and revokes them."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from headrace import InvalidInput, store
from headrace.admin import Admin
from headrace.model.tokens import TokenExists, UnknownToken, digest

pytestmark = pytest.mark.asyncio


@pytest.fixture
def admin(database: store.Database) -> Admin:
    return Admin(database)


async def test_a_token_is_shown_once_and_only_its_digest_is_kept(admin: Admin, database: store.Database) -> None:
    made = await admin.create_token("ci", ["publish:orders", "consume"])
    assert re.fullmatch(r"hr_[0-9A-Za-z]{12}_[0-9A-Za-z]{40}", made.token)
    row = await database.fetchrow("select t::text as everything, digest from headrace_internal.tokens t")
    secret = made.token.rpartition("_")[2]
    assert secret not in row["everything"]
    assert row["digest"] == digest(made.token)
    (listed,) = await admin.tokens()
    assert (listed.id, listed.name, listed.scopes) == (made.id, "ci", ("consume", "publish:orders"))
    assert secret not in repr(listed)


async def test_the_streams_of_its_scopes_need_not_exist(admin: Admin) -> None:
    assert (await admin.create_token("early", ["publish:not-yet"])).scopes == ("publish:not-yet",)


async def test_a_token_expires_at_its_expiry_time(admin: Admin) -> None:
    made = await admin.create_token("brief", ["consume"], expires_in="30d")
    assert made.expires_at is not None
    assert abs(made.expires_at - made.created_at - timedelta(days=30)) < timedelta(minutes=1)
    assert (await admin.create_token("ever", ["consume"])).expires_at is None


async def test_tokens_are_listed_by_name(admin: Admin) -> None:
    for name in ("b", "c", "a"):
        await admin.create_token(name, ["consume"])
    assert [one.name for one in await admin.tokens()] == ["a", "b", "c"]


@pytest.mark.parametrize("by", ["id", "name"])
async def test_a_token_is_revoked_by_its_id_or_its_name_and_stays_on_the_list(admin: Admin, by: str) -> None:
    made, other = await admin.create_token("ci", ["consume"]), await admin.create_token("other", ["consume"])
    revoked = await admin.revoke_token(getattr(made, by))
    assert (revoked.id, revoked.revoked_at is not None) == (made.id, True)
    assert await admin.revoke_token(getattr(made, by)) == revoked  # with the time of the first call
    assert {one.id: one.revoked_at for one in await admin.tokens()} == {made.id: revoked.revoked_at, other.id: None}


async def test_an_id_goes_before_a_name(admin: Admin) -> None:
    made = await admin.create_token("ci", ["consume"])
    namesake = await admin.create_token(made.id, ["consume"])
    assert (await admin.revoke_token(made.id)).id == made.id
    assert (await admin.revoke_token(namesake.id)).id == namesake.id


async def test_the_name_of_a_revoked_token_stays_taken(admin: Admin) -> None:
    await admin.create_token("ci", ["consume"])
    await admin.revoke_token("ci")
    with pytest.raises(TokenExists, match="'ci'"):
        await admin.create_token("ci", ["consume"])


async def test_revoking_an_unknown_token_is_refused(admin: Admin) -> None:
    for ref in ("nobody", "", "a" * 1000):
        with pytest.raises(UnknownToken, match="does not exist"):
            await admin.revoke_token(ref)
    with pytest.raises(InvalidInput, match="NUL"):
        await admin.revoke_token("a\0")


async def test_invalid_arguments_create_no_token(admin: Admin, database: store.Database) -> None:
    for name, scopes, lifetime in (
        ("", ["consume"], None),
        ("ci", [], None),
        ("ci", ["all"], None),
        ("ci", ["consume"], 0),
    ):
        with pytest.raises(InvalidInput):
            await admin.create_token(name, scopes, expires_in=lifetime)
    assert not await store.any_token(database)


async def test_any_token_counts_also_one_that_was_revoked(admin: Admin, database: store.Database) -> None:
    assert not await store.any_token(database)
    await admin.create_token("ci", ["consume"])
    await admin.revoke_token("ci")
    assert await store.any_token(database)
