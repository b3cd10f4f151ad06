"""The kinds of objects of a configuration. `step` of each compares what is declared with what exists."""
