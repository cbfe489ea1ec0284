"""Words that several commands understand: ``format=``, ``out=``, ``-q``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.checking import nearest
from harness.errors import UsageError

TEXT, JSON, MARKDOWN = "text", "json", "markdown"

QUIET = {"-q": True, "--quiet": True, "quiet=true": True, "quiet=false": False}


def split_format(arguments: Sequence[str], known: Sequence[str] = (TEXT, JSON)) -> tuple[str, list[str]]:
    """The output format that ``format=…`` chooses, ``text`` without it, and the other arguments.

    Raises:
        UsageError: the format is not known.
    """
    chosen, rest = split_fields(arguments, ("format",))
    form = chosen.get("format", TEXT)
    if form not in known:
        raise UsageError(f"format={form} is not known; known: {', '.join(known)}.")
    return form, rest


def split_quiet(arguments: Sequence[str]) -> tuple[bool, list[str]]:
    """Whether a command is to say no more than its result, and the other arguments."""
    said = [QUIET[word] for word in arguments if word in QUIET]
    return bool(said) and said[-1], [word for word in arguments if word not in QUIET]


def refuse_multirun(arguments: Sequence[str], command: str) -> None:
    """Refuses ``--multirun``.

    Raises:
        UsageError: naming the command that takes it.
    """
    from harness.overrides import is_multirun  # here: a page of help does not wait for Hydra's libraries

    if is_multirun(arguments):
        raise UsageError(f"{command} has no --multirun, only run has: name one value of each field.")


def split_fields(arguments: Sequence[str], names: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Values of the fields that are named, the last of each, and the other arguments."""
    found: dict[str, str] = {}
    rest = []
    for word in arguments:
        name, equals, value = word.partition("=")
        if equals and name in names:
            found[name] = value
        else:
            rest.append(word)
    return found, rest


def split_out(arguments: Sequence[str]) -> tuple[Path | None, list[str]]:
    """The folder that ``out=`` names, None without it, and the other arguments.

    Raises:
        UsageError: it names none.
    """
    found, rest = split_fields(arguments, ("out",))
    if found.get("out") == "":
        raise UsageError("out= needs a folder: out=DIR")
    return (Path(found["out"]) if found else None), rest


def refuse_fields(arguments: Sequence[str], known: Sequence[str], command: str) -> None:
    """Refuses what is neither a path nor a field that the command knows.

    A word with = that names an existing path is one.

    Raises:
        UsageError: with the nearest field.
    """
    for word in arguments:
        name, equals, _ = word.partition("=")
        if word.startswith("-"):
            raise UsageError(f"{command} has no option {word}: python -m harness {command} --help shows what it takes.")
        if equals and not Path(word).exists():
            told = nearest(name, list(known)) if known else "it takes none."
            raise UsageError(f"{command} has no field {name}; {told}")
