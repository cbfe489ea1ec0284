"""The command line: ``python -m harness run …`` and its sisters."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from rich.console import Console

from harness.arms import arm_overrides, check_arms, read_arms, run_arms, with_arms
from harness.checking import first_line, nearest
from harness.config import RunConfig, load_config
from harness.diagnosis.diagnose import diagnose
from harness.diagnosis.files import logs_below, read_log
from harness.errors import HarnessError, Interrupted, UsageError
from harness.model.importing import import_model
from harness.model.support import FEATURES, OTHER_ENGINES
from harness.overrides import check_missing, check_switches, hydra_sentence
from harness.plan import as_json, make_plan
from harness.pocket import CHECKPOINT
from harness.report.attribution import print_attribution
from harness.report.diagnosis import diagnoses_as_json, print_diagnoses
from harness.report.plan import print_plan
from harness.report.progress import RunProgress
from harness.report.terminal import print_run
from harness.repro.replay import replayed_config
from harness.resume import is_bare, resumed_config
from harness.runner import run
from harness.store import RunFolder, read_json

COMMANDS = {
    "run": "measure and judge: python -m harness run model=pocket sweep=smoke task.limit=100",
    "plan": "what a run would do, without server or GPU: python -m harness plan model=qwen3_6_27b [format=json]",
    "model": "write a model's YAML: python -m harness model import CONFIG.json [name=… path=… folder=configs/model]",
    "report": "summary, and report.html, .md, junit.xml: python -m harness report results/<run id> … [out=DIR]",
    "selftest": "does the gate bite, by known damage? python -m harness selftest [short] [from=results/<run id>]",
    "diagnose": "what went wrong in logs of vLLM and LMCache: python -m harness diagnose LOG_OR_FOLDER… [format=json]",
    "figures": "draw a run's figures as PNG and SVG into its folder: python -m harness figures results/<run id>",
}

WHOLE_GROUPS = (
    "model.geometry and model.recipe are set in a model's YAML or one field at a time, +model.geometry.layers=1."
)

SEVERITY = (130, 3, 2, 1, 4, 0)
"""Exit codes from worst to best: what a multirun ends with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # lm-eval, datasets and the hub's client would draw bars of their own over ours; read when they are imported.
    os.environ.setdefault("TQDM_DISABLE", "1")
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    command, *rest = arguments
    try:
        with interruptible():
            if command == "run":
                return run_command(rest)
            if command == "plan":
                return plan_command(rest)
            if command == "model":
                return model_command(rest)
            if command == "report":
                return report_command(rest)
            if command == "selftest":
                from harness.selftest.command import selftest_command

                return selftest_command(rest, run_command, compose_config)
            if command == "figures":
                return figures_command(rest)
            if command == "diagnose":
                return diagnose_command(rest)
            raise UsageError(f"{command} is no command; {nearest(command, list(COMMANDS))}")
    except HarnessError as error:
        return complain(error)
    except Exception:
        # Python's own exit code for a crash is 1, which here means that the model changed.
        Console(stderr=True).print_exception()
        return HarnessError.exit_code
    except KeyboardInterrupt:
        Console(stderr=True).print("interrupted: nothing of this run goes on", style="yellow")
        return Interrupted.exit_code


def usage() -> str:
    """What ``--help`` prints."""
    lines = [f"  {name:8} {text}" for name, text in COMMANDS.items()]
    return "usage: python -m harness COMMAND …\n\n" + "\n".join(lines)


