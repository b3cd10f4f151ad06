"""Typed streams: `Stream`, the types of its handlers for type checkers, and the checks of a declaration."""
