"""The options of a server: described once, for the command line, the environment, code and the documentation."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import headrace
from headrace.admin.validation import MAX_ANSWER_BYTES
from headrace.cli.errors import UsageError
from headrace.cli.main import call
from headrace.cli.options.server import ServerBehavior, ServerLimits, server_options, words_of
from headrace.cli.tree import build
from headrace.model.errors import ConfigurationError
from headrace.model.settings import amount, settings_of
from headrace.server.asgi import _SIGN_IN_BODY
from headrace.server.decoding.decoding import LARGE, LARGE_DELIVERY
from headrace.server.options import Options
from headrace.server.transport.limits import MAX_SETTLING_BODY, MAX_SIGN_INS, Limits
from tests.cli.processes import Commands

DOCS = Path(__file__).parents[2] / "docs"

INTERNAL = ("body_check_interval", "discard_time", "push_refresh_interval")

OTHERS: dict[str, Any] = {
    "push_allow": ("10.0.0.0/8", "loopback"), "allowed_hosts": ("shop.example", "127.0.0.1"), "transforms": ("shop.capture",),
    "database_references": ("env:EU_DATABASE", "file:/run/secrets/*"), "data_connections": 4, "max_data_connections": 8,
    "capture": False, "session_lifetime": 600.0, "proxy_user_header": "X-Forwarded-User", "proxy_from": ("10.0.0.0/8", "::1"),
    "proxy_token": "people", "trace_url": "https://traces.example/{trace_id}", "max_requests": 7, "max_requests_per_token": 3, "max_pipelined": 5, "max_managed": 2, "max_managed_waiting": 1,
    "managed_timeout": 0.25, "max_judging": 2, "max_body": 20_000, "max_managed_body": 10_000, "max_held": 30_000,
    "max_cached": 1, "max_head": 4096, "max_headers": 50, "max_connections": 60, "head_timeout": 2.5, "body_timeout": 1e-05,
    "min_body_rate": 9, "idle_timeout": 86400.0, "write_timeout": 3.0,
}  # fmt: skip
"""A value of every option that is not its default."""


def _parsed(*words: str) -> Options:
    """Return the options of a command line of `headrace serve`."""
    _, bound, *_ = build().parse_args(["serve", *words], exit_on_error=False, print_error=False)
    given = bound.arguments
    return server_options(
        given.get("behavior", ServerBehavior()), given.get("limits", ServerLimits()), host="127.0.0.1"
    )


@pytest.fixture(autouse=True)
def _nothing_of_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*ServerBehavior.variables(), *ServerLimits.variables()):
        monkeypatch.delenv(name, raising=False)


def test_every_option_is_a_described_setting() -> None:
    assert (*settings_of(Options), *INTERNAL) == Options.__struct_fields__
    assert OTHERS.keys() == settings_of(Options).keys()


def test_a_process_gets_the_options_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    for options in (Options(**OTHERS), Options(allowed_hosts=("127.0.0.1",))):
        assert _parsed(*words_of(options)) == options
    for name in (
        *ServerBehavior.variables(),
        *ServerLimits.variables(),
    ):  # which the command line of the parent overrode
        monkeypatch.setenv(name, "false" if name.endswith("CAPTURE") else "3s" if name.endswith("TIMEOUT") else "300")
    assert _parsed(*words_of(options)) == options


def test_every_option_is_an_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OTHERS.items():
        text = (
            ", ".join(value) if isinstance(value, tuple) else f"{value:f}" if isinstance(value, float) else str(value)
        )
        monkeypatch.setenv(f"HEADRACE_SERVE_{name.upper()}", text)
    assert _parsed() == Options(**OTHERS)
    assert _parsed("--max-requests", "8", "--capture").max_requests == 8


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("MAX_BODY", "large", "HEADRACE_SERVE_MAX_BODY 'large' is not a size"),
        ("IDLE_TIMEOUT", "soon", "HEADRACE_SERVE_IDLE_TIMEOUT 'soon' is not a duration"),
        ("MAX_REQUESTS", "-1", "HEADRACE_SERVE_MAX_REQUESTS '-1' is not a number"),
        ("CAPTURE", "perhaps", "HEADRACE_SERVE_CAPTURE='perhaps' is invalid"),
        ("TRANSFORMS", "a/b", "'a/b' is not a module"),
        ("MAX_HEADERS", "0", "`max_headers` of the server must be from 1 to 10,000, not 0"),
    ],
)
def test_an_invalid_variable_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, reason: str
) -> None:
    monkeypatch.setenv(f"HEADRACE_SERVE_{variable}", text)
    with pytest.raises((UsageError, ConfigurationError)) as raised:
        _parsed()
    assert reason in str(raised.value)


@pytest.mark.parametrize("name", [one.name for one in settings_of(Options).values() if one.limits is not None])
def test_numbers_outside_of_their_limits_are_one_sentence(name: str) -> None:
    setting = settings_of(Options)[name]
    assert setting.limits is not None
    low, high = setting.limits
    for value in (0, -1, -0.0, -math.inf, math.inf, math.nan, high * 2 + 1, "many", "5", True, [], b"5", object()):
        with pytest.raises(ConfigurationError, match=f"^`{name}` of the server must be .+ not .+\\.$") as raised:
            Options(**{name: value})
        assert raised.value.field == name
    if setting.kind is int:
        with pytest.raises(ConfigurationError):
            Options(**{name: low + 0.5})


@pytest.mark.parametrize("name", ["push_allow", "allowed_hosts", "transforms", "database_references", "proxy_from"])
@pytest.mark.parametrize("value", ["loopback", (1,), (b"x",)])
def test_a_list_is_a_sequence_of_texts(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"`{name}` of the server must be a sequence of texts"):
        Options(**{name: value})


def test_limits_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"the largest body would never be accepted\. Raise `max_held`"):
        Options(max_body=256_000_001)
    with pytest.raises(ConfigurationError, match="never be accepted"):
        Options(max_held=9_999_999)
    with pytest.raises(ConfigurationError, match="One token can't have more than all together"):
        Options(max_requests=10, max_requests_per_token=11)
    assert [Options(max_requests=count).requests_per_token for count in (1, 2, 10, 1000)] == [1, 1, 2, 250]
    assert Options(max_body=10, max_held=10, max_requests=5, max_requests_per_token=5).requests_per_token == 5
    assert Limits(Options(max_requests=8)).turns.most == 2


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        ("--max-requests 0", 78, "`max_requests` of the server must be from 1 to 1,000,000, not 0."),
        ("--max-requests many", 64, "max-requests"),
        ("--max-requests-per-token many", 64, "--max-requests-per-token 'many' is not a number"),
        ("--max-requests 5 --max-requests-per-token 6", 78, "One token can't have more"),
        ("--max-body 0", 64, "--max-body '0' is out of range"),
        ("--max-body 300MB", 78, "would never be accepted"),
        ("--max-body 2000PB", 78, "`max_body` of the server must be at least 1 byte"),
        ("--idle-timeout 0", 78, "`idle_timeout` of the server must be more than 0 seconds and at most 1 day"),
        ("--idle-timeout 2d", 78, "at most 1 day"),
        ("--write-timeout soon", 64, "--write-timeout 'soon' is not a duration"),
        ("--max-judging 1001", 78, "`max_judging` of the server must be from 1 to 1,000"),
        ("--allowed-host http://x", 78, "http://x"),
        ("--push-allow 10.0.0.1/8", 78, "10.0.0.1/8"),
        ("--transforms a/b", 78, "--transforms 'a/b' is not a module"),
    ],
)
def test_an_invalid_option_ends_the_command_with_one_sentence(
    capfd: pytest.CaptureFixture[str], words: str, code: int, reason: str
) -> None:
    assert call(["serve", "--port", "0", *words.split()]) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert reason in " ".join(err.replace("│", " ").split())


def test_the_help_has_every_option_and_fits_a_terminal(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    call(["serve", "--help"])
    shown = capfd.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    names = set(re.findall(r"--[a-z-]+", shown))
    for one in settings_of(Options).values():
        assert f"--{one.name.removesuffix('s').replace('_', '-')}" in names | {name.removesuffix("s") for name in names}


def test_the_documentation_has_the_shares_of_limits() -> None:
    page = (DOCS / "server.md").read_text(encoding="utf-8")
    limits = Options()
    for limit, *shares in (
        ("max_requests", f"{limits.requests_per_token}, see", limits.requests_of_strangers, limits.requests_per_stranger),
        ("max_held", *(f"{size // 1_000_000} MB" for size in
                       (limits.held_per_token, limits.held_for_strangers, limits.held_per_stranger))),
        ("max_managed", limits.max_managed // 2, "1 separate place, for sign-ins", f"1, and {MAX_SIGN_INS} wait"),
        ("max_connections", "", "", f"{limits.connections_per_address:,}, without loopback"),
    ):  # fmt: skip
        row = next(line for line in page.splitlines() if line.startswith(f"| `{limit}` | ") and "`--" not in line)
        for cell, share in zip(row.split(" |")[1:], shares, strict=False):
            assert cell.strip().startswith(str(share)), (limit, cell, share)
    for size, text in (
        (_SIGN_IN_BODY.size, "`/v1/session` takes 4 kB"),
        (MAX_SETTLING_BODY, "receives or settles takes 2 MB"),
        (LARGE, "of more than 256 kB"),
        (LARGE_DELIVERY, "of more than 64 kB"),
    ):
        unit = 1_000_000 if text.endswith("MB") else 1024
        assert f"{size // unit} {text[-2:]}" in text
        assert text in page.replace("\n", " ")
    page = " ".join((DOCS / "http.md").read_text(encoding="utf-8").split())
    assert f"| {Options().requests_per_token}, see [`--max-requests-per-token`]" in page
    assert f"| {amount(Options().max_managed_body, 'bytes')}, see [`--max-managed-body`]" in page
    assert f"at {amount(MAX_ANSWER_BYTES, 'bytes')} of what it lists" in page


def test_every_description_of_a_page_has_its_size() -> None:
    from headrace.server.routes.paging import PAGE_SIZE

    assert PAGE_SIZE == "4 MB"
    sources = Path(headrace.__file__).parent
    by_hand = [path for path in sources.rglob("*.py") if re.search(r"\b4 MB\b", path.read_text(encoding="utf-8"))]
    assert [path.name for path in by_hand] == ["settings.py"]  # an example in a docstring


def test_server_processes_have_the_limits(tmp_path: Path, dsn: str) -> None:
    with Commands(tmp_path) as commands:
        running = commands(
            "serve", "--port", "0", "--database", dsn, "--processes", "2", "--max-body", "2000", "--max-judging", "1",
            HEADRACE_SERVE_MAX_MANAGED_BODY="1000", HEADRACE_SERVE_MAX_BDY="9",
        )  # fmt: skip
        assert "HEADRACE_SERVE_MAX_BODY" in running.line("HEADRACE_SERVE_MAX_BDY")
        url = running.line("listening  url=").rpartition("url=")[2]
        for path, size in (("/v1/streams", 1000), ("/v1/streams/orders/messages", 2000)):
            for _ in range(4):  # each on a separate connection
                assert httpx.post(url + path, content=b" " * (size + 1), timeout=30).status_code == 413
                assert httpx.post(url + path, content=b" " * size, timeout=30).status_code != 413
