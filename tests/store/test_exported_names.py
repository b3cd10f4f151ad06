"""The names that `headrace.store` exports."""

from __future__ import annotations

from headrace import store


def test_every_exported_name_exists() -> None:
    assert [name for name in store.__all__ if not hasattr(store, name)] == []
