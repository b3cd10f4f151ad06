"""Tables that are read from their first row on while their changes flow: `backfiller` tells how."""
