"""How commands behave: help, quiet, JSON, colour, completion, and the way to a report."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from report_support import failing, passing

import harness
from harness import __main__ as entry
from harness import cli
from harness.cli import main
from harness.cli.catalog import COMMANDS, PROGRAM, usage
from harness.cli.completion import SHELLS, script
from harness.cli.groups import config_groups
from harness.cli.open import has_display
from harness.cli.options import refuse_fields, split_format, split_quiet
from harness.errors import HarnessError, UsageError
from harness.report.terminal import verdict_of_run
from harness.store import RunFolder, read_json

Captured = pytest.CaptureFixture[str]

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command changes in this process is undone."""
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


# --- help --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("form", ["{} --help", "{} -h", "help {}", "{} something --help"])
def test_every_command_has_help_with_examples(name: str, form: str, capsys: Captured) -> None:
    assert main(form.format(name).split()) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith(f"usage: {PROGRAM} {name}")
    assert f"  {PROGRAM} {name}" in out.split("examples:")[1] and "exit codes:" in out
    assert max(map(len, out.split("config groups:")[0].splitlines())) <= 120


def test_the_list_of_commands_has_all_of_them() -> None:
    assert all(f"  {name} " in usage() for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_examples_begin_with_their_command_and_name_configs_that_exist(command: Any) -> None:
    groups = config_groups()
    assert len(command.examples) >= 1 and (len(command.examples) >= 2 or command.takes == "folders")
    for typed, why in command.examples:
        assert typed.split()[0] == command.name and why
        for word in shlex.split(typed.partition("|")[0]):
            name, equals, value = word.partition("=")
            if equals and name in groups:
                assert value in groups[name], typed


def test_every_command_can_be_found() -> None:
    from importlib import import_module

    for command in COMMANDS.values():
        assert callable(getattr(import_module(command.home), command.function))


def test_help_of_what_takes_overrides_names_the_groups_and_hydras_flags(capsys: Captured) -> None:
    assert main(["run", "--help"]) == 0
    out = capsys.readouterr().out
    assert "qwen3_6_27b" in out and "batched_tokens" in out and "--hydra-help" in out
    assert main(["run", "--hydra-help"]) == 0
    assert "--multirun" in capsys.readouterr().out


def test_help_of_an_unknown_command(capsys: Captured) -> None:
    assert main(["help", "comapre"]) == 2
    assert "comapre is no command; did you mean compare?" in capsys.readouterr().err


def test_help_does_not_wait_for_what_a_run_needs() -> None:
    code = (
        "import sys; from harness.cli import main; main(['run', '--help']); "
        "sys.exit(any(name in sys.modules for name in ('hydra', 'pandas', 'scipy', 'uvloop')))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_has_what_others_take_from_it() -> None:
    assert all(callable(getattr(cli, name)) for name in cli.__all__)
    with pytest.raises(AttributeError, match="nothing"):
        _ = cli.nothing


def test_the_installed_command_is_the_module(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    assert 'harness = "harness.__main__:main"' in (REPOSITORY / "pyproject.toml").read_text()
    monkeypatch.setattr(sys, "argv", ["harness", "rnu"])
    assert entry.main() == 2
    monkeypatch.setitem(sys.modules, "harness.cli", None)
    assert entry.main() == 2
    assert "set up with `make demo`" in capsys.readouterr().err


# --- quiet and JSON ----------------------------------------------------------------------------------------


@pytest.fixture
def ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of one cell that has just failed its model, instead of real servers."""
    path = failing(tmp_path)
    record = read_json(path / "run.json")

    def run(config: Any, progress: Any) -> tuple[RunFolder, dict[str, Any], int]:
        progress.stage("starting vLLM")
        progress.done("a line that stays")
        progress.warn("something is odd.")
        print("a library prints")
        return RunFolder(path), record, 1

    monkeypatch.setattr("harness.cli.run.run", run)
    return path


@pytest.mark.parametrize("word", ["-q", "--quiet", "quiet=true"])
def test_a_quiet_run_says_its_verdict_and_warnings(word: str, ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", word]) == 1
    out, err = capsys.readouterr()
    library, verdict = out.splitlines()
    assert library == "a library prints" and verdict.startswith("FAIL: ")
    assert err == "warning: something is odd.\n"
    assert (ended / "report.html").is_file()


def test_a_run_that_is_not_quiet(ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", "quiet=false"]) == 1
    out, err = capsys.readouterr()
    assert "TTFT" in out and "a line that stays" in err and "starting vLLM" in err


def test_json_of_a_run_is_one_line_and_all_else_is_on_stderr(ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", "format=json"]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    told = json.loads(out)
    assert (told["exit_code"], told["path"]) == (1, str(ended))
    assert told["report"] == (ended / "report.html").as_uri()
    assert told["run"]["verdict"] == "fail" and told["cells"][0]["verdict"] == "fail"
    assert "a library prints" in err and "FAIL: " in err


def test_json_and_quiet_together(ended: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", "-q", "format=json"]) == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["exit_code"] == 1
    assert "TTFT" not in err and "starting vLLM" not in err


def test_json_of_a_multirun_is_a_line_for_each(ended: Path, tmp_path: Path, capsys: Captured) -> None:
    argv = ["run", "-m", "engine=cpu", f"results_dir={tmp_path}", "gate=equivalence,threshold", "format=json"]
    assert main(argv) == 1
    assert [json.loads(line)["exit_code"] for line in capsys.readouterr().out.splitlines()] == [1, 1]


def test_json_of_a_run_that_failed(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    def run(config: Any, progress: Any) -> None:
        raise HarnessError("vLLM exited with code 1.")

    monkeypatch.setattr("harness.cli.run.run", run)
    assert main(["run", "engine=cpu", "format=json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == {"exit_code": 3, "error": "vLLM exited with code 1."}
    assert err == "error: vLLM exited with code 1.\n"


def test_the_configuration_is_shown_whatever_the_format(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "engine=cpu", "-q", "format=json", "--cfg", "job"]) == 0
    out = capsys.readouterr().out
    assert "budgets:" in out and "quiet" not in out and "format" not in out


def test_json_of_a_report(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    assert main(["report", str(path), "format=json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert told["report"].startswith("file://") and told["runs"][0]["run"]["verdict"] == "pass"
    assert "PASS: " in err


def test_an_unknown_format(capsys: Captured) -> None:
    for command in ("run", "plan", "report", "diagnose", "doctor"):
        assert main([command, "format=yaml"]) == 2
        assert "format=yaml is not known; known: text, json." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("run", "cells", "told"),
    [
        ({"verdict": None, "status": "failed", "error": "gone."}, [], "failed, no verdict: gone."),
        ({"verdict": None, "status": "interrupted", "error": "interrupted"}, [], "interrupted, no verdict"),
        ({"verdict": "pass"}, [{"verdict": "pass", "reasons": ["a", "b"]}], "PASS: a; b."),
        (
            {"verdict": "fail"},
            [{"verdict": each} for each in ("pass", "fail", "pass")],
            "FAIL: 3 cells: 2 pass, 1 fail.",
        ),
    ],
)
def test_the_verdicts_line(run: dict[str, Any], cells: list[dict[str, Any]], told: str) -> None:
    assert verdict_of_run(run, cells).plain == told


def test_words_that_several_commands_know() -> None:
    assert split_format(["a", "format=json", "b"]) == ("json", ["a", "b"])
    assert split_quiet(["-q", "a", "quiet=false"]) == (False, ["a"])
    with pytest.raises(UsageError, match="it takes none"):
        refuse_fields(["x=1"], (), "open")


def test_a_folder_whose_name_has_an_equals_sign(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    refuse_fields([str(tmp_path / "a=b")], ("out",), "trend")


# --- colour ------------------------------------------------------------------------------------------------

COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-9]")


def on_a_terminal(argv: list[str], **env: str) -> str:
    """What a command prints on a terminal."""
    ours, theirs = pty.openpty()
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "CI")}
    process = subprocess.Popen(
        [sys.executable, "-m", "harness", *argv],
        stdout=theirs,
        stderr=theirs,
        cwd=REPOSITORY,
        env=kept | {"TERM": "xterm-256color"} | env,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        shown += piece
    process.wait()
    os.close(ours)
    return shown.decode()


def test_colour_on_a_terminal_unless_it_is_not_wanted(tmp_path: Path) -> None:
    argv = ["report", str(failing(tmp_path))]
    assert COLOUR.search(on_a_terminal(argv))
    assert not COLOUR.search(on_a_terminal(argv, NO_COLOR="1"))


def test_no_colour_off_a_terminal(tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    path = str(failing(tmp_path))
    for argv in (["report", path], ["compare", path, path], ["trend", str(tmp_path)], ["rnu"]):
        main(argv)
        out, err = capsys.readouterr()
        assert "\x1b" not in out + err


# --- open --------------------------------------------------------------------------------------------------


def test_open_prints_the_address_and_writes_what_is_missing(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    assert main(["open", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{(path / 'report.html').as_uri()}\n" and "writing" in err
    assert (path / "report.html").is_file()
    before = (path / "report.html").stat().st_mtime_ns
    assert main(["open", str(path / "report.html")]) == 0
    assert main(["open", str(path)]) == 0
    assert "writing" not in capsys.readouterr().err
    assert (path / "report.html").stat().st_mtime_ns == before


def test_open_tells_where_the_run_went_on(tmp_path: Path, capsys: Captured) -> None:
    path = passing(tmp_path)
    main(["open", str(path)])
    os.utime(path / "report.html", (1, 1))
    assert main(["open", str(path)]) == 0
    assert "the run went on since" in capsys.readouterr().err


def test_open_shows_it_where_there_is_a_display(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        return False

    monkeypatch.setattr("webbrowser.open", browse)
    monkeypatch.setattr("harness.cli.open.has_display", lambda *_: True)
    path = passing(tmp_path)
    assert main(["open", str(path)]) == 0
    assert opened == [(path / "report.html").as_uri()]
    assert "no browser answered" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "platform", "display"),
    [
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "x"}, "linux", False),
        ({"BROWSER": "firefox"}, "linux", True),
        ({}, "darwin", True),
        ({"CI": "true"}, "darwin", False),
    ],
)
def test_where_there_is_a_display(env: dict[str, str], platform: str, display: bool) -> None:
    assert has_display(env, platform) is display


@pytest.mark.parametrize(
    ("words", "told"), [([], "open needs one"), (["a", "b"], "open needs one"), (["/nope"], "/nope")]
)
def test_open_of_nothing(words: list[str], told: str, capsys: Captured) -> None:
    assert main(["open", *words]) == 2
    assert told in capsys.readouterr().err


# --- completion --------------------------------------------------------------------------------------------

ASK = """
source "$1"
COMP_LINE="$2"; COMP_POINT=${#2}; COMP_WORDBREAKS=$' \\t\\n"'"'"'><=;|&(:'
read -ra COMP_WORDS <<< "$2"; [[ $2 == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); COMPREPLY=()
_harness
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("line", "offered", "not_offered"),
    [
        ("harness ", {"run", "compare", "doctor"}, {"model=pocket"}),
        ("harness do", {"doctor"}, {"run"}),
        ("harness run ", {"model=pocket", "sweep=smoke", "-q", "format=json"}, {"run"}),
        ("harness run model=qwen3_5", {"qwen3_5_9b"}, {"pocket", "model=qwen3_5_9b"}),
        ("harness run task.limit=3 gate=", {"equivalence", "threshold"}, {"pocket"}),
        ("harness completion ", {"bash", "zsh", "fish"}, set()),
        ("harness help c", {"compare", "completion"}, {"run"}),
        ("harness compare res", {"results"}, {"model=pocket"}),
        ("harness compare results sp", {"speed_margin="}, set()),
    ],
)
def test_bash_completes(line: str, offered: set[str], not_offered: set[str], tmp_path: Path, capsys: Captured) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "harness.bash").write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["bash", "-c", ASK, "ask", str(tmp_path / "harness.bash"), line],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    replies = set(done.stdout.split())
    assert offered <= replies and not not_offered & replies
    assert done.stderr == ""


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_hold_all_commands_and_options(shell: str) -> None:
    made = script(shell, {"model": ["pocket", "new"]})
    assert all(name in made for name in COMMANDS)
    assert "model=new" in made


@pytest.mark.parametrize(("words", "told"), [([], "completion needs a shell"), (["bsh"], "did you mean bash?")])
def test_completion_of_an_unknown_shell(words: list[str], told: str, capsys: Captured) -> None:
    assert main(["completion", *words]) == 2
    assert told in capsys.readouterr().err


def test_the_version(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"harness {harness.__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["plan", "-m", "model=pocket,qwen3_6_27b"], "plan has no --multirun, only run has"),
        (["doctor", "--multirun"], "doctor has no --multirun"),
        (["run", "--task.limit=10"], "--task.limit=10: write it without --: task.limit=10"),
        (["plan", "--task.limit=10"], "--task.limit=10: write it without --: task.limit=10"),
        (["plan", "sweep.budgets=2N-1"], "a list stands in brackets, sweep.budgets=[2N-1]"),
        (["selftest", "shrot"], "selftest knows no 'shrot'; did you mean short?"),
    ],
)
def test_words_that_are_almost_right(words: list[str], told: str, capsys: Captured) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert told in err and err.count("\n") == 1
