"""`headrace spark`: the command group. A command is imported only when it is called."""

from __future__ import annotations

from cyclopts import App

from headrace.cli.examples import example

EXIT_CODES = """\
Exit codes:
   0  done
   1  the program or the pipeline failed
  64  the command was called wrongly
  65  an input is invalid: a key, a condition, data, a position
  66  the stream, the file or the function does not exist
  69  Spark, its cluster or the database is missing, or can't be reached
  73  files can't be stored at the path
  78  a setting is invalid
 130  Ctrl-C; 143 for SIGTERM"""

_COMMANDS = {"check": ("headrace_spark.cli.check:check", "Check the Spark installation, and run a job.")}

spark = App(
    name="spark",
    help="Run pipelines and heavy transforms on Spark, and check the installation.",
    help_epilogue=EXIT_CODES,
    help_format="plaintext",
)
for order, (name, (function, description)) in enumerate(_COMMANDS.items()):
    spark.command(function, name=name, help=description, help_epilogue=example(f"spark {name}"), sort_key=order)
# `run` has its own commands, and the rest of its help is there.
spark.command("headrace_spark.cli.run:run", name="run", help="Run your own program, or a ready pipeline.")
