"""Wrong configurations: each is refused in one sentence with field, value and accepted form, and nothing is started."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from harness import cli, plan, runner
from harness.checking import ARGUMENTS, CHOICES, NAMES, NOT_EMPTY, POCKET_ONLY, RANGES, check_values
from harness.config import GeometryConfig, RunConfig, load_config
from harness.errors import UsageError
from harness.model.geometry import geometry_from_config
from harness.overrides import check_switches, fields_of
from harness.servers.process import ServerProcess

Captured = pytest.CaptureFixture[str]

# Overrides -> fragments of the sentence: the field, the value, and what to write.
Row = tuple[Sequence[str], Sequence[str]]

UNKNOWN: list[Row] = [
    (["model=qwen3_6_27"], ["model/qwen3_6_27'", "did you mean qwen3_6_27b?"]),
    (["sweep=smok"], ["sweep/smok'", "did you mean smoke?"]),
    (["check=reset_wram"], ["check/reset_wram'", "did you mean reset_warm?"]),
    (["task=gsm9k"], ["task/gsm9k'", "did you mean gsm8k?"]),
    (["gate=equivalance"], ["gate/equivalance'", "did you mean equivalence?"]),
    (["engine=gpuu"], ["engine/gpuu'", "did you mean gpu?"]),
    (["engine=sglang"], ["engine=sglang", "use engine=gpu"]),
    (["check=[reset_warm,boundry]"], ["check.arms: 'boundry' is no check", "did you mean boundary?"]),
    (["taks.limit=3"], ["'taks.limit'", "did you mean task.limit?"]),
    (["load.concurency=3"], ["'load.concurency'", "did you mean load.concurrency?"]),
    (["servers.lmcache.chunksize=3"], ["'servers.lmcache.chunksize'", "did you mean servers.lmcache.chunk_size?"]),
    (["model.zzzzzzzzzzzzzzz=x"], ["'model.zzzzzzzzzzzzzzz'", "known: model.name, model.path"]),
    (["+task.limt=3"], ["task.limt", "'limt'", "did you mean limit?"]),
    (["+foo=1"], ["foo: Key 'foo'", "known: model, sweep"]),
    (["++gate.alhpa=1"], ["gate.alhpa", "did you mean alpha?"]),
    (["gate.mode=tots"], ["gate.mode=tots", "did you mean tost?"]),
    (["gate.on_inconclusive=wran"], ["gate.on_inconclusive=wran", "did you mean warn?"]),
    (["check.warm_from=lmcach"], ["check.warm_from=lmcach", "did you mean lmcache?"]),
    (["check.load_failures=recompte"], ["check.load_failures=recompte", "did you mean recompute?"]),
    (["task.name=pockt"], ["task.name=pockt", "did you mean pocket?"]),
    (["engine.name=gpux"], ["engine.name=gpux", "did you mean gpu?"]),
    (["model.kv_cache_dtype=bfloat"], ["model.kv_cache_dtype=bfloat", "did you mean bfloat16?"]),
    (["task.filter=strict-macth"], ["task.filter=strict-macth", "did you mean strict-match?"]),
    (["task=gsm8k", "task.filter=flexible"], ["task.filter=flexible", "did you mean flexible-extract?"]),
    (["task.metric=f1"], ["task.metric=f1", "known: exact_match"]),
    (["+model.support.vlm=validated"], ["model.support.vlm=validated", "did you mean vllm?"]),
    (["+model.support.vllm=validatd"], ["model.support.vllm=validatd", "did you mean validated?"]),
    (["check=selftest", "sweep.damage=[truncatd]"], ["sweep.damage: 'truncatd'", "did you mean truncated?"]),
    (["check.cell=[rest_local]"], ["check reset_warm: cell, step 1: 'rest_local'", "did you mean reset_local?"]),
    (["model=qwen3_6_27b", "model.geometry.dtype=bfloat"], ["model.geometry.dtype=bfloat", "did you mean bfloat16?"]),
    (["model=qwen3_6_27b", "model.geometry.layrs=1"], ["'model.geometry.layrs'", "model.geometry.layers?"]),
]  # fmt: skip

TYPES: list[Row] = [
    (["task.limit=three"], ["task.limit", "'three'", "Integer"]),
    (["task.limit=true"], ["task.limit", "'True'", "Integer"]),
    (["task.limit=2.5"], ["task.limit", "'2.5'", "Integer"]),
    (["load.concurrency=0x10"], ["load.concurrency", "'0x10'", "Integer"]),
    (["load.concurrency=null"], ["load.concurrency", "not Optional"]),
    (["gate.margin=yes"], ["gate.margin", "'yes'", "Float"]),
    (["gate.alpha=true"], ["gate.alpha", "'True'", "Float"]),
    (["strict=2"], ["strict=2", "true or false"]),
    (["allow_unvalidated=yes"], ["allow_unvalidated=yes", "true or false"]),
    (["task.long_answers=1"], ["task.long_answers=1", "true or false"]),
    (["model.separate_object_groups=3"], ["model.separate_object_groups=3", "true or false"]),
    (["engine.overlay=maybe"], ["engine.overlay=maybe", "true or false"]),
    (["check.connector=0"], ["check.connector=0", "true or false"]),
    (["check.preempts=7"], ["check.preempts=7", "true or false"]),
    (["check.file_l2=on"], ["check.file_l2=on", "true or false"]),
    (["check.linked_checkpoint=2"], ["check.linked_checkpoint=2", "true or false"]),
    (["check.damage_module=5"], ["check.damage_module=5", "true or false"]),
    (["sweep.budgets=2N-1"], ["sweep.budgets=2N-1", "list"]),
    (["check.launch=clear"], ["check.launch=clear", "list"]),
    (["check.cell=[[clear]]"], ["check reset_warm: cell, step 1", "did you mean clear?"]),
    (["check.arms=reset_warm"], ["check.arms=reset_warm", "list"]),
    (["model.vllm_args=--seed"], ["model.vllm_args=--seed", "list"]),
    (["model.vllm_args=[{a: b}]"], ["model.vllm_args", "{'a': 'b'}", "write texts"]),
    (["servers.vllm.extra_args=[null]"], ["servers.vllm.extra_args", "NoneType"]),
    (["task.tail_tokens=[1.5]"], ["task.tail_tokens", "'1.5'", "Integer"]),
    (["+engine.env.FOO=[1]"], ["engine.env.FOO", "[1]"]),
    (["+engine.env.FOO=null"], ["engine.env.FOO", "not Optional"]),
    (["engine.env=x"], ["engine.env", "Dict[str, str]"]),
    (["model.geometry={layers: 1}"], ["model.geometry", "one field at a time"]),
    (["+check.variants.one=3"], ["variants.one", "steps are a list"]),
]  # fmt: skip

RANGED: list[Row] = [
    (["task.limit=0"], ["task.limit=0", "between 1 and"]),
    (["task.limit=1000000"], ["task.limit=1000000", "between 1 and 100000"]),
    (["task.floor=nan"], ["task.floor=nan", "between 0 and"]),
    (["task.floor=1"], ["task.floor=1", "between 0 and 0.999"]),
    (["task.seed=-1"], ["task.seed=-1", "between 0 and"]),
    (["load.seed=99999999999999999999"], ["load.seed=9999", "between 0 and"]),
    (["load.concurrency=20000"], ["load.concurrency=20000", "between 1 and 10000"]),
    (["load.request_timeout_s=inf"], ["load.request_timeout_s=inf", "between"]),
    (["load.sample_hz=5"], ["load.sample_hz=5", "between 10 and"]),
    (["gate.alpha=0.5"], ["gate.alpha=0.5", "0.49"]),
    (["gate.alpha=-inf"], ["gate.alpha=-inf", "between"]),
    (["gate.tolerance=2"], ["gate.tolerance=2", "between 0 and 1"]),
    (["gate.hit_rate_tolerance=-0.1"], ["gate.hit_rate_tolerance=-0.1", "between 0 and 1"]),
    (["gate.local_hit_tolerance=nan"], ["gate.local_hit_tolerance=nan", "between 0 and 1"]),
    (["model.parameters_b=0"], ["model.parameters_b=0", "between 0.001 and"]),
    (["model.gpus=-1"], ["model.gpus=-1", "between 0 and"]),
    (["engine.kernel_alignment=0"], ["engine.kernel_alignment=0", "between 1 and 1024"]),
    (["engine.kernel_alignment=17"], ["engine.kernel_alignment=17", "a power of two"]),
    (["engine.default_block_size=-1"], ["engine.default_block_size=-1", "between 1 and"]),
    (["servers.lmcache.start_timeout_s=0"], ["servers.lmcache.start_timeout_s=0", "between 1 and"]),
    (["check.kv_blocks_per_request=nan"], ["check.kv_blocks_per_request=nan", "between 0.1 and"]),
    (["check.launch=[clear,{pass: {name: cold, concurrency: 99999}}]"], ["concurrency=99999", "from 1 to 10000"]),
    (["sweep.repeats=0"], ["sweep.repeats=0", "between 1 and"]),
    (["gate.looks=0"], ["gate.looks=0", "between 1 and 100"]),
    (["gate=quick", "gate.interim_alpha=1"], ["gate.interim_alpha=1", "between 0.001 and 0.9"]),
    (["model=qwen3_6_27b", "model.geometry.head_dim=0"], ["model.geometry.head_dim=0", "between 1 and"]),
]  # fmt: skip

SWEEPS: list[Row] = [
    (["sweep.budgets=[two blocks]"], ["sweep.budgets: 'two blocks'", "write a number or N, 1.5N, 2N-1"]),
    (["sweep.budgets=[true]"], ["sweep.budgets: 'True'", "write a number"]),
    (["sweep.budgets=[-5]"], ["sweep.budgets: '-5'", "write a number"]),
    (["sweep.budgets=[1.5]"], ["sweep.budgets: '1.5'", "write a number"]),
    (["sweep.budgets=[63]"], ["a budget of 63 tokens", "sweep.budgets=[2N-1]"]),
    (["sweep.budgets=['٣٠٠']"], ["sweep.budgets: '٣٠٠'", "write a number"]),
    (["sweep.budgets=[999999999N]"], ["a budget of 999999999N", "more than 10,000,000"]),
    (["sweep.budgets=[127,2N-1]"], ["sweep.budgets=[127, '2N-1']", "the same budget twice at N = 64"]),
    (["sweep.hit_rates=[1.2]"], ["sweep.hit_rates: 1.2", "from 0 to 1"]),
    (["sweep.hit_rates=[fulll]"], ["sweep.hit_rates: 'fulll'", "or full for all"]),
    (["sweep.hit_rates=[nan]"], ["sweep.hit_rates: nan", "from 0 to 1"]),
    (["sweep.hit_rates=[0,-0.0]"], ["sweep.hit_rates=[0, -0.0]", "twice"]),
    (["sweep.hit_rates=[1.0]"], ["hit_rates: 1 can't be reached", "0.907", "use a lower one"]),
    (["sweep.shard=3/2"], ["sweep.shard=3/2 is no shard", "1/2 and 2/2"]),
    (["sweep.shard=1/2"], ["sweep.shard=1/2: the sweep has 1 launch ", "too few for 2 shards"]),
    (["servers.attach=true"], ["servers.attach=true needs servers.vllm.url", "http://127.0.0.1:8000"]),
    (["servers.vllm.url=http://h:1"], ["servers.vllm.url=http://h:1", "add servers.attach=true"]),
    (["check=divergence", "sweep.diverge_after=[1.0]"], ["sweep.diverge_after: 1.0", "whole numbers"]),
    (["check=divergence", "sweep.diverge_after=[100]"], ["sweep.diverge_after: 100 blocks", "lower it"]),
    (["check=selftest", "sweep.damage=[truncated@2]"], ["'truncated@2'", "above 0 and at most 1"]),
    (["check=selftest", "sweep.damage=[truncated@nan]"], ["'truncated@nan'", "above 0 and at most 1"]),
]  # fmt: skip

TOGETHER: list[Row] = [
    (["gate.margin=0.4"], ["gate.margin=0.4", "task.floor=0.3", "smaller"]),
    (["gate=quick", "gate.mode=threshold"], ["gate.looks=5 needs gate.mode=tost", "Use gate.looks=1"]),
    (["gate=quick", "sweep.hit_rates=[full,0.5]"], ["gate.looks=5", "sweep.hit_rates=['full', 0.5]", "equivalence"]),
    (["gate=quick", "sweep.budgets=[N,2N-1]"], ["gate.looks=5", "sweep.budgets=['N', '2N-1']", "equivalence"]),
    (["gate=quick", "sweep.repeats=2"], ["gate.looks=5", "sweep.repeats=2", "use gate=equivalence"]),
    (["gate=quick", "check=divergence"], ["gate.looks=5", "sweep.diverge_after=[5, 3]", "use gate=equivalence"]),
    (["gate=quick", "sweep=selftest"], ["gate.looks=5", "sweep.damage=", "use gate=equivalence"]),
    (["gate=quick", "check=restart_vllm"], ["gate.looks=5", "restart step", "use check=reset_warm"]),
    (["gate=quick", "task.limit=4"], ["gate.looks=5", "4 are asked", "raise task.limit"]),
    (["task.min_fewshot=9", "task.max_fewshot=3"], ["task.min_fewshot=9", "task.max_fewshot=3"]),
    (["task.min_blocks=50"], ["task.min_blocks=50", "task.blocks=6", "raise task.blocks"]),
    (["task.max_gen_toks=5000"], ["task.max_gen_toks=5000", "model.max_model_len=4096", "lower it"]),
    (["task.blocks=64"], ["task.blocks=64", "model.max_model_len=4096", "lower task.blocks"]),
    (["task.tail_tokens=[99999999]"], ["task.tail_tokens=[99999999]", "smaller than N"]),
    (["task.tail_tokens=[]"], ["tail_tokens=[]", "from -63 to 64"]),
    (["task.shared_blocks=7"], ["shared_blocks=7", "blocks=6 is too few"]),
    (["task=gsm8k", "task.shared_blocks=2"], ["task.shared_blocks=2", "task.name=gsm8k", "task.shared_blocks=0"]),
    (["task=gsm8k", "task.long_answers=true"], ["task.long_answers=True", "task.long_answers=false"]),
    (["engine=cpu", "model=qwen3_5_35b_a3b"], ["model=qwen3_5_35b_a3b needs 1 NVIDIA GPU", "engine=cpu uses none"]),
    (["servers.lmcache.chunk_size=63"], ["hunk_size=63", "multiple of N = 64", "servers.lmcache.chunk_size=64"]),
    (["check.connector=false", "check.warm_from=nothing", "check.file_l2=true"],
     ["check.file_l2=true", "check.connector=false"]),
    (["check.warm_from=vllm"], ["check.warm_from=vllm", "reset_local", "take the step out"]),
    (["check.connector=false"], ["connector: false", "LMCache can't serve"]),
    (["check=mixed", "check.cell=[reset_local,{prime: 9},{pass: warm}]"], ["first 9 blocks", "make prompts longer"]),
    (["check.arms=[all]"], ["check.arms: 'all'", "name those"]),
    (["check.arms=[reset_warm,reset_warm]"], ["check.arms", "twice"]),
    (["check=all", "replay=/nonexistent"], ["replay=/nonexistent", "check.arms=", "leave check out"]),
    (["check=all", "sweep=selftest"], ["sweep.damage=", "check.arms=", "use another sweep"]),
    (["model=qwen3_6_27b", "model.geometry.attention_layers=65"], ["attention_layers=65", "model.geometry.layers=64"]),
    (["model.tensor_parallel_size=3"], ["model.tensor_parallel_size=3", "does not divide"]),
]  # fmt: skip

NAMES_AND_PATHS: list[Row] = [
    (["run_id=a/b"], ["run_id=a/b", "plain folder name"]),
    (["run_id=../x"], ["run_id=../x", "plain folder name"]),
    (["run_id=.hidden"], ["run_id=.hidden", "begins with a letter or a digit"]),
    (["run_id=-x"], ["run_id=-x", "begins with a letter or a digit"]),
    (["run_id="], ["run_id=", "plain folder name"]),
    (["run_id=" + 200 * "a"], ["run_id=aaa", "at most 150"]),
    (["check=all", "run_id=a/b"], ["run_id=a/b", "plain folder name"]),
    (["resume=../x"], ["resume=../x", "leave results_dir out"]),
    (["model.name='a b'"], ["model.name=a b", "plain folder name"]),
    (["sweep.name=../x"], ["sweep.name=../x", "plain folder name"]),
    (["check.name="], ["check.name=", "plain folder name"]),
    (["gate.name=a/b"], ["gate.name=a/b", "plain folder name"]),
    (["model.path=/etc/passwd"], ["model.path=/etc/passwd", "give a checkpoint folder"]),
    (["model.path=configs"], ["model.path=configs", "holds no config.json"]),
    (["model.path=a/b/c"], ["model.path=a/b/c", "an id such as"]),
    (["model.path=--help"], ["model.path=--help", "an id such as"]),
    (["model.path=''"], ["model.path=", "give a value"]),
    (["task=gsm8k", "task.data_dir=/nonexistent"], ["task.data_dir=/nonexistent", "train.jsonl and test.jsonl"]),
    (["task=gsm8k", "task.data_dir=/etc/passwd"], ["task.data_dir=/etc/passwd", "train.jsonl and test.jsonl"]),
    (["task=gsm8k", "task.data_dir=''"], ["task.data_dir=", "leave it out"]),
    (["task.data_dir=/tmp"], ["task.data_dir=/tmp", "task.name=pocket makes its own"]),
    (["results_dir=/etc/passwd"], ["results_dir=/etc/passwd", "give a folder"]),
    (["results_dir=''"], ["results_dir=", "give a"]),
    (["servers.vllm.python=/tmp"], ["servers.vllm.python=/tmp", "give an interpreter"]),
    (["servers.lmcache.python=/etc/passwd"], ["servers.lmcache.python=/etc/passwd", "give an interpreter"]),
    (["servers.vllm.python=''"], ["servers.vllm.python=", "leave it out"]),
    (["replay=''"], ["replay=", "give"]),
    (["replay=/nonexistent"], ["replay=/nonexistent", "holds no bundle.json"]),
    (["resume=nope"], ["holds no run of that name"]),
]  # fmt: skip

TEXTS: list[Row] = [
    (["run_id='a\nb'"], ["run_id='a\\nb'", "control character"]),
    (["+engine.env.FOO='a\x00b'"], ["engine.env.FOO='a\\x00b'", "control character"]),
    (["model.support_source=" + 5000 * "x"], ["model.support_source=xxx", "at most 4096"]),
    (["model.support_source=''"], ["model.support_source=", "leave it out"]),
    (["task.limit=???"], ["task.limit=???", "give one"]),
    (["model.name=${nope}"], ["model.name", "'nope' not found"]),
    (["task.limit=${oc.env:NOPE_X}"], ["task.limit", "'NOPE_X' not found"]),
    (["servers.vllm.extra_args=['']"], ["servers.vllm.extra_args", "''", "no argument"]),
    (["servers.vllm.extra_args=[serve]"], ["servers.vllm.extra_args", "'serve'", "has to come first"]),
    (["servers.lmcache.extra_args=['--a b']"], ["servers.lmcache.extra_args", "'--a b'", "two texts"]),
    (["engine.vllm_args=[--port,'1']"], ["engine.vllm_args contains --port", "picks a free port"]),
    (["servers.vllm.extra_args=[--help]"], ["servers.vllm.extra_args contains --help"]),
    (["servers.vllm.extra_args=[--headless]"], ["servers.vllm.extra_args contains --headless"]),
    (["+engine.env.PYTHONHASHSEED='1'"], ["engine.env.PYTHONHASHSEED", "leave it out"]),
    (["+engine.env.TMPDIR=/x"], ["engine.env.TMPDIR", "leave it out"]),
    (["~gate"], ["gate.name", "missing mandatory value"]),
    (["model=null"], ["Config group override must be a string or a list"]),
    (["+model=pocket"], ["model appears more than once"]),
]  # fmt: skip

ROWS = [*UNKNOWN, *TYPES, *RANGED, *SWEEPS, *TOGETHER, *NAMES_AND_PATHS, *TEXTS]


def installed(python: str, env: object) -> dict[str, str]:
    """In place of asking interpreters, which takes seconds for so many rows."""
    found = {"python": "3.11", "vllm": "0.32.0", "lmcache": "0.5.6"}
    return found if python == sys.executable else {}


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("something was started")

    for module in (runner, plan):
        monkeypatch.setattr(module, "gpus", list, raising=False)
    monkeypatch.setattr(plan, "versions", installed)
    monkeypatch.setattr(
        runner,
        "versions_of",
        lambda pythons, env: {name: installed(python or sys.executable, env) for name, python in pythons.items()},
    )
    monkeypatch.setattr(runner, "Stack", start)
    monkeypatch.setattr(ServerProcess, "start", start)
    monkeypatch.setattr(subprocess, "Popen", start)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


def test_there_are_enough_rows() -> None:
    assert len(ROWS) >= 80
    assert len({tuple(overrides) for overrides, _ in ROWS}) == len(ROWS)


@pytest.mark.parametrize(("overrides", "told"), ROWS, ids=[" ".join(each[0])[:60] for each in ROWS])
def test_a_wrong_configuration(overrides: Sequence[str], told: Sequence[str], tmp_path: Path, capsys: Captured) -> None:
    given = {override.split("=")[0] for override in overrides}
    ours = {"engine": "cpu", "results_dir": str(tmp_path / "results")}
    before = {each.name for each in Path.cwd().iterdir()}
    argv = ["run", *(f"{name}={value}" for name, value in ours.items() if name not in given), *overrides]
    assert cli.main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert "Traceback" not in err and "\x1b" not in err
    for fragment in told:
        assert fragment in err
    assert not (tmp_path / "results").exists()
    assert {each.name for each in Path.cwd().iterdir()} == before


def test_a_right_configuration_gets_as_far_as_the_start(tmp_path: Path) -> None:
    """So that the rows above are refused for what is wrong in them."""
    argv = ["run", "engine=cpu", f"results_dir={tmp_path / 'results'}", "task.limit=3"]
    assert cli.main(argv) == 3, "the guard's AssertionError"
    assert (tmp_path / "results").exists()


# --- every field -------------------------------------------------------------------------------------------

EXEMPT = {
    "task.tail_tokens": "rows above: each within a block of N",
    "model.path": "a folder or a hub id: harness/places.py",
    "model.support_source": "free text, of one line",
    "task.data_dir": "a folder: harness/places.py",
    "task.filter": "choices depend on the task: SCORING",
    "task.metric": "choices depend on the task: SCORING",
    "sweep.shard": "harness/checking.py, shard_numbers; and harness/sweep.py",
    "servers.vllm.url": "harness/addresses.py", "servers.lmcache.url": "harness/addresses.py",
    "servers.vllm.python": "asked before the start: runner.check_installed",
    "servers.lmcache.python": "asked before the start: runner.check_installed",
    "results_dir": "a folder: harness/places.py",
    "replay": "a folder: harness/repro/bundle.py",
    "model.recipe.source": "free text, not empty",
    "sweep.budgets": "harness/sweep.py", "sweep.hit_rates": "harness/sweep.py",
    "sweep.diverge_after": "harness/sweep.py",
    "sweep.damage": "harness/corruption.py", "sweep.damage_once": "harness/corruption.py",
    "check.launch": "harness/steps.py", "check.cell": "harness/steps.py", "check.seeded_cell": "harness/steps.py",
    "check.variants": "harness/steps.py", "check.arms": "harness/overrides.py",
    "model.recipe.lmcache": "words: _check_recipe", "model.recipe.vllm": "words: _check_recipe",
    "model.support": "features and statuses: _check_support",
    "engine.env": "names and texts: _check_variables, and servers/environment.py",
}  # fmt: skip
"""Fields that have neither a range nor a choice, and what checks them instead."""


def test_every_field_is_checked() -> None:
    groups = {name.rpartition(".")[0] for name, _ in fields_of(RunConfig)}
    for name, kind in fields_of(RunConfig):
        if name in groups:
            continue
        checked = (
            name in RANGES
            or name in CHOICES
            or name in NAMES
            or name in ARGUMENTS
            or name in POCKET_ONLY
            or name in EXEMPT
            or kind == "bool"  # check_switches
            or name.startswith("model.geometry.")  # all of them by _check_geometry
        )
        assert checked, f"{name}: {kind} has no range, no choice and no reason why not"


def test_no_exemption_is_left_over() -> None:
    names = {name for name, _ in fields_of(RunConfig)}
    assert {*EXEMPT, *RANGES, *CHOICES, *NAMES, *NOT_EMPTY, *ARGUMENTS, *POCKET_ONLY} <= names
    assert not set(EXEMPT) & {*RANGES, *CHOICES, *NAMES, *ARGUMENTS, *POCKET_ONLY}


@pytest.mark.parametrize("name", [name for name, kind in fields_of(RunConfig) if kind == "bool"])
def test_every_switch_takes_true_and_false_alone(name: str) -> None:
    check_switches([f"{name}=true", f"+{name}=False", f"{name}=true,false"])
    for value in ("1", "0", "yes", "null", ""):
        with pytest.raises(UsageError, match=rf"^{name}={value} is not a valid bool: write true or false\.$"):
            check_switches([f"{name}={value}"])


@pytest.mark.parametrize("name", GeometryConfig.__dataclass_fields__)
def test_every_part_of_a_geometry(name: str) -> None:
    geometry = {field: 8 for field in GeometryConfig.__dataclass_fields__ if "dtype" not in field} | {name: 0}
    plain = {"model": {"name": "m", "path": "a/b", "geometry": geometry}, **{
        group: {"name": value} for group, value in
        {"sweep": "s", "task": "gsm8k", "engine": "gpu", "gate": "g", "check": "c"}.items()
    }}  # fmt: skip
    with pytest.raises(UsageError, match=rf"^model\.geometry\.{name}=0 is "):
        load_config(OmegaConf.create(plain))


# --- YAML --------------------------------------------------------------------------------------------------

TRICKS = [
    ("engine: {env: {'A B': x}}", "'A B' is no name of a variable"),
    ("engine: {env: {'A=B': x}}", "'A=B' is no name of a variable"),
    ("engine: {env: {'': x}}", "'' is no name of a variable"),
    ("model: {pth: x}", "Key 'pth' not in 'ModelConfig'; did you mean path"),
    ("check: {variants: {'../x': [clear]}}", "check.variants"),
    ("model: {recipe: {source: ''}}", "model.recipe.source= is empty"),
    ("model: {recipe: {source: x, vllm: [8]}}", "model.recipe.vllm=['8'] begins with '8'"),
    ("model: {recipe: {source: x, vllm: ['8']}}", "model.recipe.vllm=['8'] begins with '8'"),
    ("task: {limit: 1_0}", None),
    ("task: {filter: no}", "task.filter"),
]


@pytest.mark.parametrize(("text", "told"), TRICKS)
def test_what_a_yaml_file_may_hold(text: str, told: str | None) -> None:
    groups = {"sweep": "s", "task": "gsm8k", "engine": "gpu", "gate": "g", "check": "c"}
    plain: dict[str, Any] = {name: {"name": value} for name, value in groups.items()}
    plain["model"] = {"name": "m", "path": "a/b"}
    config = OmegaConf.create(plain)
    try:
        config = OmegaConf.merge(config, yaml.safe_load(text))  # type: ignore[assignment]
        checked = load_config(config)
        from harness.steps import parse_check

        if "variants" in text:
            parse_check(checked.check)
    except UsageError as error:
        if "variants" in text:
            assert "a variant can't be called '../x'" in str(error)
        else:
            assert told is not None and told in str(error)
        assert "\n" not in str(error)
    else:
        assert told is None or told.endswith("=")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"num_hidden_layers": "four"}, "config.json gives"),
        ({"head_dim": 0}, "config.json gives 0 for the model's head_dim"),
        ({"head_dim": True}, "config.json gives True for the model's head_dim"),
        ({"linear_num_key_heads": 1.5}, "config.json gives 1.5"),
        ({"full_attention_interval": 0}, "config.json is not that of a checkpoint (ZeroDivisionError"),
        ({"layer_types": 3}, "config.json is not that of a checkpoint (TypeError"),
    ],
)
def test_a_config_json_with_other_values(change: dict[str, Any], told: str) -> None:
    fields = ("num_hidden_layers", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
              "linear_value_head_dim", "linear_conv_kernel_dim", "num_key_value_heads", "head_dim")  # fmt: skip
    config: dict[str, Any] = dict.fromkeys(fields, 4) | {"full_attention_interval": 4} | change
    with pytest.raises(UsageError) as caught:
        geometry_from_config(config)
    assert told in str(caught.value) or "config.json" in str(caught.value)


def test_a_text_config_of_another_kind() -> None:
    with pytest.raises(UsageError, match=r"config\.json is not that of a checkpoint"):
        geometry_from_config({"text_config": 3})


def test_check_values_needs_no_files() -> None:
    config = RunConfig()
    config.model.name, config.model.path = "m", "/nonexistent/checkpoint"
    config.sweep.name = config.gate.name = config.check.name = "x"
    config.task.name, config.engine.name = "gsm8k", "gpu"
    check_values(config)
