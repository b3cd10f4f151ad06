"""The documentation page of the HTTP API. A shell runs its lines unchanged against a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.support import servers
from tests.support.captures import drop_slots
from tests.torture.http_servers import ROOT, ServerProcess

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")

_PAGE = (ROOT / "docs" / "http.md").read_text(encoding="utf-8")
_COMMAND = re.compile(r"^curl .*?(?=^curl |\Z)", re.MULTILINE | re.DOTALL)


@pytest.fixture
def url(server_dsn: str, template: str, tmp_path: Path) -> Iterator[str]:
    """The URL of a server for these tests only."""
    with servers.clone(server_dsn, template) as dsn:
        servers.run(_make_a_table(dsn))
        server = ServerProcess(dsn, tmp_path / "server.log")
        try:
            server.start()
            yield server.url
        finally:
            assert server.stop() == 0, server.last_words()
            servers.run(drop_slots(dsn))


async def _make_a_table(dsn: str) -> None:
    """Create the table that the page captures."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute("create table parts (id bigint primary key, price numeric not null)")
    finally:
        await connection.close()


def test_every_line_of_the_page_works(url: str) -> None:
    variables = {"HEADRACE": url}
    commands = [
        command for block in re.findall(r"```bash\n(.*?)```", _PAGE, re.DOTALL) for command in _COMMAND.findall(block)
    ]
    assert len(commands) > 20
    for command in commands:
        answer = _run(command, variables)
        variables |= zip(("ACK_ID", "OTHER_ACK_ID"), re.findall(r'"ack_id":"([^"]+)"', answer), strict=False)
        if "/receive?" in command:
            # There are messages, because the consumer was sought to the start after some were acked and
            # nacked.
            variables["ACK_TOKEN"] = json.loads(answer)["data"][0]["ack_token"]


def _run(command: str, variables: dict[str, str]) -> str:
    shell = subprocess.run(
        ["sh", "-c", command.strip().replace("curl ", "curl -sS --fail-with-body ", 1)],
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", **variables},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert shell.returncode == 0, f"{command}\n{shell.stdout}\n{shell.stderr}"
    return shell.stdout


def test_the_page_names_pages_that_are_there() -> None:
    for name in re.findall(r"\]\(([\w.]+\.md)\)", _PAGE):
        assert (ROOT / "docs" / name).exists(), name
