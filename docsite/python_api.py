"""The Python API: a page for each public module, with the docstrings of its public names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, NamedTuple


class Module(NamedTuple):
    """A public module.

    Attributes:
        name: its name.
        about: what it has, in a few words.
        names: its public names. None for all of `__all__`.
    """

    name: str
    about: str
    names: tuple[str, ...] | None = None

    @property
    def page(self) -> str:
        """The path of its page, relative to docs/."""
        return f"reference/python/{self.name}.rst"

    @property
    def public(self) -> tuple[str, ...]:
        """Its public names."""
        return self.names if self.names is not None else tuple(sorted(import_module(self.name).__all__))

    def values(self) -> Iterator[tuple[str, Any]]:
        """Return its public names, and what they are names of."""
        return ((name, getattr(import_module(self.name), name)) for name in self.public)


MODULES = (
    Module("headrace", "apps, handlers, messages, outcomes, errors"),
    Module("headrace.admin", "the administration of a database: `app.admin`"),
    Module("headrace.client", "the administration of a server over HTTP", ("Remote", "Server", "DEFAULT_URL")),
    Module("headrace.server.asgi", "the server, to mount into your application", ("Server",)),
    Module("headrace.server.options", "limits of a server", ("Options",)),
    Module(
        "headrace.drivers.sync",
        "publish and ack on a connection of Django, psycopg or SQLAlchemy",
        ("publish", "publish_many", "ack"),
    ),
    Module("headrace.testing", "the test kit"),
    Module("headrace.embedded", "Postgres from a wheel"),
    Module("headrace.runtime.log_context", "fields for your log records", ("LogContext",)),
    Module("headrace_spark", "DataFrames, pipelines and sessions"),
)
"""All public modules, in the order of the navigation."""

_OUTSIDE = (
    "Exception, BaseException, ValueError, LookupError, Struct, Protocol, Generic, NamedTuple, tuple, str, object"
)
"""Classes whose members are not shown with those of the classes that inherit them."""


def pages() -> Mapping[str, str]:
    """Return the pages as reStructuredText, by their paths relative to docs/. Sphinx reads the docstrings."""
    return {"reference/python/index.md": _index(), **{module.page: _page(module) for module in MODULES}}


def text(module: Module) -> str:
    """Return what a module has as Markdown: the signatures and docstrings of its public names."""
    parts = [f"# {module.name}\n", f"{inspect.getdoc(import_module(module.name))}\n"]
    for name, value in module.values():
        parts += [f"## {module.name}.{name}\n", *_described(name, value)]
        if inspect.isclass(value):
            for member, method in inspect.getmembers(value, inspect.isroutine):
                if (
                    not member.startswith("_")
                    and method.__doc__
                    and getattr(method, "__module__", "").startswith("headrace")
                ):
                    parts += [f"### {name}.{member}\n", *_described(member, method)]
    return "\n".join(parts)


def _described(name: str, value: Any) -> Iterator[str]:
    if inspect.isroutine(value):
        yield f"```python\n{name}{inspect.signature(value)}\n```\n"
    if inspect.isroutine(value) or inspect.isclass(value):
        yield f"{inspect.getdoc(value)}\n"


def _index() -> str:
    listed = "\n".join(f"- [`{one.name}`]({one.name}.rst): {one.about}" for one in MODULES)
    tree = "\n".join(one.name for one in MODULES)
    about = "What is public: these names, and those that they return. All else may change with each version."
    return f"# The Python API\n\n{about}\n\n{listed}\n\n```{{toctree}}\n:hidden:\n:titlesonly:\n\n{tree}\n```\n"


def _page(module: Module) -> str:
    title = f"``{module.name}``"
    parts = [title, "=" * len(title), "", f".. automodule:: {module.name}", "   :no-members:", ""]
    for name, value in module.values():
        parts += _directive(f"{module.name}.{name}", value)
    return "\n".join(parts)


def _directive(path: str, value: Any) -> list[str]:
    if inspect.isclass(value):
        return [f".. autoclass:: {path}", "   :members:", f"   :inherited-members: {_OUTSIDE}", ""]
    kind = "autofunction" if inspect.isroutine(value) else "autodata"
    return [f".. {kind}:: {path}", ""]
