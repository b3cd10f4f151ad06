"""Shaping makes messages of rows: keys, records, conditions, transforms. Plain code without I/O."""
