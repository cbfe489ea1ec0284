"""Every command with its help: the one place that ``--help``, the dispatcher and shell completion read."""

from __future__ import annotations

from dataclasses import dataclass

PROGRAM = "python -m harness"

OVERRIDES = ("field=value", "overrides of the configuration: model=…, sweep=…, task.limit=… (run --cfg job shows all)")
FORMAT = ("format=json", "for programs: JSON alone on stdout, everything else on stderr")


@dataclass(frozen=True, slots=True)
class Command:
    """What is said of one command, and where it is."""

    name: str
    summary: str
    """In the list of commands; one line."""
    usage: str
    """What follows the command's name."""
    about: str
    words: tuple[tuple[str, str], ...]
    """Word -> what it does."""
    examples: tuple[tuple[str, str], ...]
    """What follows the program's name -> why one types it."""
    codes: str
    """Exit codes."""
    takes: str
    """What shell completion offers: ``overrides``, ``folders`` or ``nothing``, besides ``options``."""
    options: tuple[str, ...] = ()
    """Words for shell completion; one that ends in = goes on."""

    @property
    def home(self) -> str:
        """Module that holds it, and the name of its function there."""
        return f"harness.cli.{self.name}"

    @property
    def function(self) -> str:
        """Name of its function."""
        return f"{self.name}_command"


