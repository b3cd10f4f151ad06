"""The store exports what its modules define."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

from headrace import store

pytestmark = pytest.mark.unit

MODULES = re.findall(r"^from (\S+) import \*", Path(store.__file__).read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("module", MODULES)
def test_no_name_of_a_module_hides_another(module: str) -> None:
    for name, value in vars(import_module(module)).items():
        defined = inspect.isfunction(value) or inspect.isclass(value)
        if defined and value.__module__ == module and not name.startswith("_"):
            assert getattr(store, name) is value, f"{getattr(store, name).__module__} has a {name}, too"
