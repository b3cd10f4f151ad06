"""`headrace asyncapi TARGET`: prints the AsyncAPI document of an application."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from headrace.cli.output.json_output import print_json
from headrace.cli.processes.app_loader import load_app


def asyncapi(
    target: Annotated[str, Parameter(help="The app: module:attribute, or path/to/file.py:attribute.")],
    /,
    *,
    title: Annotated[
        str | None,
        Parameter(show_default=False, help="The title of the document. Default: the name of the app's module."),
    ] = None,
    api_version: Annotated[str, Parameter(help="The version of what the document describes.")] = "1.0.0",
) -> None:
    """Print the AsyncAPI 3.0 document of an application, as JSON.

    Streams are its channels, and handlers its operations. Schemas come from
    the types of the streams and handlers. No database is needed.
    """
    app = load_app(target, needs_consumers=False)
    print_json(app.asyncapi(title=title or _module_name(target), version=api_version))


def _module_name(target: str) -> str:
    """The last part of the module's name, or the file's name without its ending."""
    return target.rpartition(":")[0].removesuffix(".py").replace("/", ".").rpartition(".")[2]