_ALL = (
    Command(
        "run",
        "measure and judge: starts both servers, asks cold and warm, ends in a verdict",
        "[field=value …] [-q] [format=json] [--cfg job] [--multirun]",
        "Starts the real LMCache and vLLM, sends the same questions cold and warm, and judges equivalence. It is a "
        "Hydra application: overrides, config groups, --cfg job and --multirun work as everywhere.",
        (
            OVERRIDES,
            ("resume=ID", "go on with a run that was cut short; its folder does as well"),
            ("replay=DIR", "send the prompts of a repro bundle again"),
            ("--cfg job", "show the whole configuration and stop"),
            ("-m, --multirun", "one run for each of the values behind commas"),
            ("-q, quiet=true", "the verdict's line alone; warnings and errors still go to stderr"),
            ("format=json", "one line of JSON per run on stdout: run.json, every cell.json, the exit code"),
            ("--hydra-help", "Hydra's own flags"),
        ),
        (
            ("run", "the main job: the pocket model on this machine's engine"),
            ("run model=qwen3_6_27b task=gsm8k", "a model of docs/models.md, all gsm8k questions"),
            ("run -q task.limit=100 format=json | jq .run.verdict", "for a script"),
        ),
        "0 pass · 1 fail · 2 wrong usage · 3 a server or the machine · 4 inconclusive or invalid · 130 interrupted",
        "overrides",
        ("--cfg", "--multirun", "--hydra-help", "-q", "format=json", "resume=", "replay="),
    ),
    Command(
        "plan",
        "what a run would do, without server or GPU",
        "[from=RUN] [field=value …] [format=json]",
        "Prints N and its arithmetic, the exact commands of both servers, cost, power, and what the rules say; from= "
        "adds how long it takes, at the rates that a run of the same model has measured.",
        (OVERRIDES, ("from=RUN", "a results folder whose times tell how long each launch and cell will take"), FORMAT),
        (
            ("plan model=qwen3_6_27b", "before there is a GPU"),
            ("plan model=qwen3_6_27b sweep.budgets=[N,2N-1] engine.gpu_memory_gb=80", "what an 80 GB GPU has room for"),
            ("plan from=results/20260131-235959-pocket-smoke sweep=hit_rate", "how long will it take here?"),
            ("plan model=pocket format=json | jq .commands", "the commands alone"),
        ),
        "0 · 2 wrong usage, or rules refuse the run (of +check=all: every arm)",
        "overrides",
        ("format=json", "from="),
    ),
    Command(
        "model",
        "write a model's YAML from its checkpoint",
        "import CONFIG.json|CHECKPOINT [name=…] [path=…] [folder=…]",
        "Reads a config.json and writes configs/model/<name>.yaml, so that plan and run know the model.",
        (
            ("name=…", "of the model; the checkpoint's own otherwise"),
            ("path=…", "hub id or folder that vLLM is to load"),
            ("folder=…", "where the YAML goes; configs/model otherwise"),
        ),
        (
            ("model import ~/models/Qwen3.5-9B", "from a checkpoint folder"),
            ("model import config.json name=mine path=org/mine", "from a config.json alone"),
        ),
        "0 · 2 wrong usage",
        "folders",
        ("import", "name=", "path=", "folder="),
    ),
    Command(
        "report",
        "summary, and report.html, .md, junit.xml, from results folders alone",
        "RUN… [out=DIR] [format=json]",
        "Shows the summary and writes the report again, on any machine. Several runs make one report.",
        (("out=DIR", "where the report goes; beside the run otherwise"), FORMAT),
        (
            ("report results/20260131-235959-pocket-smoke", "one run"),
            ("report results/a results/b out=both", "two runs in one page"),
        ),
        "0 whatever the verdict · 2 no run there · 3 can't be written",
        "folders",
        ("out=", "format=json"),
    ),
    Command(
        "open",
        "show a run's report in the browser",
        "RUN",
        "Prints the report's file:// address and opens it where there is a display; writes it first if it is missing.",
        (),
        (("open results/20260131-235959-pocket-smoke", "after a run, or of somebody else's"),),
        "0 · 2 no run there · 3 can't be written",
        "folders",
    ),
    Command(
        "compare",
        "is run B worse than run A? cell by cell, paired where the prompts are the same",
        "A B [score_margin=0.03] [speed_margin=0.1] [alpha=0.05] [format=json|markdown]",
        "First what differs in configuration and versions, then every cell that both runs have: score, flips, TTFT and "
        "throughput, with intervals. Timings of different machines or loads are shown, not judged.",
        (
            ("score_margin=0.03", "loss of score that counts, a fraction of the questions"),
            ("speed_margin=0.1", "change of median TTFT or throughput that counts, as a fraction"),
            ("alpha=0.05", "level of the tests of the score, corrected over all of them"),
            ("resamples=2000", "of the bootstrap"),
            ("format=json", "for programs"),
            ("format=markdown", "for a job's summary; appended to $GITHUB_STEP_SUMMARY anyway where that is set"),
        ),
        (
            ("compare results/main results/pr-123", "did a pull request's build lose score or speed?"),
            ("compare results/main results/pr-123 speed_margin=0.3", "on a noisy machine"),
            ("compare results/a results/b format=json | jq .regressions", "for a script"),
        ),
        "0 no regression · 1 regression beyond a margin · 2 wrong usage, or no cell that both have",
        "folders",
        ("score_margin=", "speed_margin=", "alpha=", "resamples=", "format=json", "format=markdown"),
    ),
    Command(
        "trend",
        "all runs of a folder over time, and where a number stepped",
        "DIR [out=DIR] [format=json|markdown]",
        "Orders runs by time, series by series (model, N, task, check, gate, budget, hit rate), looks for steps, "
        "and names the first run behind each with what changed in its configuration and versions. "
        "Draws trend.png and trend.svg.",
        (
            ("out=DIR", "where the figure goes; DIR otherwise"),
            ("format=json", "for programs"),
            ("format=markdown", "for a job's summary"),
        ),
        (
            ("trend results", "since when is it slower?"),
            ("trend nightly out=site format=markdown", "for a page"),
        ),
        "0 · 2 no run there · 3 the figure can't be written",
        "folders",
        ("out=", "format=json", "format=markdown"),
    ),
    Command(
        "figures",
        "draw a run's figures as PNG and SVG into its folder",
        "RUN…",
        "Draws every figure that a run has the data for; stdout has the paths, stderr what was left out and why.",
        (),
        (("figures results/20260131-235959-pocket-batched_tokens", "of one run"),),
        "0 · 2 no run there · 3 can't be written",
        "folders",
    ),
    Command(
        "clean",
        "end and remove what killed runs have left; results are kept",
        "RUN… | RESULTS",
        "Finds processes that a killed harness has left by their recorded pid and start time, never by name, ends them "
        "and removes their shared memory and temporary folders.",
        (("RUN", "a results folder; the folder of all results stands for every run in it"),),
        (("clean results/<run id>", "as a warning of the next run says"), ("clean results", "after a bad night")),
        "0 nothing is left · 3 a process can't be ended",
        "folders",
    ),
    Command(
        "selftest",
        "does the gate bite? known damage must be seen",
        "[short] [field=value …] | from=RUN[,RUN] [into=DIR]",
        "Damages what the cache holds by known kinds and doses, and reports what the gate says of it.",
        (
            ("short", "fewer kinds and doses"),
            ("from=RUN", "summarize runs that were made"),
            ("into=DIR", "keep the first of them in a small form"),
            OVERRIDES,
        ),
        (
            ("selftest short task.limit=100", "a few minutes"),
            ("selftest from=results/<run id>", "its summary again"),
        ),
        "0 it bites · 1 it does not, or raises a false alarm · 4 too little was measured",
        "overrides",
        ("short", "from=", "into="),
    ),
    Command(
        "diagnose",
        "what went wrong, from logs of vLLM and LMCache",
        "LOG_OR_FOLDER… [format=json]",
        "Names the first cause with the line that shows it and what mends it; logs need not be the harness's own.",
        (FORMAT,),
        (
            ("diagnose results/20260131-235959-pocket-smoke", "of a run"),
            ("diagnose vllm.log lmcache.log", "of servers that were started by hand"),
        ),
        "0 nothing is seen · 1 something went wrong · 2 no log there, or none of vLLM or LMCache",
        "folders",
        ("format=json",),
    ),
    Command(
        "doctor",
        "is this machine ready for a run? one line per check, each with a remedy",
        "[field=value …] [format=json]",
        "Looks at versions, GPUs, memory, /dev/shm, disk, ports, the model, hash seed and launchers, and starts "
        "nothing. Takes a run's overrides.",
        (OVERRIDES, FORMAT),
        (
            ("doctor", "before the first run"),
            ("doctor model=qwen3_6_27b task=gsm8k", "is everything there for this one?"),
        ),
        "0 nothing fails · 2 wrong usage · 3 something fails",
        "overrides",
        ("format=json",),
    ),
    Command(
        "completion",
        "a shell's completion of the installed harness command",
        "bash|zsh|fish",
        "Prints a script that completes commands, config groups with their options, and folders of runs.",
        (),
        (
            ("completion bash > ~/.local/share/bash-completion/completions/harness", "for good"),
            ("completion fish > ~/.config/fish/completions/harness.fish", "the same in fish"),
        ),
        "0 · 2 wrong usage",
        "nothing",
        ("bash", "zsh", "fish"),
    ),
)

