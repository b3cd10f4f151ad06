"""`headrace spark`: the commands below it."""

from __future__ import annotations

from cyclopts import App

spark = App(name="spark", help="Run pipelines and heavy transforms on Spark, and check that it is there.")
