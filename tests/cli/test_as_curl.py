"""`--as-curl` prints a command that a shell can run, with the effect of the original command."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess

import pytest

from headrace.cli.connection.curl import curl_command
from headrace.client import Server
from headrace.client.request import Request, path_of
from tests.cli.conftest import Headrace, Operator
from tests.support.serving import serving

NOWHERE = "http://localhost:7376"

PRINTED = [
    ("stream ls", f"curl {NOWHERE}/v1/streams"),
    ("stream info orders", f"curl {NOWHERE}/v1/streams/orders"),
    ("stream rm orders --force", f"curl -X DELETE '{NOWHERE}/v1/streams/orders?force=true'"),
    ("consumer ls", f"curl {NOWHERE}/v1/consumers"),
    ("consumer ls orders", f"curl {NOWHERE}/v1/streams/orders/consumers"),
    ("consumer info orders ship", f"curl {NOWHERE}/v1/streams/orders/consumers/ship"),
    ("consumer rm orders ship", f"curl -X DELETE '{NOWHERE}/v1/streams/orders/consumers/ship?force=false'"),
    ("consumer dead-letters info orders ship 5", f"curl {NOWHERE}/v1/streams/orders/consumers/ship/dead_letters/5"),
    ("stream search orders --filter a.>", f"curl '{NOWHERE}/v1/streams/orders/search?filter=a.%3E&limit=50'"),
    ("stream journey orders 7", f"curl '{NOWHERE}/v1/streams/orders/journeys/7?limit=1000'"),
    ("job ls", f"curl '{NOWHERE}/v1/jobs?limit=100'"),
    ("stream view orders --first 3 --from 2", f"curl '{NOWHERE}/v1/streams/orders/messages?limit=3&start_seq=2'"),
    ("token ls", f"curl {NOWHERE}/v1/tokens"),
]

BODIES = [
    ("stream add orders --retain-up-to 7d --dedupe-window 5m", "/streams",
     {"name": "orders", "retain_up_to": 604800, "dedupe_window": 300}),
    ("stream edit orders --retain-up-to none", "/streams/orders", {"retain_up_to": None}),
    ("stream send orders a.b 1.50", "/streams/orders/messages", {"key": "a.b", "data": 1.5}),
    ("stream republish orders parcels --filter a.> --dry-run", "/streams/orders/republish",
     {"target": "parcels", "filter": "a.>", "dry_run": True}),
    ("consumer add orders ship --filter a.> --where data.x>1 --unordered", "/streams/orders/consumers",
     {"name": "ship", "filter": "a.>", "where": "data.x > 1", "ordered": False}),
    ("consumer receive orders ship --batch-size 5 --wait 5s", "/streams/orders/consumers/ship/receive",
     {"batch_size": 5, "wait_for": 5000}),
    ("consumer seek orders ship start", "/streams/orders/consumers/ship/seek", {"to": "start"}),
    ("consumer seek orders ship end --dry-run", "/streams/orders/consumers/ship/seek", {"to": "end", "dry_run": True}),
    ("consumer dead-letters purge orders ship --reason rejected --background", "/jobs",
     {"kind": "purge", "stream": "orders", "consumer": "ship", "selection": {"reason": "rejected"}}),
    ("consumer replay orders ship --from 2 --to 3", "/streams/orders/consumers/ship/replay",
     {"start_seq": 2, "end_seq": 3}),
    ("consumer pause orders ship", "/streams/orders/consumers/ship/pause", {}),
    ("consumer resume orders ship", "/streams/orders/consumers/ship/resume", {}),
    ("consumer dead-letters purge orders ship --key a", "/streams/orders/consumers/ship/dead_letters/purge",
     {"key": "a"}),
    ("consumer dead-letters redrive orders ship --seq 1 --seq 2", "/streams/orders/consumers/ship/dead_letters/redrive",
     {"seqs": [1, 2]}),
    ("token add ci --scope publish:orders --expires 1h", "/tokens",
     {"name": "ci", "scopes": ["publish:orders"], "expires_in_ms": 3600000}),
]  # fmt: skip


def _printed(headrace: Headrace, *words: str) -> str:
    ended = headrace(*words, "--as-curl")
    assert (ended.code, ended.err) == (0, ""), ended
    assert ended.out.count("\n") == 1
    return ended.out.rstrip("\n")


@pytest.mark.parametrize(("words", "call"), PRINTED)
def test_a_request_without_a_body(headrace: Headrace, words: str, call: str) -> None:
    assert _printed(headrace, *words.split()) == call


@pytest.mark.parametrize(("words", "path", "body"), BODIES)
def test_a_request_with_a_body(headrace: Headrace, words: str, path: str, body: object) -> None:
    call = shlex.split(_printed(headrace, *words.split()))
    method = "PATCH" if " edit " in words else "POST"
    assert call[:4] == ["curl", "-X", method, f"{NOWHERE}/v1{path}"]
    assert call[4:7] == ["-H", "Content-Type: application/json", "-d"]
    assert json.loads(call[7]) == body


def test_the_server_is_the_one_that_would_be_asked_and_the_token_stays_in_the_environment(
    headrace: Headrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = '-H "Authorization: Bearer $HEADRACE_TOKEN"'
    server = ["stream", "ls", "--server", "https://x.example/hr/"]
    assert _printed(headrace, *server) == "curl https://x.example/hr/v1/streams"
    assert _printed(headrace, *server, "--token", "geheim") == f"curl https://x.example/hr/v1/streams {header}"
    headrace(
        "context", "add", "prod", "--server", "https://prod.example", "--token", "geheim", "--ca-file", "/my ca.pem"
    )
    headrace("context", "use", "prod")
    assert _printed(headrace, "stream", "ls") == (
        f"curl https://prod.example/v1/streams --cacert '/my ca.pem' {header}"
    )
    monkeypatch.setenv("HEADRACE_SERVER", "http://env.example")
    monkeypatch.setenv("HEADRACE_DATABASE", "postgresql://not/asked")
    assert _printed(headrace, "stream", "ls") == "curl http://env.example/v1/streams"


def test_a_database_in_use_is_no_server(headrace: Headrace) -> None:
    headrace("context", "add", "here", "--database", "postgresql://x")
    headrace("context", "use", "here")
    assert _printed(headrace, "stream", "ls") == f"curl {NOWHERE}/v1/streams"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("consumer info ship", "`orders ship`"),
        ("consumer pause ship", "`orders ship`"),
        ("consumer receive orders ship --ack", "--ack"),
        ("publish orders", "stream send"),
        ("stream rm orders --database postgresql://x", "--database"),
    ],
)
def test_a_command_of_several_requests_is_refused(headrace: Headrace, words: str, expected: str) -> None:
    ended = headrace(*words.split(), "--as-curl")
    assert (ended.code, ended.out) == (64, ""), ended
    assert expected in ended.err


AWKWARD = 'it\'s "a" $HOME `x` \\ \u00e9 \u6f22 {1..3} [a-b] !'


@pytest.mark.process
@pytest.mark.skipif(shutil.which("sh") is None, reason="a shell of Unix")
def test_a_shell_passes_everything_on_as_it_is() -> None:
    path = path_of("/v1/streams/{name}", {"name": AWKWARD})
    request = Request(method="POST", path=path, body={"name": AWKWARD})
    call = curl_command(Server("http://x/p p".replace(" ", "%20")), request)
    output = subprocess.run(
        ["sh", "-c", f"for word in {call.partition(' ')[2]}; do printf '%s\\0' \"$word\"; done"],
        capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    assert json.loads(output[-2]) == {"name": AWKWARD}
    assert output[:2] == ["-X", "POST"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_does_what_the_command_would_have_done(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def curl(*words: str) -> object:
        call = operator.out(*words, "--as-curl", "--server", url)
        done = subprocess.run(
            ["sh", "-c", f"{call.strip()} --silent --show-error"], capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    with serving(operator.dsn) as url:
        curl("stream", "add", "orders", "--retain-up-to", "7d")
        curl("consumer", "add", "orders", "ship", "--where", "data.name = 'it''s'")
        assert curl("stream", "send", "orders", "a.1", '{"name": "it\'s"}') == {"data": {"published": 1}}
        received = curl("consumer", "receive", "orders", "ship", "--wait", "5s")
        assert received["data"][0]["message"]["data"] == {"name": "it's"}  # type: ignore[index]
        assert len(operator.json("stream", "view", "orders")) == 1
        assert len(curl("stream", "view", "orders", "--filter", "a.*", "--where", "data.name = 'it''s'")["data"]) == 1  # type: ignore[index]
        curl("stream", "rm", "orders", "--force")
        assert operator.json("stream", "ls") == []
