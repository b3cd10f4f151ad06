"""`python -m tests.histories DIR`: check the history of a run.

It ends with 1 if a promise was broken, and shows the first violation and its lines. `--unfinished` is for a run in which
messages are left to handle. `--durable` is for one in which the database may have crashed, and did not fail over.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.histories.checker import Checker
from tests.histories.consumer import PROMISES, Violation
from tests.histories.evidence import evidence
from tests.histories.reading import History, Malformed


class Report(NamedTuple):
    """What a history has shown."""

    violations: list[Violation]
    text: str


def report(directory: Path, *, complete: bool = True, durable: bool = False) -> Report:
    """Check all files of a directory, see `Checker`. Raises `Malformed`."""
    began, history = time.monotonic(), History(directory)
    checker = Checker(comparable=history.comparable, complete=complete, durable=durable)
    violations = checker.check(history.lines())
    counts = checker.counts
    lines = [
        f"{len(history.files)} histories, {history.torn} of them torn, {'one clock' if history.comparable else 'several clocks'},"
        f" read in {time.monotonic() - began:.1f} s",
        f"{counts['messages']} messages published, {counts['deliveries']} delivered in {counts['lease']} leases,"
        f" {counts['begin']} handlers, {counts['settle']} settles",
    ]
    broken = Counter(violation.promise for violation in violations)
    lines += [f"{broken[name]:>9}  {name}: {promise}" for name, promise in PROMISES.items()]
    if violations:
        lines += ["", f"The first: {violations[0].what}", *evidence(history, violations[0])]
    return Report(violations, "\n".join(lines))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.histories")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--unfinished", action="store_true", help="messages are left to handle")
    parser.add_argument("--durable", action="store_true", help="the database crashed at most, and did not fail over")
    options = parser.parse_args()
    try:
        found = report(options.directory, complete=not options.unfinished, durable=options.durable)
    except Malformed as error:
        print(error, file=sys.stderr)
        return 2
    print(found.text)
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
