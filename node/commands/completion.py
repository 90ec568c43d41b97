"""`shoal completion bash|zsh|fish`: the script by which a shell completes commands and options."""

import sys
from typing import Literal

Shell = Literal["bash", "zsh", "fish"]


def completion(shell: Shell, /) -> int:
    """Print the completion script of a shell.

    bash: shoal completion bash > ~/.local/share/bash-completion/completions/shoal

    Parameters
    ----------
    shell
        bash, zsh or fish.
    """
    from shoal.node.cli import app

    sys.stdout.write(app.generate_completion(shell=shell))
    return 0
