"""``dw completion``: scripts that make a shell complete commands and options.

Names of commands have a colon, at which bash splits words, so the script puts the line together again
and takes off what stands before the last colon.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

from nodes.cli.dw.arguments import argument
from nodes.cli.dw.command import COMMANDS, Command, Dw, command
from nodes.cli.dw.views import Words

_BASH: Final = r"""# dw completion bash; eval "$(dw completion bash)" in ~/.bashrc turns it on
_dw() {
  local line="${COMP_LINE:0:COMP_POINT}" current words
  read -ra words <<< "$line"
  current=""
  [[ "$line" == *[[:space:]] ]] || current="${words[-1]}"
  local -a known=()
  if [[ ${#words[@]} -lt 2 || ( ${#words[@]} -eq 2 && -n "$current" ) ]]; then
    known=(@COMMANDS@)
  else
    case "${words[1]}" in
@OPTIONS@
    esac
  fi
  COMPREPLY=()
  local word
  for word in "${known[@]}"; do
    [[ "$word" == "$current"* ]] && COMPREPLY+=("$word")
  done
  if [[ "$current" == *:* && "$COMP_WORDBREAKS" == *:* ]]; then
    local before="${current%"${current##*:}"}"
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
  fi
}
complete -o default -F _dw dw
"""
_ZSH: Final = r"""#compdef dw
# dw completion zsh; eval "$(dw completion zsh)" in ~/.zshrc turns it on
_dw() {
  local -a known
  if (( CURRENT == 2 )); then
    known=(@COMMANDS@)
  else
    case "${words[2]}" in
@OPTIONS@
    esac
  fi
  compadd -- "${known[@]}"
}
compdef _dw dw
"""
_FISH: Final = """# dw completion fish; dw completion fish | source in config.fish turns it on
complete -c dw -f -n __fish_use_subcommand -a "@COMMANDS@"
@OPTIONS@
"""


class Shell(StrEnum):
    """Shells there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def script(shell: Shell, options: Mapping[str, list[str]]) -> str:
    """The script for commands with their options."""
    names = " ".join(options)
    if shell is Shell.FISH:
        lines = [
            f'complete -c dw -n "__fish_seen_subcommand_from {name}" -l {option.removeprefix("--")}'
            for name, found in options.items()
            for option in found
        ]
        return _FISH.replace("@COMMANDS@", names).replace("@OPTIONS@", "\n".join(lines))
    lines = [f"      {name}) known=({' '.join(found)}) ;;" for name, found in options.items()]
    template = _BASH if shell is Shell.BASH else _ZSH
    return template.replace("@COMMANDS@", names).replace("@OPTIONS@", "\n".join(lines))


def _no_view(_: object) -> list[Words]:
    return []


@command("completion", _no_view, examples=("dw completion bash", "dw completion zsh", "dw completion fish"))
def completion(dw: Dw, shell: Annotated[Shell, argument("SHELL", "bash, zsh or fish")]) -> None:
    """Print a script that makes a shell complete commands and options.

    For bash: eval "$(dw completion bash)"
    """
    from nodes.cli.dw.program import long_options

    commands: Mapping[str, Command] = COMMANDS.commands
    dw.screen.write(script(shell, {name: long_options(entry) for name, entry in commands.items()}))
