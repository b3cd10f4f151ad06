"""The parts of the engine: batched publishing and settling, receiving, and caches."""
