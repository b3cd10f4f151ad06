"""References to the URL of a database: an environment variable, or a regular file of bounded size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.model.errors import ConfigurationError
from headrace.store.database.references import resolve

pytestmark = pytest.mark.unit

URL = "postgresql://me:secret@host/db"


def test_a_file_has_the_url(tmp_path: Path) -> None:
    file = tmp_path / "eu"
    file.write_text(f"{URL}\n")
    assert resolve(f"file:{file}") == URL


def test_a_pipe_a_device_and_a_directory_are_refused_and_block_nothing(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "link").symlink_to(pipe)
    for path in (pipe, tmp_path / "link", tmp_path, Path("/dev/zero"), Path("/dev/tty")):
        with pytest.raises(ConfigurationError, match=r"not a regular file|No such device"):
            resolve(f"file:{path}")


def test_a_file_that_is_too_large_or_no_text_is_refused_without_its_content(tmp_path: Path) -> None:
    large, binary = tmp_path / "large", tmp_path / "binary"
    large.write_text(URL + " " * 10_000)
    binary.write_bytes(b"\xff\xfe")
    for path, reason in (
        (large, "not a regular file of at most 10,000 bytes"),
        (binary, "not text"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(ConfigurationError, match=reason) as caught:
            resolve(f"file:{path}")
        assert "secret" not in str(caught.value)
