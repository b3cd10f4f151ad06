"""A million mutated byte streams on connections: no answer to a request that was not sent."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.support.connection_fuzz import fuzz

pytestmark = pytest.mark.torture

STREAMS = 1_000_000
PIECE = 5000
"""Streams of one seed. A failure names its stream, which `streams(seed, PIECE)` yields again."""


def _fuzz(seed: int) -> int:
    return asyncio.run(fuzz(seed, PIECE))


def test_no_mutation_among_a_million_smuggles_a_request() -> None:
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        answered = sum(pool.map(_fuzz, range(STREAMS // PIECE)))
    print(f"{STREAMS:,} streams, {answered:,} requests answered")
    assert answered > STREAMS / 4
