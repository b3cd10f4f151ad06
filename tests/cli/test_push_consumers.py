"""`headrace consumer add|edit|info|ls` of push consumers, on real Postgres."""

from __future__ import annotations

import asyncio
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from headrace import store
from headrace.model.push import Push
from tests.cli.conftest import BOTH_WAYS, Operator

pytestmark = BOTH_WAYS

URL = "https://shop.example/hook"
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + 32 * "B"

REFUSED = [
    (64, "consumer add orders x --push-batch 5", "--push-url"),
    (78, "consumer add orders x --push-url ftp://shop.example", "http"),
    (78, f"consumer add orders x --push-url {URL} --push-secret geheim", "whsec_"),
    (78, f"consumer add orders x --push-url {URL} --push-header host:x", "host"),
    (64, f"consumer add orders x --push-url {URL} --push-header geheim", "NAME:VALUE"),
    (64, f"consumer add orders x --push-url {URL} --push-header a:b --push-header A:c", "twice"),
    (64, "consumer edit hook --push-timeout soon", "--push-timeout"),
    (78, "consumer edit hook --push-timeout 1h", "5 minutes"),
    (64, "consumer edit hook --push-batch x", "--push-batch"),
    (78, "consumer edit hook --push-batch 0", "batch"),
    (64, "consumer edit hook --push-concurrency 8", "1-64"),
    (78, "consumer edit hook --push-concurrency 8-2", "8 to 2"),
    (64, f"consumer edit hook --push-secret {SECRET} --push-secret-file x", "not both"),
    (66, "consumer edit hook --push-secret-file /nowhere/x", "can't be read"),
    (64, "consumer edit hook --push-secret …", "Leave it out"),
    (64, "consumer edit hook --no-push --push-batch 5", "not both"),
    (65, "consumer edit pull --push-batch 5", "needs a URL"),
]


@pytest.fixture
def shop(operator: Operator) -> Operator:
    """The stream `orders` with a push consumer `hook`, with all settings given, and a pull consumer `pull`."""
    operator.call("stream", "add", "orders")
    operator.call("consumer", "add", "orders", "pull")
    operator.call(
        "consumer", "add", "orders", "hook", "--push-url", URL, "--push-header", "Authorization: Basic geheim:1",
        "--push-header", "x-team:shop", "--push-secret", SECRET, "--push-timeout", "1500ms", "--push-batch", "10",
        "--push-concurrency", "2-8",
    )  # fmt: skip
    return operator


ALL = Push(
    url=URL, headers={"Authorization": "Basic geheim:1", "x-team": "shop"}, secret=SECRET, timeout=1.5, batch=10,
    concurrency=(2, 8),
)  # fmt: skip


def _kept(operator: Operator, name: str = "hook") -> Push | None:
    """Return what the database stores, with the secret."""

    async def read() -> Push | None:
        database = store.Database(operator.dsn, max_connections=1)
        await database.open()
        try:
            number = await store.consumer_id(database, "orders", name)
            return (await store.consumer_spec(database, number))[0].push
        finally:
            await database.close()

    return asyncio.run(read())


def _changed(**settings: Any) -> Push:
    return Push(**{**{name: getattr(ALL, name) for name in ALL.__struct_fields__}, **settings})


def test_every_setting_is_kept_and_the_secret_is_never_printed(shop: Operator) -> None:
    assert _kept(shop) == ALL
    output = shop.out("consumer", "info", "hook")
    for words in (URL, "batch 10", "timeout 1.5s", "concurrency 2-8", "signed yes", "x-team"):
        assert words in output
    assert "geheim" not in output
    assert SECRET not in output + shop.out("consumer", "info", "hook", "--json") + shop.out("consumer", "ls", "--json")


def test_a_url_alone_will_do(shop: Operator) -> None:
    shop.call("consumer", "add", "orders", "plain", "--push-url", URL)
    assert _kept(shop, "plain") == Push(url=URL)
    output = shop.out("consumer", "info", "plain")
    for words in (URL, "batch none", "timeout 30s", "signed no"):
        assert words in output


def test_an_edit_changes_only_what_is_given(shop: Operator) -> None:
    shop.call("consumer", "edit", "hook", "--ack-wait", "1m")
    assert _kept(shop) == ALL
    output = shop.out("consumer", "edit", "hook", "--push-timeout", "20s")
    assert "timeout 20s" in output
    assert SECRET not in output
    assert _kept(shop) == _changed(timeout=20.0)
    shop.call("consumer", "edit", "orders", "hook", "--push-secret", OTHER, "--push-header", "a:b")
    assert _kept(shop) == _changed(timeout=20.0, secret=OTHER, headers={"a": "b"})
    shop.call("consumer", "edit", "hook", "--push-secret", "none", "--push-header", "none", "--push-batch", "none")
    assert _kept(shop) == _changed(timeout=20.0, secret=None, headers={}, batch=None)


def test_a_push_consumer_becomes_a_pull_consumer_and_the_other_way_round(shop: Operator) -> None:
    assert "Changed" in shop.out("consumer", "edit", "hook", "--no-push")
    assert _kept(shop) is None
    assert URL not in shop.out("consumer", "info", "hook")
    shop.call("consumer", "edit", "pull", "--push-url", URL)
    assert _kept(shop, "pull") == Push(url=URL)


def test_the_secret_may_come_from_a_file(shop: Operator, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{OTHER}\n")
    shop.call("consumer", "edit", "hook", "--push-secret-file", file)
    assert _kept(shop) == _changed(secret=OTHER)
    file.write_text("")
    assert "not one secret" in shop.refused(64, "consumer", "edit", "hook", "--push-secret-file", file)


def test_adding_one_again_is_fine_as_long_as_the_settings_are_the_same(shop: Operator) -> None:
    shop.call("consumer", "add", "orders", "plain", "--push-url", URL, "--push-secret", SECRET)
    words = ("consumer", "add", "orders", "plain", "--push-url", URL, "--push-secret", SECRET)
    assert "Unchanged: the consumer" in shop.out(*words)
    output = shop.refused(65, *words, "--push-batch", "5")
    assert "push" in output
    assert SECRET not in output


def test_the_list_shows_the_endpoints_of_push_consumers(shop: Operator) -> None:
    rows = {line.split()[1]: line.split()[-1] for line in shop.out("consumer", "ls").splitlines()[1:]}
    assert rows == {"hook": "push", "pull": "0"}
    shop.call("consumer", "pause", "hook")
    assert "paused until resumed" in shop.out("consumer", "ls")


def test_invalid_input_is_refused_in_one_sentence_and_nothing_is_done(shop: Operator) -> None:
    for code, words, expected in REFUSED:
        refusal = shop.refused(code, *words.split(" "))
        assert expected in refusal, words
        assert "geheim" not in refusal
        assert _kept(shop) == ALL, words
    assert len(shop.json("consumer", "ls")) == 2


def test_an_edit_as_curl_contains_only_the_changes(shop: Operator) -> None:
    for words, body in (
        (f"add orders x --push-url {URL} --push-batch 5",
         {"name": "x", "kind": "push", "push": {"url": URL, "batch_size": 5}}),
        ("edit orders hook --push-timeout 20s", {"kind": "push", "push": {"timeout_ms": 20000}}),
        ("edit orders hook --no-push", {"kind": "pull", "push": None}),
    ):  # fmt: skip
        call = shlex.split(shop.out("consumer", *words.split(), "--as-curl"))
        assert json.loads(call[call.index("-d") + 1]) == body
    assert _kept(shop) == ALL
