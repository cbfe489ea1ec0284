"""README, docs and workflows say what is: commands are parsed, links lead somewhere, generated pages are fresh."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shlex
import subprocess
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from pages_support import anchors, command_lines, fences, inline, links, pages

from harness.cli import compose_config, configs_folder, main
from harness.config import TaskConfig
from harness.errors import HarnessError
from harness.nightly import STEPS
from harness.plan import as_json, make_plan
from harness.report.recipes import index, page
from harness.report.sizing import page as sizing_page

ROOT = Path(__file__).parent.parent
PAGES = pages(ROOT)
SHELL = ("bash", "sh", "")
MODELS = sorted(path.stem for path in (configs_folder() / "model").glob("*.yaml"))

TAKES: dict[str, tuple[str, ...]] = {
    "report": ("out", "format"),
    "figures": (),
    "open": (),
    "clean": (),
    "trend": ("out", "format"),
    "compare": ("score_margin", "speed_margin", "alpha", "resamples", "format"),
    "diagnose": ("format",),
}
"""Commands on folders -> the fields that they take."""

OVERRIDING = {
    "run": ("resume", "format"),
    "plan": ("from", "format"),
    "doctor": ("format",),
    "selftest": ("from", "into"),
}
"""Commands that take overrides -> their fields that are none."""

PROGRAMS = {"sudo", "git", "pip", "srun", "lmcache", "vllm", "export", "cd", "jupyter"}
"""Other programs that the docs type."""

PLACEHOLDERS = {
    "<run id>": "RUN",
    "<cell id>": "CELL",
    "<id>": "RUN",
    "<name>": "NAME",
    "model=NAME": "model=pocket",
    "model=my_hybrid": "model=pocket",  # which the page has imported before
}


def known_commands(capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Commands that the command line itself lists."""
    assert main(["--help"]) == 0
    return set(re.findall(r"^  ([a-z]+) ", capsys.readouterr().out, re.MULTILINE)) - {"python"}


def problem(line: str, commands: set[str]) -> str | None:
    """What is wrong with a command of the docs; None if nothing is."""
    for placeholder, word in PLACEHOLDERS.items():
        line = line.replace(placeholder, word)
    for part in re.split(r" && | \| ", re.sub(r" +#.*$", "", line)):
        words = [word for word in shlex.split(part.split(" > ")[0]) if word not in ("…", "&")]
        while words and re.match(r"[A-Z_]+=", words[0]):
            words.pop(0)
        if told := _program(words, commands) if words else None:
            return told
    return None


def _program(words: Sequence[str], commands: set[str]) -> str | None:
    program, *rest = words
    if re.fullmatch(r"(\S*/)?python(3(\.11)?)?", program):
        return _python(rest, commands)
    if program == "srun":
        return _program([word for word in rest if not word.startswith("--")], commands)
    if program == ".":
        return None if rest in ([".venv/bin/activate"], [".venv-gpu/bin/activate"]) else f"{rest} is no environment"
    if program == "make":
        return _make(rest, commands)
    if program.removeprefix("./").startswith(("scripts/", ".ci/")):
        return None if (ROOT / program).is_file() else f"{program} is not there"
    if program.endswith("/pip") or program == "pip":
        return _pip(rest)
    return None if Path(program).name in PROGRAMS else f"{program} is no program that these pages know"


def _python(words: Sequence[str], commands: set[str]) -> str | None:
    if words[0] == "-c":
        compile(words[1], "<docs>", "exec")
        return None
    if words[0] != "-m":
        return f"python {words[0]} is no module"
    module, *rest = words[1:]
    if module == "pip":
        return _pip(rest)
    if module == "harness":
        return _harness(rest, commands)
    if module == "harness.nightly":
        return None if rest in [[step] for step in ("matrix", "STEP", *STEPS)] else f"{rest} is no step"
    # Of other packages only that they are there: looking inside would import them.
    sought = module if module.startswith("harness") else module.partition(".")[0]
    return None if importlib.util.find_spec(sought) else f"{module} is no module"


def _pip(words: Sequence[str]) -> str | None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    asked = {extra for word in words if word.startswith(".[") for extra in word[2:-1].split(",")}
    return None if asked <= set(extras) else f"pyproject.toml has no extra {asked - set(extras)}"


def _make(words: Sequence[str], commands: set[str]) -> str | None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for word in words:
        name, equals, value = word.partition("=")
        if not equals and word not in targets:
            return f"Makefile has no target {word}"
        if equals and name not in ("ARGS", "PYTHON", "INSTALLER"):
            return f"Makefile knows no {name}"
        if name == "ARGS" and "demo" in words and value not in ("...", "…"):
            return _harness(["run", *shlex.split(value)], commands)
    return None


