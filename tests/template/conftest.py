"""The same `commands` that the tests of the command line use."""

from tests.cli.conftest import commands

__all__ = ["commands"]
