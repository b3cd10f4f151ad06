"""`python -m docsite` builds the documentation site, and fails at any warning, such as a broken link."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from docsite.build import build
from docsite.pages import ROOT


def main() -> None:
    """Build the site."""
    parser = argparse.ArgumentParser(prog="python -m docsite", description=__doc__)
    parser.add_argument("--target", type=Path, default=ROOT / "build" / "docs", help="the folder to build into")
    target = parser.parse_args().target.resolve()
    if not build(target):
        sys.exit("The documentation has the faults above. Pages lie in docs/, generated ones in docsite/.")
    print(f"Open {(target / 'html' / 'index.html').as_uri()}")


if __name__ == "__main__":
    main()
