"""Positions in streams, in plain code without I/O: what an offset says, how far a stream is complete, and how much each stream or task gets."""
