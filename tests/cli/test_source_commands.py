"""`headrace source`, on a database and on a server in front of one."""

from __future__ import annotations

import io
import shlex
from pathlib import Path

import pytest

from tests.cli.conftest import BOTH_WAYS, Operator

REFUSED = [
    (64, "source webhook add", "NAME"),
    (64, "source webhook add hook", "--stream"),
    (66, "source webhook add hook --stream nope", "'nope'"),
    (78, "source webhook add Hook! --stream orders", "lower-case"),
    (78, "source webhook add hook --stream orders --key {nope}", "{body.path.to.field}"),
    (78, "source webhook add hook --stream orders --signature github", "needs the secret"),
    (78, "source webhook add hook --stream orders --secret x", "'standard', 'github' or 'stripe'"),
    (78, "source webhook add hook --stream orders --signature standard --secret ü", "base64"),
    (64, "source webhook add hook --stream orders --signature sha1", "standard"),
    (64, "source webhook add hook --stream orders --max-body much", "--max-body"),
    (78, "source webhook add hook --stream orders --max-body 1GB", "from 1 byte to 100 MB"),
    (78, "source webhook add hook --stream orders --keep-header a{b", "a{b"),
    (66, "source webhook add hook --stream orders --signature github --secret-file /nowhere", "/nowhere"),
    (64, "source webhook add hook --stream orders --secret x --secret-file y", "not both"),
    (64, "source webhook edit github", "nothing to change"),
    (66, "source webhook edit nope --key {name}", "'nope'"),
    (78, "source webhook edit github --key {nope}", "{body.path.to.field}"),
    (66, "source info nope", "'nope'"),
    (66, "source rm nope --yes", "'nope'"),
    (66, "source rm nope", "'nope'"),
]


@pytest.fixture
def github(operator: Operator) -> Operator:
    """The stream `orders`, and a source that delivers to it."""
    operator.call("stream", "add", "orders")
    operator.call(
        "source", "webhook", "add", "github", "--stream", "orders", "--signature", "github", "--secret", "hush",
        "--key", "github.{header.x-github-event}", "--keep-header", "X-GitHub-Event", "--max-body", "1MB",
    )  # fmt: skip
    return operator


@BOTH_WAYS
def test_a_source_with_every_setting(github: Operator) -> None:
    source = github.json("source", "info", "github")
    assert source["settings"] == {
        "key": "github.{header.x-github-event}", "signature": "github", "secrets": ["…"], "max_body": 1_000_000,
        "keep_headers": ["x-github-event"],
    }  # fmt: skip
    assert (source["name"], source["kind"], source["stream"]) == ("github", "webhook", "orders")
    assert github.json("source", "info", source["id"]) == source
    shown = github.out("source", "info", "github")
    for words in ("/api/webhook/github", "orders", "{header.x-github-event}", "1 secret", "x-github-event", "1 MB"):
        assert words in shown
    assert "hush" not in shown


