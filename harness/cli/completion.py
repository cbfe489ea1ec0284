"""``python -m harness completion``: a shell's completion of the installed command ``harness``.

The scripts hold all words: pressing Tab starts no Python. They are made from the catalog of commands and from the
shipped configs, so that they have to be made again after an update.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.checking import nearest
from harness.cli.catalog import COMMANDS, Command
from harness.cli.groups import config_groups
from harness.errors import UsageError

SHELLS = ("bash", "zsh", "fish")


def completion_command(arguments: Sequence[str]) -> int:
    """``completion``: prints a shell's script.

    Raises:
        UsageError: no shell, or one that is not known, was named.
    """
    if len(arguments) != 1:
        raise UsageError(f"completion needs a shell: python -m harness completion {'|'.join(SHELLS)}")
    (shell,) = arguments
    if shell not in SHELLS:
        raise UsageError(f"completion knows no {shell}; {nearest(shell, SHELLS)}")
    print(script(shell, config_groups()), end="")
    return 0


def script(shell: str, groups: Mapping[str, Sequence[str]]) -> str:
    """The completion script of one shell.

    Args:
        shell: one of ``SHELLS``.
        groups: config group -> its options.
    """
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](groups)


def words_of(command: Command, groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Everything that is offered behind a command; words that end in = go on."""
    overrides = [f"{name}={option}" for name, options in groups.items() for option in options]
    more = ["task.limit=", "load.concurrency=", "results_dir=", "run_id="]
    return ["--help", *command.options, *(overrides + more if command.takes == "overrides" else [])]


def _bash(groups: Mapping[str, Sequence[str]]) -> str:
    cases = "\n".join(
        f"        {each.name}) words='{' '.join(words_of(each, groups))}'; files={int(each.takes == 'folders')} ;;"
        for each in COMMANDS.values()
    )
    return f"""# bash completion of harness; made by: harness completion bash
_harness() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" words='' files=0 word
    local cur="${{line##* }}" command="${{COMP_WORDS[1]}}"
    # Before a word is begun behind harness, or while the first one is written, commands are offered.
    if [[ ${{COMP_CWORD}} -le 1 ]]; then
        COMPREPLY=($(compgen -W '{" ".join(COMMANDS)} help --help' -- "$cur"))
        return
    fi
    case "$command" in
{cases}
        help) words='{" ".join(COMMANDS)}' ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$cur"))
    if ((files)); then COMPREPLY+=($(compgen -f -- "$cur")); fi
    # bash takes = for the end of a word: of model=pocket it replaces what follows the =.
    if [[ $cur == *=* && $COMP_WORDBREAKS == *=* ]]; then
        for word in "${{!COMPREPLY[@]}}"; do COMPREPLY[word]="${{COMPREPLY[word]#"${{cur%=*}}="}}"; done
    fi
    if [[ ${{#COMPREPLY[@]}} -eq 1 && ( ${{COMPREPLY[0]}} == *= || -d ${{COMPREPLY[0]}} ) ]]; then
        compopt -o nospace 2> /dev/null
    fi
}}
complete -o filenames -F _harness harness
"""


def _zsh(groups: Mapping[str, Sequence[str]]) -> str:
    def case(command: Command) -> str:
        files = "; _files" if command.takes == "folders" else ""
        return f"        {command.name}) words_=({' '.join(words_of(command, groups))}){files} ;;"

    cases = "\n".join(map(case, COMMANDS.values()))
    described = "\n".join(f"        '{each.name}:{each.summary.replace(chr(39), '')}'" for each in COMMANDS.values())
    return f"""#compdef harness
# zsh completion of harness; made by: harness completion zsh
_harness() {{
    local -a commands words_
    commands=(
{described}
    )
    if (( CURRENT == 2 )); then
        _describe command commands
        return
    fi
    case "$words[2]" in
{cases}
        help) words_=({" ".join(COMMANDS)}) ;;
    esac
    compadd -S '' -- ${{(M)words_:#*=}}
    compadd -- ${{words_:#*=}}
}}
compdef _harness harness
"""


def _fish(groups: Mapping[str, Sequence[str]]) -> str:
    seen = f"__fish_seen_subcommand_from {' '.join(COMMANDS)} help"
    lines = ["# fish completion of harness; made by: harness completion fish", "complete -c harness -f"]
    for each in COMMANDS.values():
        told = each.summary.replace("'", "")
        lines.append(f"complete -c harness -n 'not {seen}' -a {each.name} -d '{told}'")
        words = " ".join(words_of(each, groups))
        files = " -F" if each.takes == "folders" else ""
        lines.append(f"complete -c harness -n '__fish_seen_subcommand_from {each.name}'{files} -a '{words}'")
    return "\n".join(lines) + "\n"
