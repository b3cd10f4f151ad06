"""The wheel and the source distribution have all that they need, each file for a reason, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping
from email import message_from_bytes
from email.message import Message
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

import pytest

from tests.deploy.dockerfile import ROOT

for _module in ("hatchling", "hatch_fancy_pypi_readme"):
    pytest.importorskip(_module, reason=f"NOT TESTED WITHOUT {_module}, which builds the package: make test")

pytestmark = pytest.mark.process

_BUILD = "import sys, hatchling.build as build; build.build_wheel(sys.argv[1]); build.build_sdist(sys.argv[1])"

PLACES = {
    "framework/headrace": "headrace",
    "spark/headrace_spark": "headrace_spark",
    "spark/pyspark_headrace": "pyspark_headrace",
    "app_template": "headrace/cli/template",
}
"""The directories that the wheel is made of, with their places in it."""

REASONS = {
    "headrace/cli/template/*": "`headrace new` copies it",
    "headrace/server/console/static/vendor/*.LICENSE": "the license of a vendored script, which has to go with it",
    "headrace/server/console/static/vendor/README.md": "the versions of the vendored scripts",
    "headrace/server/console/static/*.js": "the console's script",
    "headrace/server/console/static/*.css": "the console's style",
    "headrace/server/console/static/*.svg": "the console's icon",
    "headrace/server/openapi/*.html": "the page of the API's description",
    "headrace/cli/observe/*.tcss": "the style of `headrace observe`",
    "headrace/store/sql/*.sql": "the schema",
    "headrace/store/sql/functions/order.txt": "the order of the schema's functions",
    "headrace/store/sql/revisions.lock": "the digests of the schema's revisions",
    "headrace/store/sql/*README.md": "the rules of the SQL, for its readers",
    "*/py.typed": "type checkers read the annotations",
    "headrace/*.py": "code",
    "headrace_spark/*.py": "code",
    "pyspark_headrace/*.py": "Spark finds its data source by this name",
}
"""The reasons of the wheel's files, by patterns. The first that fits counts."""

METADATA = {"METADATA", "WHEEL", "RECORD", "entry_points.txt"}
BESIDE = {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "PKG-INFO", ".gitignore"}
"""Files of the source distribution beside its code: to read, to build from, and those of its format."""


def build(source: Path, target: Path) -> tuple[zipfile.ZipFile, tarfile.TarFile]:
    """Build the wheel and the source distribution of a tree."""
    subprocess.run([sys.executable, "-c", _BUILD, target], cwd=source, check=True, capture_output=True)
    (wheel,), (archive,) = target.glob("*.whl"), target.glob("*.tar.gz")
    return zipfile.ZipFile(wheel), tarfile.open(archive)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[zipfile.ZipFile, tarfile.TarFile]:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def metadata(built: tuple[zipfile.ZipFile, tarfile.TarFile]) -> Message:
    wheel, _ = built
    (name,) = (one for one in wheel.namelist() if one.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def sources() -> Mapping[str, str]:
    """The files that the wheel is made of, as paths in the repository with their paths in the wheel."""
    ignored = (ROOT / ".gitignore").read_text().splitlines()
    caches = [line.rstrip("/") for line in ignored if line.endswith("/")]
    return {
        str(path.relative_to(ROOT)): str(PurePosixPath(goal, path.relative_to(ROOT / place).as_posix()))
        for place, goal in PLACES.items()
        for path in (ROOT / place).rglob("*")
        if path.is_file()
        and not any(fnmatchcase(part, cache) for part in path.relative_to(ROOT).parts for cache in caches)
    }


def licenses() -> set[str]:
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["license-files"]
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}


def in_wheel(wheel: zipfile.ZipFile) -> set[str]:
    return {name for name in wheel.namelist() if ".dist-info/" not in name}


def in_archive(archive: tarfile.TarFile) -> set[str]:
    return {name.partition("/")[2] for name in archive.getnames()}


def test_the_wheel_has_each_file_of_the_code(built: tuple[zipfile.ZipFile, tarfile.TarFile]) -> None:
    wheel, _ = built
    assert in_wheel(wheel) == set(sources().values())
    information = {name.partition(".dist-info/")[2] for name in wheel.namelist() if ".dist-info/" in name}
    assert information == METADATA | {f"licenses/{path}" for path in licenses()}


def test_each_file_of_the_wheel_has_a_reason(built: tuple[zipfile.ZipFile, tarfile.TarFile]) -> None:
    reasons = {
        name: next((pattern for pattern in REASONS if fnmatchcase(name, pattern)), None) for name in in_wheel(built[0])
    }
    assert [name for name, pattern in reasons.items() if pattern is None] == []
    assert set(reasons.values()) == REASONS.keys(), "a reason without a file"


def test_the_source_distribution_has_what_the_wheel_is_made_of(
    built: tuple[zipfile.ZipFile, tarfile.TarFile],
) -> None:
    assert in_archive(built[1]) == sources().keys() | BESIDE


def test_the_source_distribution_builds_the_same_wheel(
    built: tuple[zipfile.ZipFile, tarfile.TarFile], tmp_path: Path
) -> None:
    wheel, archive = built
    archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    again, _ = build(tree, tmp_path / "dist")
    assert {one.filename: one.CRC for one in again.infolist()} == {one.filename: one.CRC for one in wheel.infolist()}


def test_each_link_of_the_published_readme_leads_to_a_file_of_its_version(metadata: Message) -> None:
    files = f"{repository(metadata)}/blob/v{metadata['Version']}/"
    links = re.findall(r"\]\(([^)]*)\)", str(metadata.get_payload()))
    ours = [link.removeprefix(files).partition("#")[0] for link in links if link.startswith(files)]
    assert len(ours) > 30
    assert [path for path in ours if not (ROOT / path).exists()] == []
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_the_metadata_say_where_to_read_and_to_report(metadata: Message) -> None:
    urls = dict(url.split(", ") for url in metadata.get_all("Project-URL", []))
    assert urls.keys() == {"Repository", "Issues", "Documentation", "Changelog"}
    assert all(url.startswith(repository(metadata)) for url in urls.values())


def test_what_only_developers_need_is_no_extra(metadata: Message) -> None:
    """Extras are promised to users. Dependency groups are not published."""
    assert not {"test", "lint", "docs", "build"} & {*metadata.get_all("Provides-Extra", [])}


def test_the_licenses_of_vendored_scripts_are_named(metadata: Message) -> None:
    texts = {(ROOT / path).read_text() for path in licenses()}
    known = {"Apache-2.0": "Apache License", "MIT": "The MIT License"}
    assert metadata["License-Expression"] == " AND ".join(known)
    assert all(any(title in text for title in known.values()) for text in texts)
    vendored = (ROOT / "framework/headrace/server/console/static/vendor").iterdir()
    assert {path.stem for path in vendored if path.suffix == ".js"} <= {Path(path).stem for path in licenses()}


def repository(metadata: Message) -> str:
    return dict(url.split(", ") for url in metadata.get_all("Project-URL", []))["Repository"]
