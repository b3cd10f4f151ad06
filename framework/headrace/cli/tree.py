"""The tree of commands, which knows each command only by the name of its module.

This module must not import any command, the database driver, the event loop or the printer of tables. A
command is imported when it is called.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from cyclopts import App, Group

from headrace.cli.examples import EXAMPLES, example

_HELP = "A durable message stream on Postgres, with a Python framework for its consumers."

_COMMANDS = {
    "Applications": {
        "new": ("headrace.cli.commands.new:new", "Create a new service from the template."),
        "run": ("headrace.cli.commands.run:run", "Run the consumers of an application."),
        "asyncapi": (
            "headrace.cli.commands.asyncapi:asyncapi",
            "Print the AsyncAPI document of an application: its streams, handlers and types.",
        ),
        "spark": ("headrace_spark.cli.group:spark", "Run pipelines and programs on Spark, and check its installation."),
    },
    "Messages": {
        "publish": (
            "headrace.cli.commands.publish:publish",
            "Publish each line of a file or of standard input as a message.",
        ),
        "stream": (
            "headrace.cli.groups:stream",
            "Create, show, change and delete streams, and show, search and send messages.",
        ),
        "consumer": (
            "headrace.cli.groups:consumer",
            "Create, show, change, move and delete consumers, receive messages, and manage dead letters.",
        ),
        "schedule": ("headrace.cli.groups:schedule", "Show, pause, run and delete the schedules of periodic messages."),
        "source": (
            "headrace.cli.groups:source",
            "Create, show, change and remove sources: webhooks and captured tables.",
        ),
        "job": (
            "headrace.cli.groups:job",
            "List, show and cancel jobs, which redrive or purge dead letters in the background.",
        ),
    },
    "Operation": {
        "serve": ("headrace.cli.commands.serve:serve", "Serve the HTTP API, for clients in any language."),
        "observe": (
            "headrace.cli.observe.command:observe",
            "Watch streams, consumers, sources and processes live, and control them.",
        ),
        "database": ("headrace.cli.groups:database", "Add, list, check and remove further databases behind a server."),
        "migrate": ("headrace.cli.commands.migrate:migrate", "Create or upgrade the schema of the database."),
        "audit": ("headrace.cli.commands.audit:audit", "List the changes that were made, and in whose name."),
    },
    "Access": {
        "token": ("headrace.cli.groups:token", "Create, list, revoke and delete the access tokens of the server."),
        "grant": (
            "headrace.cli.groups:grant",
            "Let database roles publish, consume, observe or administer, and list what they may do.",
        ),
        "revoke": ("headrace.cli.commands.grants:revoke", "Take a privilege from a database role."),
    },
    "Configuration": {
        "plan": (
            "headrace.cli.commands.configuration:plan",
            "Print what `headrace apply` would change, and change nothing.",
        ),
        "apply": (
            "headrace.cli.commands.configuration:apply",
            "Make streams, consumers, sources, tokens and grants as files declare them.",
        ),
        "export": ("headrace.cli.commands.configuration:export", "Print what exists as a file for `headrace apply`."),
        "context": ("headrace.cli.groups:context", "Name servers and databases, and select the one that commands use."),
        "completion": ("headrace.cli.commands.completion:completion", "Print the completion script for a shell."),
    },
    "Trying it": {
        "demo": (
            "headrace.cli.demo.command:demo",
            "Publish the history of a git repository to a stream, and check the result.",
        ),
        "pg": ("headrace.cli.commands.pg:pg", "Start, stop and query the embedded Postgres."),
    },
}
"""Commands by the group in which they are listed: where each is implemented, and its description in the list."""

DESCRIPTIONS = {name: description for commands in _COMMANDS.values() for name, (_, description) in commands.items()}
"""The descriptions of the commands. Those that are groups have the same in their own help."""


def build(called: str | None = None) -> App:
    """Build the tree of commands without importing any of them.

    The command that is `called` supplies its own full help text.
    """
    app = App(
        name="headrace",
        help=_HELP,
        version=installed_version,
        help_format="plaintext",
        suppress_keyboard_interrupt=False,
    )
    for title, commands in _COMMANDS.items():
        group = Group.create_ordered(title)
        for name, (location, description) in commands.items():
            # A group of commands adds its own epilogue.
            epilogue = {"help_epilogue": example(name)} if name in EXAMPLES else {}
            app.command(location, name=name, group=group, help=None if name == called else description, **epilogue)
    options = Group.create_ordered("Options")
    for flag in (*app.help_flags, *app.version_flags):
        app[flag].group = options
    return app


def installed_version() -> str:
    """Return the version of the installed distribution."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown (not installed)"
