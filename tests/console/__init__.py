"""Tests of the console in a real browser, and its pictures for the documentation."""