def run_command(overrides: Sequence[str]) -> int:
    """``run``: a Hydra application, so overrides, ``--cfg job`` and ``--multirun`` work as everywhere.

    Raises:
        UsageError: Hydra can't compose the configuration.
    """
    codes: list[int] = []
    composing = True

    def job(composed: DictConfig) -> None:
        nonlocal composing
        composing = False
        codes.append(run_one(composed, HydraConfig.get().overrides.task, bare=is_bare(list(overrides))))

    register()
    check_switches(overrides)
    check_missing(overrides)
    # Hydra would print its errors itself and exit with 1; here they are usage errors like any other.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Flags first: behind them argparse takes no further overrides.
    sys.argv = [
        "harness run",
        *sorted(with_engine(with_arms(overrides)), key=lambda word: word not in ("-m", "--multirun")),
    ]
    try:
        hydra.main(version_base="1.3", config_path=str(configs_folder()), config_name="run")(job)()
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(hydra_sentence(error)) from error
    except ValueError as error:
        if composing:  # what Hydra makes of gate=null
            raise UsageError(f"{first_line(error)}.") from error
        raise
    except AttributeError as error:
        if composing:  # and of a whole group for a field that has none: model.geometry={layers: 1}
            raise UsageError(f"{first_line(error)}: {WHOLE_GROUPS}") from error
        raise
    except SystemExit as stop:
        return int(stop.code) if isinstance(stop.code, int) else 2
    return min(codes, key=SEVERITY.index, default=0)


def run_one(composed: DictConfig, overrides: Sequence[str], *, bare: bool = False) -> int:
    """One job of a (multi)run, from its composed configuration to its exit code.

    Args:
        composed: the configuration.
        overrides: of this job, as they were typed.
        bare: whether a run is resumed and nothing else was said.
    """
    try:
        if composed.check.arms:
            return run_all_arms(load_config(composed), overrides)
        config = load_config(composed) if composed.replay is None else replayed_config(composed, overrides)
        if config.resume is not None:
            config = resumed_config(config, bare=bare)
        with RunProgress() as progress:
            folder, record, code = run(config, progress)
    except HarnessError as error:
        return complain(error)
    cells = folder.cells()
    print_run(Console(), record, cells, str(folder.path))
    if len(cells) > 1:
        draw_at_the_end(folder.path)
    report_at_the_end(folder.path)
    return code


def run_all_arms(config: RunConfig, overrides: Sequence[str]) -> int:
    """Runs a check that consists of others, and ends in the attribution table.

    Args:
        config: of the whole.
        overrides: of this job, as they were typed.
    """
    check_arms(config.check.arms, sorted(each.stem for each in (configs_folder() / "check").glob("*.yaml")))

    def compose(arm: str) -> RunConfig:
        return load_config(hydra.compose("run", overrides=arm_overrides(overrides, arm)))

    def shown(path: Path) -> None:
        folder = RunFolder(path)
        print_run(Console(), read_json(path / "run.json"), folder.cells(), str(path))

    with RunProgress() as progress:
        arms = run_arms(config, compose, progress, shown)
    print_attribution(Console(), arms.records)
    print(f"results: {arms.path}")
    report_at_the_end(arms.path)
    return arms.exit_code


def draw_at_the_end(path: Path) -> None:
    """Draws the figures of a sweep that is over; what goes wrong is told and changes neither verdict nor exit code."""
    with RunProgress() as progress:
        progress.stage("drawing figures")
        try:
            from harness.report.figures import write_figures

            drawn = write_figures(path)
        except Exception as error:
            told = str(error).rstrip(".") or type(error).__name__
            progress.warn(f"figures were not drawn: {told}. Try again: python -m harness figures {path}")
        else:
            progress.done(f"{len(drawn.written)} files in {path / 'figures'}")


def report_at_the_end(path: Path) -> None:
    """Writes the report of a run that is over; what goes wrong is told and changes neither verdict nor exit code."""
    with RunProgress() as progress:
        progress.stage("writing the report")
        try:
            from harness.report.files import write_report
            from harness.report.runs import expand, read_run

            page = write_report([read_run(each) for each in expand([path])], path)
        except Exception as error:
            told = str(error).rstrip(".") or type(error).__name__
            progress.warn(f"the report was not written: {told}. Try again: python -m harness report {path}")
        else:
            progress.done(f"report: {page.resolve().as_uri()}")