COMMANDS = {each.name: each for each in _ALL}


def usage() -> str:
    """What ``--help`` prints."""
    width = max(map(len, COMMANDS))
    lines = [f"  {each.name:{width}} {each.summary}" for each in COMMANDS.values()]
    return "\n".join(
        [
            f"usage: {PROGRAM} COMMAND …",
            "",
            *lines,
            "",
            f"{PROGRAM} COMMAND --help has examples. First steps:",
            *_examples((("doctor", "is this machine ready?"), ("run", "the main job: two minutes on two cores"))),
        ]
    )


def help_of(command: Command, groups: dict[str, list[str]] | None = None) -> str:
    """What ``COMMAND --help`` prints.

    Args:
        command: which.
        groups: config group -> its options, where the command takes overrides.
    """
    lines = [f"usage: {PROGRAM} {command.name} {command.usage}".rstrip(), "", *_wrapped(command.about)]
    if command.words:
        width = max(len(word) for word, _ in command.words)
        lines += ["", *(f"  {word:{width}}  {told}" for word, told in command.words)]
    if groups:
        width = max(map(len, groups)) + 1
        lines += ["", "config groups:", *(f"  {name + '=':{width}} {' '.join(each)}" for name, each in groups.items())]
    return "\n".join([*lines, "", "examples:", *_examples(command.examples), "", f"exit codes: {command.codes}"])


def _examples(examples: tuple[tuple[str, str], ...]) -> list[str]:
    return [line for typed, why in examples for line in (f"  {PROGRAM} {typed}", f"      {why}")]


def _wrapped(text: str, width: int = 100) -> list[str]:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines
