"""Backfills: existing rows of tables are published while changes are captured. See `backfiller`."""