def plan_command(arguments: Sequence[str]) -> int:
    """``plan``: the same overrides as ``run``; exit code 2 where rules refuse the run.

    Raises:
        UsageError: the configuration can't be composed, or leaves nothing to plan.
    """
    chosen, overrides = split_format(arguments)
    config = compose_config(overrides)
    if config.replay is not None:
        raise UsageError(
            f"plan knows no replay=: what it would send and with which configuration is in {config.replay}."
        )
    plan = make_plan(config)
    if chosen == "json":
        print(json.dumps(as_json(plan), indent=2))
    else:
        print_plan(Console(highlight=False), plan)
    return UsageError.exit_code if plan.errors else 0


def compose_config(overrides: Sequence[str]) -> RunConfig:
    """The checked configuration that overrides give.

    Raises:
        UsageError: Hydra can't compose it, or a value is wrong.
    """
    register()
    check_switches(overrides)
    check_missing(overrides)
    try:
        with hydra.initialize_config_dir(version_base="1.3", config_dir=str(configs_folder().resolve())):
            composed = hydra.compose("run", overrides=with_engine(overrides))
    except (HydraException, OmegaConfBaseException) as error:
        raise UsageError(hydra_sentence(error)) from error
    except ValueError as error:  # what Hydra makes of gate=null
        raise UsageError(f"{first_line(error)}.") from error
    except AttributeError as error:  # see run_command
        raise UsageError(f"{first_line(error)}: {WHOLE_GROUPS}") from error
    return load_config(composed)


def model_command(arguments: Sequence[str]) -> int:
    """``model import``: writes a model's YAML.

    Raises:
        UsageError: what is asked for is not clear, or can't be done.
    """
    action, *rest = [*arguments, ""]
    fields = dict(word.split("=", 1) for word in rest if "=" in word)
    files = [word for word in rest if word and "=" not in word]
    if action != "import" or len(files) != 1 or not fields.keys() <= {"name", "path", "folder"}:
        raise UsageError(
            "model import needs one config.json or checkpoint folder: "
            "python -m harness model import CONFIG.json [name=… path=… folder=…]"
        )
    folder = Path(fields.get("folder", configs_folder() / "model"))
    written = import_model(Path(files[0]).expanduser(), folder, fields.get("name"), fields.get("path"))
    print(f"wrote {written}; what it implies: python -m harness plan model={written.stem}")
    return 0


def report_command(arguments: Sequence[str]) -> int:
    """``report``: the summary again and the report's files, from results folders alone.

    Raises:
        UsageError: no folder was named, one holds no run, or several lie in different places and no ``out=`` was given.
        HarnessError: the report can't be written; the summary was shown.
    """
    folders = [Path(word) for word in arguments if not word.startswith("out=")]
    named = [word.partition("=")[2] for word in arguments if word.startswith("out=")]
    if not folders:
        raise UsageError("report needs a results folder: python -m harness report results/<run id>")
    if "" in named:
        raise UsageError("out= needs a folder: out=DIR")
    # jinja2 and pandas, which other commands need not wait for
    from harness.report.files import folder_for, write_report
    from harness.report.runs import expand, read_run

    paths = expand(folders)
    folder = folder_for(paths, Path(named[-1]) if named else None)
    for argument in folders:
        if (Path(argument) / "attribution.json").is_file():
            print_attribution(Console(), read_arms(Path(argument)))
    runs = []
    for path in paths:
        runs.append(read_run(path))
        try:
            print_run(Console(), runs[-1].record, runs[-1].cells, str(path))
        except (KeyError, TypeError) as error:
            # The terminal's summary reads fields as they are now; the page does with what there is.
            print(f"{path} was written by another version: its summary lacks {error}, the report shows what there is")
    page = write_report(runs, folder)
    print(f"report: {page.resolve().as_uri()}")
    return 0