def _harness(words: Sequence[str], commands: set[str]) -> str | None:
    if not words or words[0] in ("--help", "COMMAND"):
        return None
    command, *rest = words
    rest = [re.sub(r"^\[(.*)\]$", r"\1", word) for word in rest if "…" not in word and word not in ("--help", "short")]
    if command not in commands:
        return f"{command} is no command"
    if command == "model":
        fields = {word.partition("=")[0] for word in rest if "=" in word}
        return None if rest[:1] == ["import"] and fields <= {"name", "path", "folder"} else f"model import: {rest}"
    if command in OVERRIDING:
        return _overrides(command, rest)
    if command not in TAKES:
        return f"{command} is not in this test's table: say what it takes"
    fields = {word.partition("=")[0] for word in rest if "=" in word}
    unknown = fields - set(TAKES[command])
    return f"{command} takes no {unknown}" if unknown else None


def _overrides(command: str, words: Sequence[str]) -> str | None:
    several = "-m" in words or "--multirun" in words
    kept = []
    for word in words:
        if word in ("-m", "--multirun", "-q", "--cfg", "job") or word.partition("=")[0] in OVERRIDING[command]:
            continue
        if word.lstrip("+").startswith(("hydra/launcher=", "hydra.launcher.")):  # installed by who uses one
            continue
        name, _, value = word.partition("=")
        if re.fullmatch(r"\+check=\S+|check=\[\S+\]", word):
            word = "check=all"
        elif several and not value.startswith("["):
            word = f"{name}={value.split(',')[0]}"
        if name == "task.data_dir":  # a folder of the reader's
            continue
        if name == "replay":
            # What it goes on top of is stored in the bundle.
            word = ""
        kept += [word] if word else []
    try:
        chosen = any(each.startswith(("engine=", "model=")) for each in kept)
        config = compose_config([*kept, *([] if chosen else ["engine=cpu"])])
        if command == "plan" and not any(word.endswith("=PATH") for word in kept):
            make_plan(config)
    except HarnessError as error:
        return str(error)
    return None


