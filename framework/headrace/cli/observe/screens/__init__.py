"""The screens of `headrace observe`, their dialogs, and the actions that the keys start."""
