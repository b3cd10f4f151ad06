"""Releases that upgrades start from: the code of each one, in an archive. `make release` adds this version's."""

from __future__ import annotations

import tarfile
from importlib.metadata import version
from pathlib import Path

from tests.upgrade.lock import ROOT

PACKAGE = ROOT / "framework" / "headrace"
RELEASES = Path(__file__).parent / "releases"


def releases() -> list[Path]:
    """The archives, in the order of their names."""
    return sorted(RELEASES.glob("*.tar.xz"))


def unpacked(archive: Path, directory: Path) -> Path:
    """Unpack a release. Returns the directory to put into `PYTHONPATH`."""
    with tarfile.open(archive) as content:
        content.extraction_filter = getattr(tarfile, "data_filter", None)  # before Python 3.11.4 there is none
        content.extractall(directory)
    return directory


def oldest(directory: Path) -> Path:
    """The code of the first release, or this code while there is none. Returns the directory to put into `PYTHONPATH`."""
    return unpacked(releases()[0], directory) if releases() else PACKAGE.parent


def main() -> None:
    """Keep the code of this version. A file has the same bytes however often it is made."""
    RELEASES.mkdir(exist_ok=True)
    with tarfile.open(RELEASES / f"{version('headrace')}.tar.xz", "w:xz", preset=9) as archive:
        for path in sorted(PACKAGE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.add(path, str(path.relative_to(PACKAGE.parent)), filter=_reproducible)


def _reproducible(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime = member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode = 0o644
    return member


if __name__ == "__main__":
    main()
