"""Streams, consumers, sources, tokens and processes: their declarations and their state."""