def figures_command(arguments: Sequence[str]) -> int:
    """``figures``: draws what results folders have the data for; paths on stdout, what was skipped on stderr.

    Raises:
        UsageError: no folder was named, or it holds no run.
        HarnessError: a folder can't be written.
    """
    if not arguments:
        raise UsageError("figures needs a results folder: python -m harness figures results/<run id>")
    from harness.report.figures import write_figures  # matplotlib: half a second that other commands need not wait

    for argument in arguments:
        drawn = write_figures(Path(argument))
        for path in drawn.written:
            print(path)
        for name, reason in drawn.skipped.items():
            print(f"skipped {name}: {reason}", file=sys.stderr)
    return 0


def diagnose_command(arguments: Sequence[str]) -> int:
    """``diagnose``: causes, evidence and remedies; exit code 1 where something went wrong, 0 where nothing is seen.

    Raises:
        UsageError: no log was named, or one is not there or can't be read.
    """
    chosen, paths = split_format(arguments)
    if not paths:
        raise UsageError("diagnose needs logs or a folder of them: python -m harness diagnose results/<run id>")
    diagnoses = {folder: diagnose([read_log(file) for file in files]) for folder, files in logs_below(paths).items()}
    if chosen == "json":
        print(json.dumps(diagnoses_as_json(diagnoses), indent=2))
    else:
        print_diagnoses(Console(highlight=False), diagnoses)
    return 1 if any(diagnosis.wrong for diagnosis in diagnoses.values()) else 0


def split_format(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """The output format that ``format=…`` chooses, ``text`` without it, and the other arguments.

    Raises:
        UsageError: the format is not known.
    """
    formats = [word.partition("=")[2] for word in arguments if word.startswith("format=")]
    if any(chosen not in ("text", "json") for chosen in formats):
        raise UsageError(f"format={formats[-1]} is not known; known: text, json.")
    return formats[-1] if formats else "text", [word for word in arguments if not word.startswith("format=")]


def complain(error: HarnessError) -> int:
    """Tells a failure on stderr and returns its exit code."""
    Console(stderr=True, highlight=False).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
    return error.exit_code


def configs_folder() -> Path:
    """Folder of the shipped configs: beside the package in a checkout, inside it in a wheel."""
    checkout = Path(__file__).parent.parent / "configs"
    return checkout if checkout.is_dir() else Path(__file__).parent / "configs"


def register() -> None:
    """Tells Hydra the typed schema of ``configs/`` and what configs can't know: where the pocket checkpoint lies."""
    ConfigStore.instance().store(name="schema", node=RunConfig)
    OmegaConf.register_new_resolver("pocket_checkpoint", lambda: str(CHECKPOINT), replace=True)


def with_engine(overrides: Sequence[str]) -> list[str]:
    """The overrides, with ``engine=gpu`` where the machine has an NVIDIA GPU and nobody chose an engine, as a
    stored configuration did.
    """
    chosen = [override.partition("=")[2] for override in overrides if override.lstrip("+~").startswith("engine=")]
    for name in chosen:
        if name in OTHER_ENGINES:
            raise UsageError(
                f"engine={name}: {FEATURES[OTHER_ENGINES[name]]} can't be run by this harness, and is not validated "
                "with LMCache for every model here (python -m harness plan model=… lists it): use engine=gpu, which "
                "is vLLM."
            )
    has_gpu = Path("/proc/driver/nvidia/gpus").is_dir() and any(Path("/proc/driver/nvidia/gpus").iterdir())
    stored = is_bare(list(overrides)) or any(override.startswith("replay=") for override in overrides)
    return [*overrides] if chosen or stored or not has_gpu else [*overrides, "engine=gpu"]


@contextmanager
def interruptible() -> Iterator[None]:
    """Turns SIGINT, SIGTERM and SIGHUP into an exception, so that servers are stopped on the way out.

    The second signal cuts the graceful stop short, and further ones are ignored: then the rest is being killed.
    """
    received = 0

    def handle(signum: int, frame: FrameType | None) -> None:
        nonlocal received
        received += 1
        if received <= 2:
            raise Interrupted(signal.Signals(signum).name)

    previous = {each: signal.signal(each, handle) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
