"""Typed streams: type checkers, declarations, versions of payloads, encryption, and the AsyncAPI document."""
