"""Parent and child processes of `headrace run` and `headrace serve`."""