@BOTH_WAYS
def test_adding_says_where_to_send_and_warns_without_signatures(operator: Operator) -> None:
    operator.call("stream", "add", "orders")
    ended = operator.call("source", "webhook", "add", "any", "--stream", "orders")
    assert "Created the source 'any'. Webhooks sent to /api/webhook/any" in ended.out
    assert "Signatures are not checked" in ended.err
    ended = operator.call(
        "source", "webhook", "add", "gh", "--stream", "orders", "--signature", "github", "--secret", "x"
    )
    assert ended.err == ""
    secret = ("--secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    operator.call("source", "webhook", "add", "std", "--stream", "orders", "--signature", "standard", *secret)
    assert "standard, with 1 secret" in operator.out("source", "info", "std")


@BOTH_WAYS
def test_adding_a_source_again_is_fine_as_long_as_the_settings_are_the_same(operator: Operator) -> None:
    operator.call("stream", "add", "orders")
    assert "Created" in operator.out("source", "webhook", "add", "any", "--stream", "orders")
    assert "Unchanged: the source" in operator.out("source", "webhook", "add", "any", "--stream", "orders")
    assert "max_body" in operator.refused(
        65, "source", "webhook", "add", "any", "--stream", "orders", "--max-body", "9"
    )


@BOTH_WAYS
def test_the_list_of_sources(operator: Operator) -> None:
    ended = operator.call("source", "ls")
    assert (ended.out, "headrace source webhook add" in ended.err) == ("", True)
    operator.call("stream", "add", "orders")
    for name in ("b", "a"):
        operator.call("source", "webhook", "add", name, "--stream", "orders")
    assert [one["name"] for one in operator.json("source", "ls")] == ["a", "b"]
    head, *lines = operator.out("source", "ls").splitlines()
    assert head.split() == ["source", "kind", "stream", "state", "summary"]
    assert lines[0].split() == ["a", "webhook", "orders", "–", "unsigned,", "key", "{name}.{sha256}"]


@BOTH_WAYS
def test_an_edit_changes_only_what_is_given(github: Operator) -> None:
    before = github.json("source", "info", "github")["settings"]
    changed = github.json("source", "webhook", "edit", "github", "--secret", "old", "--secret", "new")["settings"]
    assert changed == {**before, "secrets": ["…", "…"]}
    changed = github.json("source", "webhook", "edit", "github", "--max-body", "none", "--keep-header", "none")[
        "settings"
    ]
    assert (changed["max_body"], changed["keep_headers"], len(changed["secrets"])) == (None, [], 2)
    output = github.out("source", "webhook", "edit", "github", "--signature", "none")
    assert "not checked" in output
    assert github.json("source", "info", "github")["settings"]["secrets"] == []


def test_a_secret_may_come_from_a_file_or_standard_input(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator.call("stream", "add", "orders")
    file = tmp_path / "secret"
    file.write_text("old\n\n  new  \n")
    added = operator.json(
        "source", "webhook", "add", "gh", "--stream", "orders", "--signature", "github", "--secret-file", file
    )
    assert added["settings"]["secrets"] == ["…", "…"]
    monkeypatch.setattr("sys.stdin", io.StringIO("newer\n"))
    assert operator.json("source", "webhook", "edit", "gh", "--secret-file", "-")["settings"]["secrets"] == ["…"]
    file.write_text("\n")
    assert "no secret" in operator.refused(64, "source", "webhook", "edit", "gh", "--secret-file", file)


@BOTH_WAYS
def test_invalid_input_is_refused_in_one_sentence_and_nothing_is_done(github: Operator) -> None:
    before = github.json("source", "ls")
    for code, words, expected in REFUSED:
        assert expected in github.refused(code, *words.split(" ")), words
    assert github.json("source", "ls") == before


@BOTH_WAYS
def test_removing_needs_a_yes(github: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/null") as no_terminal:
        monkeypatch.setattr("sys.stdin", no_terminal)
        output = github.refused(64, "source", "rm", "github")
        assert "'orders'" in output
        assert "--yes" in output
        assert "Removed" in github.out("source", "rm", "github", "--yes")
    assert github.json("source", "ls") == []


@BOTH_WAYS
def test_a_stream_that_a_source_delivers_to_is_deleted_by_force_only(github: Operator) -> None:
    assert "'github'" in github.refused(75, "stream", "rm", "orders", "--yes")
    assert "Deleted" in github.out("stream", "rm", "orders", "--yes", "--force")
    assert github.json("source", "ls") == []


def test_each_command_is_one_request_to_be_copied(operator: Operator) -> None:
    curl = "curl -X POST http://localhost:7376/v1/sources -H 'Content-Type: application/json' -d "
    body = '{"kind":"webhook","name":"gh","stream":"orders","signature":"github","secrets":["x"]}'
    output = operator.out(
        "source", "webhook", "add", "gh", "--stream", "orders", "--signature", "github", "--secret", "x", "--as-curl"
    )
    assert output == f"{curl}'{body}'\n"
    for words, request in (
        ("ls", "curl http://localhost:7376/v1/sources"),
        ("info gh", "curl http://localhost:7376/v1/sources/gh"),
        ("rm gh", "curl -X DELETE http://localhost:7376/v1/sources/gh"),
        ("webhook edit gh --max-body 9", "curl -X PATCH http://localhost:7376/v1/sources/gh"),
    ):
        assert operator.out("source", *words.split(" "), "--as-curl").startswith(request)


def test_the_commands_of_the_page_on_webhooks_do_what_it_says(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "webhooks.md").read_text(encoding="utf-8")
    block = page.split("```sh\n")[1].split("```")[0].replace("\\\n", "")
    monkeypatch.chdir(tmp_path)
    for name in ("stripe", "github"):
        Path(f"{name}.secret").write_text("whsec_AAECAwQF\n")
    commands = [shlex.split(line) for line in block.splitlines()]
    assert len(commands) == 7
    for program, *words in commands:
        assert program == "headrace"
        operator.call(*words, *(["--yes"] if "rm" in words else []))
    assert [one["name"] for one in operator.json("source", "ls")] == ["stripe"]


@BOTH_WAYS
def test_a_secret_is_added_without_knowing_the_other(github: Operator, tmp_path: Path) -> None:
    edit = ("source", "webhook", "edit", "github")
    assert "2 secrets" in github.out(*edit, "--secret", "new", "--secret", "…")
    (tmp_path / "three").write_text("third\n…\n", encoding="utf-8")
    assert "3 secrets" in github.out(*edit, "--secret-file", str(tmp_path / "three"))
    assert "1 secret" in github.out(*edit, "--secret", "new")
