"""Sizes as people write them."""

from __future__ import annotations

import pytest

from headrace.cli.errors import UsageError
from headrace.cli.options.sizes import size_in_bytes


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("1", 1), ("512B", 512), ("10GB", 10**10), ("500MiB", 500 * 2**20), ("1.5 TB", 1_500_000_000_000), ("8kib", 8192),
     ("7PiB", 7 * 2**50)],
)  # fmt: skip
def test_sizes(text: str, bytes_: int) -> None:
    assert size_in_bytes(text, "--max-storage") == bytes_


@pytest.mark.parametrize("text", ["", "0", "0.1B", "-1GB", "GB", "10 G B", "10Gb/s", "1e9", "9999PB", "1" * 5000, "1ſ"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--max-storage"):
        size_in_bytes(text, "--max-storage")
