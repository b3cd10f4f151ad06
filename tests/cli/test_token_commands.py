"""`headrace token` on real Postgres."""

from __future__ import annotations

import re

import pytest

from tests.cli.conftest import Operator

TOKEN = re.compile(r"hr_[0-9A-Za-z]{12}_[0-9A-Za-z]{40}\n")

REFUSED = [
    (64, "token add ci", "--scope"),
    (64, "token add --scope consume", "NAME"),
    (64, "token add ci --scope consume --expires soon", "--expires"),
    (65, "token add ci --scope consume --expires 0s", "100 years"),
    (65, "token add ci --scope everything", "publish:orders"),
    (65, "token add ci --scope publish:Orders!", "name of a stream"),
    (65, "token add a/b --scope consume", "a/b"),
    (65, "token add taken --scope consume", "taken"),
    (66, "token revoke nobody", "'nobody'"),
    (64, "token revoke", "NAME"),
]


def test_a_token_alone_is_printed_so_that_a_script_can_take_it(operator: Operator) -> None:
    ended = operator.call("token", "add", "ci", "--scope", "publish:orders", "--scope", "consume")
    assert TOKEN.fullmatch(ended.out)
    assert "can't be shown again" in ended.err
    assert "consume, publish:orders" in ended.err
    assert ended.out.strip() not in ended.err


def test_it_is_listed_without_its_secret(operator: Operator) -> None:
    token = operator.out("token", "add", "ci", "--scope", "publish:orders", "--expires", "30d").strip()
    _, token_id, secret = token.split("_")
    table = operator.out("token", "ls")
    assert re.search(rf"^ci +{token_id} +publish:orders +\S+Z +\S+Z +valid$", table, re.MULTILINE), table
    assert secret not in table + operator.out("token", "ls", "--json")


def test_a_revoked_token_stays_on_the_list(operator: Operator) -> None:
    created = operator.json("token", "add", "ci", "--scope", "consume")
    assert TOKEN.fullmatch(created["token"] + "\n")
    assert operator.out("token", "revoke", "ci").startswith("Revoked the token 'ci'")
    assert "revoked" in operator.out("token", "ls").splitlines()[1]
    (listed,) = operator.json("token", "ls")
    assert listed["revoked_at"] is not None
    assert operator.json("token", "revoke", created["id"]) == listed


def test_an_expired_token_is_listed_as_expired(operator: Operator) -> None:
    operator.call("token", "add", "brief", "--scope", "consume", "--expires", "1ms")
    assert operator.out("token", "ls").rstrip().endswith("expired")


def test_no_token_yet(operator: Operator) -> None:
    ended = operator.call("token", "ls")
    assert (ended.out, "needs none" in ended.err) == ("", True)


def test_open_deletes_all_tokens_of_the_database(operator: Operator) -> None:
    operator.call("token", "add", "ci", "--scope", "consume")
    operator.call("token", "add", "lock-out", "--scope", "admin")
    operator.call("token", "revoke", "ci")
    assert "--yes" in operator.refused(64, "token", "open")
    assert len(operator.json("token", "ls")) == 2
    assert "Deleted 2 tokens" in operator.out("token", "open", "--yes")
    assert operator.json("token", "ls") == []
    assert operator.json("token", "open", "--yes") == {"deleted": 0}
    operator.call("token", "add", "ci", "--scope", "consume")  # its name is free


@pytest.mark.parametrize("operator", ["server"], indirect=True)
def test_open_never_goes_through_a_server(operator: Operator) -> None:
    assert "--database" in operator.refused(64, "token", "open", "--yes")
    operator.call("token", "add", "ci", "--scope", "admin")
    assert "Deleted 1 token" in operator.out("token", "open", "--yes", "--database", operator.dsn)


def test_invalid_input_is_refused_in_one_sentence(operator: Operator) -> None:
    operator.call("token", "add", "taken", "--scope", "consume")
    for code, command, expected in REFUSED:
        assert expected in operator.refused(code, *command.split())
        assert [one["name"] for one in operator.json("token", "ls")] == ["taken"]
