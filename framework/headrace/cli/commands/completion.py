"""`headrace completion SHELL`."""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import Parameter

from headrace.cli.tree import build


def completion(shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="The shell.")], /) -> None:
    """Print the completion script for a shell.

    bash: headrace completion bash > ~/.local/share/bash-completion/completions/headrace

    zsh: headrace completion zsh > DIRECTORY/_headrace, for a directory in $fpath

    fish: headrace completion fish > ~/.config/fish/completions/headrace.fish
    """
    print(build().generate_completion(shell=shell))
