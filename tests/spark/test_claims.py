"""Claims: a directory belongs to one pipeline, and all processes that start it together get the same id."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from headrace_spark.lake.claims import claim
from headrace_spark.lake.files import CantKeepFiles, LocalFiles


class Claim(msgspec.Struct, frozen=True):
    id: str


class Slow(LocalFiles):
    """Lets another process claim the directory first, at the last moment."""

    def create(self, name: str, content: bytes) -> bool:
        super().create(name, msgspec.json.encode(Claim("theirs")))
        return super().create(name, content)


def test_the_second_process_gets_the_id_of_the_first(tmp_path: Path) -> None:
    assert claim(Slow(str(tmp_path)), "claim.json", Claim("ours"), "archive") == Claim("theirs")
    assert claim(LocalFiles(str(tmp_path)), "claim.json", Claim("later"), "archive") == Claim("theirs")


def test_a_directory_with_something_else_in_it_is_not_claimed(tmp_path: Path) -> None:
    (tmp_path / ".draft").touch()
    (tmp_path / "ours").touch()
    (tmp_path / "theirs").touch()
    with pytest.raises(CantKeepFiles, match=r"and is no archive\. Give an empty directory"):
        claim(LocalFiles(str(tmp_path)), "claim.json", Claim("ours"), "archive", ("ours",))
    (tmp_path / "theirs").unlink()
    assert claim(LocalFiles(str(tmp_path)), "claim.json", Claim("ours"), "archive", ("ours",)) == Claim("ours")
