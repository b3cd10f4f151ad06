"""The parts of one consumer in one process, from the lease call to the settle call."""
