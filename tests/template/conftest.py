"""The `commands` fixture of the command-line tests."""

from tests.cli.conftest import commands

__all__ = ["commands"]
