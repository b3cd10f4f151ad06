"""`headrace completion SHELL`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], /) -> None:
    """Print the completion script of headrace's commands and options for a shell.

    bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace

    zsh: headrace completion zsh > a file _headrace in a directory of $fpath

    fish: headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    from headrace.cli.main import build  # that module refers to this one by name only

    print(build().generate_completion(shell=shell))
