"""`headrace spark`: the command group. A command is imported only when it is called."""

from __future__ import annotations

from cyclopts import App

from headrace.cli.examples import example

EXIT_CODES = """\
Exit codes:
   0  done
   1  the program or the pipeline failed
  64  the command was called wrongly
  65  something given can't be: a key, a condition, data, a place
  66  there is no such stream, or no such file or function
  69  Spark, its cluster or the database is not there, or can't be reached
  73  files can't be kept where it was asked for
  78  settings that can't be
 130  Ctrl-C; 143 for SIGTERM"""

_COMMANDS = {
    "check": ("headrace_spark.cli.check:check", "Say what there is of Spark here, and try a job."),
}

spark = App(
    name="spark",
    help="Run pipelines and heavy transforms on Spark, and check that it is there.",
    help_epilogue=EXIT_CODES,
    help_format="plaintext",
)
for place, (name, (function, sentence)) in enumerate(_COMMANDS.items()):
    spark.command(function, name=name, help=sentence, help_epilogue=example(f"spark {name}"), sort_key=place)
# `run` has commands of its own, and the rest of its help is there.
spark.command("headrace_spark.cli.run:run", name="run", help="Run a program of yours, or a pipeline that is ready.")