def shell_commands(file: Path) -> list[str]:
    """Every command of a page: lines of its shell blocks, and what stands in backquotes and begins like one."""
    text = file.read_text()
    found = [
        line
        for fence in fences(text)
        if fence.language in SHELL
        for line in command_lines(fence.text)
        if fence.language or re.match(r"(\.venv/bin/|python |make |sudo |pip )", line)
    ]
    begins = r"(\S*python3?(\.11)? -m |make (demo|test|lint|clean)|pip install|scripts/|\.ci/\w)"
    return found + [each for each in inline(text) if re.match(begins, each)]


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_every_command_is_one(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = known_commands(capsys)
    wrong = {line: told for line in shell_commands(file) if (told := problem(line, commands))}
    assert wrong == {}


def test_python_of_the_pages_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for file in PAGES:
        for fence in fences(file.read_text()):
            if fence.language == "python":
                compile(fence.text, str(file), "exec")
    (example,) = [each for each in fences((ROOT / "docs/verdict.md").read_text()) if each.language == "python"]
    exec(example.text, {})
    out = capsys.readouterr().out
    assert re.findall(r"Verdict\.([A-Z]+)", out) == ["PASS", "INCONCLUSIVE", "FAIL"], out


def test_commands_of_the_readme_are_seen() -> None:
    found = shell_commands(ROOT / "README.md")
    assert {"make test", "python -m harness run model=qwen3_6_27b", "python -m harness trend results"} <= {
        re.sub(r" +#.*$", "", line) for line in found
    }
    assert len(found) > 20


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("python -m harness rnu", "rnu is no command"),
        ("python -m harness run task.limt=3", "Key 'limt' not in 'TaskConfig'"),
        ("python -m harness run modle=pocket", "modle"),
        ("python -m harness run -m gate=equivalence,treshold", None),
        ("python -m harness run -m gate=treshold,equivalence", "treshold"),
        ("python -m harness plan model=nope", "Could not find 'model/nope'"),
        ("python -m harness plan sweep.budgets=[10]", "less than one block"),
        ("python -m harness report results/<run id> aut=x", "report takes no {'aut'}"),
        ("python -m harness compare a b margin=1", "compare takes no {'margin'}"),
        ("python -m harness model export x", "model import"),
        ("python -m harness.nope", "harness.nope is no module"),
        ("python -m harness.nightly rnu", "is no step"),
        ("make dmeo", "Makefile has no target dmeo"),
        ('make demo ARGS="task.limt=3"', "Key 'limt'"),
        ("pip install -e '.[gpus]'", "pyproject.toml has no extra {'gpus'}"),
        ("scripts/nope.sh", "scripts/nope.sh is not there"),
        ("rm -rf x", "rm is no program"),
        ("python -m harness run +check=[mixed,l2] # why", None),
        ("python -m harness run replay=results/<run id>/cells/<cell id>/repro servers.vllm.python=PATH", None),
    ],
)
def test_a_wrong_command_is_found(line: str, told: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    found = problem(line, known_commands(capsys))
    assert (told is None and found is None) or (told is not None and found is not None and told in found), found


def test_commands_of_workflows_and_scripts_are_ones(capsys: pytest.CaptureFixture[str]) -> None:
    commands = known_commands(capsys)
    lines = []
    for file in [*(ROOT / ".github/workflows").glob("*.yml"), ROOT / "action.yml"]:
        document = yaml.safe_load(file.read_text())
        for job in document.get("jobs", {"": document.get("runs")}).values():
            lines += [step["run"] for step in job["steps"] if "run" in step]
    for file in (ROOT / "scripts").rglob("*.sh"):
        subprocess.run(["bash", "-n", file], check=True)
        assert "set -euo pipefail" in file.read_text() and file.stat().st_mode & 0o100
        lines += re.findall(r'^"\$python" .*$', file.read_text(), re.MULTILINE)
    wrong = {}
    for line in lines:
        typed = re.sub(r'^exec |"?\$GITHUB_ACTION_PATH/?', "", line).replace('"', "")
        typed = re.sub(r"\$(PYTHON|python)\b", ".venv/bin/python", typed)
        typed = typed.replace("make $TARGET ARGS=$ARGUMENTS", "make test")
        if not typed.startswith("echo ") and (told := problem(typed, commands)):
            wrong[line] = told
    assert wrong == {} and len(lines) > 15


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_links_lead_somewhere(file: Path) -> None:
    broken = []
    for target in links(file.read_text()):
        if re.match(r"https?://|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (file.parent / path).resolve() if path else file
        inside = there.exists() and there.is_relative_to(ROOT.resolve())
        if not inside or (anchor and anchor not in anchors(there.read_text())):
            broken.append(target)
    assert broken == []


def test_every_page_is_reached_from_the_front() -> None:
    seen, left = set[Path](), [ROOT / "README.md"]
    while left:
        file = left.pop()
        seen.add(file.resolve())
        for target in links(file.read_text()):
            there = (file.parent / target.partition("#")[0]).resolve()
            if there.suffix == ".md" and there.exists() and there not in seen:
                left.append(there)
    assert {page.resolve() for page in (ROOT / "docs").rglob("*.md")} <= seen


@pytest.mark.parametrize("file", PAGES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_path_of_a_machine_stands_in_a_page(file: Path) -> None:
    text = file.read_text()
    assert not re.findall(r"(?:/tmp|/home|/root|/work|/Users)/[\w./-]+", text)
    assert str(ROOT) not in text


def test_pictures_are_small() -> None:
    pictures = list((ROOT / "docs" / "images").iterdir())
    used = {Path(target).name for file in PAGES for target in links(file.read_text())}
    assert pictures and all(each.stat().st_size < 150_000 and each.name in used for each in pictures)


def test_yaml_of_the_pages_is_what_it_shows() -> None:
    (task,) = [fence for fence in fences((ROOT / "docs/tasks.md").read_text()) if fence.language == "yaml"]
    assert set(yaml.safe_load(task.text)) <= {field.name for field in dataclasses.fields(TaskConfig)}
    action, buildkite = [fence for fence in fences((ROOT / "docs/ci.md").read_text()) if fence.language == "yaml"]
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (step,) = yaml.safe_load(action.text)
    assert set(step["with"]) <= set(inputs) and len(action.text.splitlines()) == 5
    assert all(f"`{name}`" in (ROOT / "docs/ci.md").read_text() for name in inputs)
    (step,) = yaml.safe_load(buildkite.text)["steps"]
    assert step["retry"] == {"automatic": False}
    assert [problem(line.replace("gate/scripts", "scripts"), set()) for line in step["command"]] == [None, None]


# --- recipes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_recipe_pages_are_fresh(model: str) -> None:
    """Otherwise: python -m harness.report.recipes docs/recipes."""
    assert (ROOT / "docs" / "recipes" / f"{model}.md").read_text() == page(model, compose_config)


@pytest.mark.timeout(300)
def test_the_page_on_sizing_is_fresh() -> None:
    """Otherwise: python -m harness.report.sizing docs/sizing.md."""
    assert (ROOT / "docs" / "sizing.md").read_text() == sizing_page(MODELS, compose_config, ROOT / "results")


def test_the_list_of_recipes_is_fresh() -> None:
    folder = ROOT / "docs" / "recipes"
    assert (folder / "README.md").read_text() == index(MODELS, compose_config)
    assert {each.stem for each in folder.glob("*.md")} == {"README", *MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_recipe_pages_have_the_planned_commands_and_the_published_arguments(model: str) -> None:
    config = compose_config([f"model={model}", f"engine={'cpu' if model == 'pocket' else 'gpu'}"])
    (planned,) = as_json(make_plan(config))["commands"].values()
    blocks = fences((ROOT / "docs" / "recipes" / f"{model}.md").read_text())
    lmcache, vllm = [shlex.split(next(command_lines(block.text))) for block in blocks[:2]]
    here = [word.replace(config.model.path, "harness/pocket/checkpoint") for word in planned["vllm"]]
    assert lmcache == planned["lmcache"]
    assert vllm == (here if model == "pocket" else planned["vllm"])
    if recipe := config.model.recipe:
        assert all(each in lmcache for each in recipe.lmcache) and all(each in vllm for each in recipe.vllm)


# --- files around the code ---------------------------------------------------------------------------------


def test_the_license_is_the_one_that_is_declared() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "Apache-2.0"
    assert f"## {project['version']}" in (ROOT / "CHANGELOG.md").read_text()
