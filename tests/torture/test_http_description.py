"""The HTTP API agrees with its description, over a hundred thousand generated requests.

HEADRACE_REQUESTS=2000 make torture ARGS=tests/torture/test_http_description.py
"""

from __future__ import annotations

import os
import time
import traceback
from pathlib import Path

import pytest
from schemathesis import GenerationMode

from tests.server.described import ask, operations_of
from tests.support import servers
from tests.torture.http_servers import ServerProcess

REQUESTS = int(os.environ.get("HEADRACE_REQUESTS", "100000"))
"""Number of generated requests."""

SEED = int(os.environ.get("HEADRACE_SEED", "0"))
"""Seed of the first round. Later rounds have the next ones."""

ROUND = 100
"""Number of requests of one operation and mode in a round."""

pytestmark = pytest.mark.torture


def test_no_generated_request_gets_an_answer_outside_of_the_description(
    server_dsn: str, template: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, seed, began, failures = 0, SEED, time.monotonic(), list[str]()

    def say(text: str) -> None:
        with capsys.disabled():
            print(f"\n{asked:,} requests in {time.monotonic() - began:,.0f} s. {text}", flush=True)

    while asked < REQUESTS:  # each round has a new database, since a token ends the requests without one
        with servers.clone(server_dsn, template) as dsn:
            server = ServerProcess(dsn, tmp_path / f"server-{seed}.log")
            try:
                server.start()
                for operation in operations_of(server.url):
                    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                        try:
                            asked += ask(server.url, operation, mode, min(ROUND, REQUESTS), seed=seed)
                        except (Exception, BaseExceptionGroup) as error:
                            failures.append("".join(traceback.format_exception(error, limit=0)))
                            say(failures[-1])
            finally:
                assert server.stop() == 0, server.last_words()
        say(f"Round {seed} has ended.")
        seed += 1
    assert not failures, f"{len(failures)} failures"
