"""How `headrace observe` displays rows: columns, formats, colors and details."""
