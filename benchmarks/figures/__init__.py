"""The figures of the documentation: `python -m benchmarks report` measures them, and writes them into the pages.

A figure has a formula, such as `publish.rate / publish.limit` (`formulas`). It names runs, which are benchmarks with
arguments (`runs`). Each result is a file (`results`). Pages are filled in from these (`pages`, `tables`).
"""
