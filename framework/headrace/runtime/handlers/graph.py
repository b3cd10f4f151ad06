"""The graph of dependencies: finds what a handler's dependency leads to, or why it can't be made.

dishka can find the same errors in the graph. Here they are reported from the side of the handler,
and parts that no handler needs may be incomplete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from dishka import AsyncContainer, DependencyKey, Scope
from dishka.dependency_source import Factory
from dishka.entities.scope import BaseScope
from dishka.registry import Registry

from headrace.model.errors import ConfigurationError
from headrace.runtime.handlers.dependencies import Need, key_parts
from headrace.runtime.handlers.signature import name_of_type

SCOPES: Mapping[str, Scope] = {"app": Scope.APP, "message": Scope.REQUEST}


class Graph:
    """The types that can be made, and their dependencies.

    Args:
        container: dishka's container of scope "app".
    """

    def __init__(self, container: AsyncContainer) -> None:
        self._registries: list[Registry] = []
        registry: Registry | None = (container.parent_container or container).registry
        while registry is not None:
            self._registries.append(registry)
            registry = registry.child_registry

    def leads_to(self, need: Need) -> Iterator[Factory]:
        """Yield all factories that the dependency needs, in the order in which they run. Raises
        `ConfigurationError` when it can't be made."""
        return self._below(need, key_of(need.hint), SCOPES[need.scope], [])

    def _below(self, need: Need, key: DependencyKey, scope: BaseScope, way: list[DependencyKey]) -> Iterator[Factory]:
        way = [*way, key]
        if key in way[:-1]:
            raise _refusal(need, way, "and so on in a circle: let one of them do without the next.")
        if key.type_hint in need.absent:
            raise _refusal(need, way, need.absent[key.type_hint])
        factory = self._factory(key, scope)
        if factory is None:
            raise self._missing(need, way)
        for needed in _needed(factory):
            yield from self._below(need, needed, factory.scope or scope, way)
        yield factory

    def _factory(self, key: DependencyKey, scope: BaseScope) -> Factory | None:
        """Return the factory of this key for a taker of this scope. It may take what lives as long or
        longer."""
        for registry in self._registries:
            if registry.scope <= scope and (factory := registry.get_factory(key)) is not None:
                return factory
        return None

    def _missing(self, need: Need, way: list[DependencyKey]) -> ConfigurationError:
        name = name_of_type(way[-1].type_hint)
        if self._factory(way[-1], SCOPES["message"]) is None:
            return _refusal(
                need, way, f"and nothing provides {name}: write a function that returns it, with @app.provide."
            )
        if len(way) == 1:
            return _refusal(need, way, f"and {name} is created for each message: take a dependency with scope='app'.")
        user = name_of_type(way[-2].type_hint)
        return _refusal(
            need,
            way,
            f"and {user} lives as long as the app, {name} as long as a message: don't give {user} scope='app'.",
        )


def _needed(factory: Factory) -> Iterator[DependencyKey]:
    """Yield the keys that a factory needs to be made. These exclude what a generic factory receives
    about its type."""
    variants = (variant.provides for variant in factory.when_dependencies)
    for key in chain(factory.dependencies, factory.kw_dependencies.values(), variants):
        if not (key.is_type_var() or key.is_const() or key.type_hint is DependencyKey):
            yield key


def _refusal(need: Need, way: list[DependencyKey], why: str) -> ConfigurationError:
    first, *others = [name_of_type(key.type_hint) for key in way]
    wrapped = "".join(f", which needs {name}" for name in others)
    return ConfigurationError(f"{need.subject} takes {first} ({need.parameter!r}){wrapped}, {why}")


def key_of(hint: Any) -> DependencyKey:
    """Return dishka's key for what a parameter takes."""
    return DependencyKey(*key_parts(hint))
