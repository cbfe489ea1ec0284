"""Secrets: what looks like one, and texts, command lines and configurations without them.

Pure, and the one place that knows: whatever is written or shown goes through here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

HIDDEN = "***"

SECRET = re.compile(r"TOKEN(?!S|IZ)|KEY|SECRET|PASSW|CREDENTIAL|AUTH(?!OR)", re.IGNORECASE)
"""In the name of a variable or field; not in ``max_num_batched_tokens`` or ``TOKENIZERS_PARALLELISM``."""

SECRET_ARGUMENT = re.compile(r"^(--(?:[\w.-]*[-_.])?(?:token|key|secret|password))(=.*)?$", re.IGNORECASE)

URL_CREDENTIALS = re.compile(r"(\w+://)[^/\s\"']+@")
"""``user:password@`` and ``token@``, up to the last @ of the host part."""

SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|xox[abeprs]-[\w-]{10,}"
    r"|sk-(?=[\w-]*\d)[\w-]{20,}|AKIA[0-9A-Z]{16}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,})"
)
"""Values that give themselves away: tokens of Hugging Face, GitHub, GitLab, Slack, OpenAI and its likes, AWS, JWTs."""

LEAST_LENGTH = 8
"""Of a value that is searched for in texts: shorter ones would be found in ordinary words."""


def without_passwords(text: str) -> str:
    """A text whose URLs carry no user, password or token."""
    return URL_CREDENTIALS.sub(rf"\1{HIDDEN}@", text)


def redacted(text: str, known: Collection[str] = ()) -> str:
    """A text without passwords in URLs, without what looks like a token, and without values known to be secret."""
    for value in sorted(known, key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return SECRET_VALUE.sub(HIDDEN, without_passwords(text))


def known_secrets(env: Mapping[str, str]) -> frozenset[str]:
    """Values of variables whose names sound like secrets: those that a text could give away."""
    return frozenset(
        value
        for name, value in env.items()
        if SECRET.search(name) and len(value) >= LEAST_LENGTH and not value.startswith("/") and " " not in value
    )


def without_secrets(arguments: Sequence[str]) -> list[str]:
    """A command line fit for files and screens: values of secret arguments and passwords in URLs are hidden."""
    shown: list[str] = []
    hiding = False
    for argument in arguments:
        if hiding and not argument.startswith("--"):
            # Every one: vLLM takes several values after one --api-key.
            shown.append(HIDDEN)
        elif found := SECRET_ARGUMENT.match(argument):
            shown.append(found[1] + (f"={HIDDEN}" if found[2] else ""))
            hiding = not found[2]
        else:
            shown.append(redacted(argument))
            hiding = False
    return shown


def without_secrets_in(value: Any) -> Any:
    """A nested configuration fit for files: fields that sound like secrets, arguments, URLs and tokens are masked."""
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if isinstance(each, str) and SECRET.search(str(name)) else without_secrets_in(each)
            for name, each in value.items()
        }
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return without_secrets(value)
    if isinstance(value, list):
        return [without_secrets_in(each) for each in value]
    return redacted(value) if isinstance(value, str) else value


def secret_argument(arguments: Sequence[str]) -> str | None:
    """Name of the first argument that carries a secret, its value left out; None where none does."""
    for argument in arguments:
        if SECRET_ARGUMENT.match(argument) or redacted(argument) != argument or _in_json(argument):
            return argument.split("=", 1)[0] if argument.startswith("-") else HIDDEN
    return None


def fields_with_secrets(value: Any, name: str = "") -> Iterator[str]:
    """Dotted names of the texts in a nested configuration that give themselves away as secrets."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from fields_with_secrets(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list):
        for each in value:
            yield from fields_with_secrets(each, name)
    elif isinstance(value, str) and redacted(value) != value:
        yield name


def _in_json(argument: str) -> bool:
    """Whether an argument's value is JSON with a secret in it."""
    text = argument[argument.find("{") :] if "{" in argument else ""
    try:
        told = json.loads(text)
    except ValueError:
        return False
    return bool(without_secrets_in(told) != told)
