"""Random tables, writes and schema changes under capture: no write of the application is refused because of the capture,
and at each quiet point the copies made of the streams equal the tables, or the source reports why not.

    make torture ARGS="tests/torture/test_schema_fuzz.py"                                   an hour
    HEADRACE_TEST_FUZZ=600 HEADRACE_TEST_SEED=7 make torture ARGS="tests/torture/test_schema_fuzz.py -s"   ten minutes, from this seed on
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from headrace import store
from tests.support import servers
from tests.torture.schema_fuzz_run import Wrong, running

SECONDS = float(os.environ.get("HEADRACE_TEST_FUZZ", "3600"))
SEED = int(os.environ.get("HEADRACE_TEST_SEED", "0"))


@pytest.mark.long
@pytest.mark.parametrize(("seed", "given"), [(1, True), (2, False)])
@pytest.mark.asyncio
async def test_random_schema_changes_harm_no_writer_and_no_copy(
    seed: int, given: bool, server_dsn: str, database: store.Database, tmp_path: Path
) -> None:
    with servers.clone(server_dsn, None) as app, servers.clone(server_dsn, None) as twin:
        async with running(seed, database, app, twin, tmp_path / "capturer", given=given) as (run, process):
            await run.run(process, rounds=2, kills=0.2)


@pytest.mark.torture
@pytest.mark.asyncio
async def test_random_schema_changes_harm_no_writer_and_no_copy_for_long(
    server_dsn: str, template: str, tmp_path: Path
) -> None:
    """All seeds run until the time is over. The failures are reported at the end, so that one does not hide others."""
    end, failed, ran, counts = time.monotonic() + SECONDS, [], 0, Counter[str]()
    for seed in itertools.count(SEED or random.randrange(2**31)):
        if time.monotonic() > end:
            break
        ran += 1
        try:
            with (
                servers.clone(server_dsn, template) as dsn,
                servers.clone(server_dsn, None) as app,
                servers.clone(server_dsn, None) as twin,
            ):
                async with (
                    servers.opened(dsn) as database,
                    running(seed, database, app, twin, tmp_path / str(seed), given=seed % 4 == 0) as (run, process),
                ):
                    try:
                        await run.run(process, rounds=25, kills=0.15)
                    finally:
                        counts.update(run.counts)
                        print(f"seed {seed}: {dict(run.counts)}", flush=True)
        except (Wrong, AssertionError, TimeoutError) as error:
            print(f"seed {seed} FAILED: {error}", flush=True)
            failed.append(f"seed {seed}: {error}")
    print(f"{ran} seeds: {dict(counts)}", flush=True)
    assert not failed, f"{len(failed)} of {ran} seeds failed:\n\n" + "\n\n".join(failed)
