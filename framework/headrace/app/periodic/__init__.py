"""Periodic messages, as `App.every` declares them."""
