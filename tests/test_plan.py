"""The plan: for every shipped model, for programs and for people, and what stops a run."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from stack_support import composed

from harness import plan as planning
from harness.cli import configs_folder, main
from harness.errors import UsageError
from harness.model.geometry import geometry_from_config
from harness.model.importing import import_model
from harness.model.support import FEATURES, STATUSES
from harness.plan import added_arguments, as_json, make_plan, missing_hardware
from harness.pocket import CHECKPOINT
from harness.report.plan import print_plan
from harness.servers.commands import words
from harness.servers.environment import server_environment

MODELS = sorted(path.stem for path in (configs_folder() / "model").glob("*.yaml"))
RECIPES = {
    "qwen3_6_27b": (784, 1567, "--chunk-size 784 --l1-size-gb 100 --eviction-policy LRU"),
    "qwen3_5_0_8b": (544, 1087, "--chunk-size 544 --l1-size-gb 100 --eviction-policy LRU"),
    "qwen3_8_flash_next": (400, 799, "--chunk-size 400 --separate-object-groups --l1-size-gb 100"),
}

Captured = pytest.CaptureFixture[str]


def contains(whole: Sequence[str], part: Sequence[str]) -> bool:
    return any(list(whole[start : start + len(part)]) == list(part) for start in range(len(whole)))


@pytest.mark.parametrize(
    ("model", "block_size"),
    [
        ("pocket", 64),
        ("qwen3_5_0_8b", 544),
        ("qwen3_5_35b_a3b", 2096),
        ("qwen3_5_9b", 528),
        ("qwen3_6_27b", 784),
        ("qwen3_8_flash_next", 400),
    ],
)
def test_every_shipped_model_has_a_plan(model: str, block_size: int) -> None:
    assert model in MODELS
    plan = make_plan(composed(f"model={model}"))
    told = as_json(plan)
    assert told["unified_block_size"] == block_size
    assert told["budgets"] == [2 * block_size - 1]
    assert told["errors"] == []
    assert plan.config.engine.name == ("cpu" if model == "pocket" else "gpu")


def test_nothing_is_planned_that_was_not_listed() -> None:
    assert len(MODELS) == 6


@pytest.mark.parametrize("model", RECIPES)
def test_commands_hold_the_recipe_unchanged_and_name_what_is_added(model: str) -> None:
    block_size, budget, server = RECIPES[model]
    plan = make_plan(composed(f"model={model}"))
    (planned,) = plan.launches
    recipe = plan.config.model.recipe
    assert recipe is not None
    assert " ".join(recipe.lmcache).startswith(server)
    for arguments, published in ((planned.lmcache, recipe.lmcache), (planned.vllm, recipe.vllm)):
        line = words(arguments)
        added = added_arguments(arguments, published)
        assert sorted(line) == sorted([*published, *words(added)]), "the recipe, what is added, and nothing else"
        assert all(each.why for each in added)
    assert contains(words(planned.vllm), ["--max-num-batched-tokens", str(budget)])
    assert contains(words(planned.lmcache), ["--chunk-size", str(block_size)])
    (connector,) = [each for each in planned.vllm if each.words[0] == "--kv-transfer-config"]
    settings = json.loads(connector.words[1])
    assert (settings["kv_connector"], settings["kv_role"]) == ("LMCacheMPConnector", "kv_both")


def test_eight_ranks_get_eight_workers() -> None:
    (planned,) = make_plan(composed("model=qwen3_8_flash_next")).launches
    assert contains(words(planned.lmcache), ["--max-workers", "8"])
    assert contains(words(planned.vllm), ["--tensor-parallel-size", "8"])


def test_long_context_in_two_factors(capsys: Captured) -> None:
    assert main(["plan", "model=qwen3_5_35b_a3b"]) == 0
    out = capsys.readouterr().out
    assert "KV of all layers: 10,240 B per token" in out
    assert "KV at 262,144 tokens: 2.50 GiB; if all 40 layers kept KV in bfloat16: 20.00 GiB (81,920 B per token)" in out
    assert "the architecture saves 4 times" in out
    assert "the KV dtype another 2 times (5.00 GiB in bfloat16)" in out


@pytest.mark.parametrize("model", MODELS)
def test_models_state_what_is_known_of_them(model: str) -> None:
    config = composed(f"model={model}").model
    assert set(config.support) in (set(), set(FEATURES))
    assert set(config.support.values()) <= set(STATUSES)
    assert bool(config.support) == (model != "pocket") == bool(config.support_source)


def test_cost_of_a_sweep() -> None:
    plan = make_plan(composed("sweep.budgets=[N,2N-1]", "sweep.repeats=2", "task.limit=50"))
    told = as_json(plan)
    assert len(told["launches"]) == len(told["cells"]) == len(told["commands"]) == 4
    # control, cold, local_warm and warm of every launch
    assert (told["passes"], told["questions"], told["requests"]) == (16, 50, 800)
    assert told["prompt_tokens"] == 16 * sum(plan.prompt_tokens)
    assert told["prompt_tokens_estimated"] is False
    assert [warning["rule"] for warning in told["warnings"]] == ["budget of N"]
    assert list(told["power"]) == ["0.05", "0.10", "0.20"]


def test_sweeps_that_set_hit_rates_bring_prompts_that_can_have_them() -> None:
    plan = make_plan(composed("model=qwen3_6_27b", "sweep=batched_tokens", "task.limit=45"))
    assert plan.errors == []
    assert plan.config.task.name == "pocket" and plan.config.engine.name == "gpu"
    assert {round(plan.reachable(rate), 2) for rate in (0.0, 0.5, 0.97)} == {0.0, 0.5, 0.97}
    (error,) = make_plan(composed("model=qwen3_6_27b", "sweep=batched_tokens")).errors
    assert "300 prompts" in error.text and error.override == "servers.lmcache.l1_size_gb=617, or a smaller task.limit"


def test_prompts_of_a_model_that_is_not_here_are_estimated() -> None:
    told = as_json(make_plan(composed("model=qwen3_5_9b", "task.min_blocks=3")))
    assert told["prompt_tokens_estimated"] is True
    assert told["prompt_tokens"] / told["requests"] == 3 * 528 + 1 + 90


def test_json_for_programs_and_refusals_as_exit_codes(capsys: Captured) -> None:
    assert main(["plan", "format=json"]) == 0
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert {
        *("unified_block_size", "budgets", "cells", "launches", "commands", "kv_bytes_per_token", "warnings")
    } <= told.keys()
    assert main(["plan", "servers.lmcache.chunk_size=100", "format=json"]) == 2
    assert [error["rule"] for error in json.loads(capsys.readouterr().out)["errors"]] == ["chunk size"]
    assert main(["plan", "format=xml"]) == 2
    assert "format=xml is not known; known: text, json." in capsys.readouterr().err


@pytest.mark.parametrize(
    "override", ["model=nope", "gate=null", "sweep.budgets=[10]", "sweep.diverge_after=[4]", "task.limit=0", "junk"]
)
def test_a_plan_of_a_wrong_configuration(override: str, capsys: Captured) -> None:
    assert main(["plan", override]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("error: ") and err.count("\n") == 1


def test_secrets_of_arguments_are_not_shown(capsys: Captured) -> None:
    assert main(["plan", "servers.vllm.extra_args=[--redis-password,sesame]"]) == 2
    out, err = capsys.readouterr()
    assert "servers.vllm.extra_args contains --redis-password with a secret" in err and "sesame" not in out + err


@pytest.mark.parametrize("width", [60, 200])
def test_lines_are_not_cut(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO(), highlight=False)
    print_plan(console, make_plan(composed("model=qwen3_6_27b")))
    text = console.export_text()
    assert "…" not in text.replace("--kv-transfer-config …", "")
    assert "--max-num-batched-tokens 1567" in text


def test_sequences_that_have_blocks(capsys: Captured) -> None:
    # (80 GB x 0.92 - 54 GB of weights) / (16 layers x 784 tokens x 4,096 bytes)
    told = as_json(make_plan(composed("model=qwen3_6_27b", "engine.gpu_memory_gb=80")))
    assert told["max_num_seqs"] == int(19.6e9 / (16 * 784 * 4096)) == 381
    (warning,) = told["warnings"]
    assert warning["rule"] == "max_num_seqs above the Mamba blocks"
    assert "1024 (the default on large GPUs)" in warning["text"] and "--max-num-seqs 381" in warning["override"]
    fitting = composed(
        "model=qwen3_6_27b",
        "engine.gpu_memory_gb=80",
        "servers.vllm.extra_args=[--max-num-seqs,'400',--gpu-memory-utilization,'0.95']",
    )
    assert as_json(make_plan(fitting))["warnings"] == []
    assert as_json(make_plan(composed("model=qwen3_8_flash_next", "engine.gpu_memory_gb=80")))["max_num_seqs"] is None
    assert main(["plan", "model=qwen3_6_27b"]) == 0
    assert "engine.gpu_memory_gb=80, for one, tells how many" in capsys.readouterr().out


# --- hardware ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "gpus", "told"),
    [
        (["model=qwen3_6_27b"], 0, ["needs 1 NVIDIA GPU with 54 GB or more", "this machine has none", "model=pocket"]),
        (["model=qwen3_6_27b", "engine=cpu"], 8, ["engine=cpu uses none"]),
        (["model=qwen3_8_flash_next"], 4, ["needs 8 NVIDIA GPUs, and this machine has 4", "model=qwen3_8"]),
        (
            ["engine=gpu"],
            0,
            ["engine=gpu needs 1 NVIDIA GPU", "plan` and the same overrides", "use engine=cpu"],
        ),
    ],
)
def test_missing_gpus(overrides: list[str], gpus: int, told: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "gpus", lambda: [{}] * gpus)
    sentence = missing_hardware(composed(*overrides))
    assert sentence is not None
    assert all(each in sentence for each in told), sentence


def test_enough_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "gpus", lambda: [{}])
    assert missing_hardware(composed("model=qwen3_6_27b")) is None
    assert missing_hardware(composed()) is None


def test_a_run_without_its_gpus_stops_before_anything_starts(tmp_path: Path, capsys: Captured) -> None:
    assert main(["run", "model=qwen3_8_flash_next", f"results_dir={tmp_path / 'results'}"]) == 3
    err = capsys.readouterr().err
    assert "needs 8 NVIDIA GPUs" in err and err.count("\n") == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("engine", ["sglang", "trt_llm"])
def test_other_engines_are_refused_with_the_reason(engine: str, capsys: Captured) -> None:
    assert main(["run", f"engine={engine}"]) == 2
    assert "can't be run by this harness" in capsys.readouterr().err


# --- import ------------------------------------------------------------------------------------------------


def test_an_imported_model_is_planned_like_a_shipped_one(tmp_path: Path, capsys: Captured) -> None:
    assert main(["model", "import", str(CHECKPOINT), "name=mine", f"folder={tmp_path}"]) == 0
    assert "plan model=mine" in capsys.readouterr().out
    data = yaml.safe_load((tmp_path / "mine.yaml").read_text())
    assert data["path"] == str(CHECKPOINT)
    assert data["native_context"] == 8192
    config = json.loads((CHECKPOINT / "config.json").read_text())
    assert data["geometry"]["attention_layers"] == geometry_from_config(config).attention_layers == 1
    assert data["defaults"] == [{"override /engine@_global_.engine": "gpu"}]


def test_names_of_imported_models(tmp_path: Path) -> None:
    config = json.loads((CHECKPOINT / "config.json").read_text()) | {"_name_or_path": "Some/Model-7.5B"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    written = import_model(tmp_path / "config.json", tmp_path)
    assert written.name == "model_7_5b.yaml"
    assert yaml.safe_load(written.read_text())["path"] == "Some/Model-7.5B"
    with pytest.raises(UsageError, match="is there already"):
        import_model(tmp_path / "config.json", tmp_path)
    with pytest.raises(UsageError, match="can't name a model"):
        import_model(tmp_path / "config.json", tmp_path, name="Not A Name")
    with pytest.raises(UsageError, match="can't be written"):
        import_model(tmp_path / "config.json", tmp_path / "missing", name="x")


@pytest.mark.parametrize("argv", [[], ["export"], ["import"], ["import", "a", "b"], ["import", "a", "size=3"]])
def test_an_import_that_is_not_clear(argv: list[str], capsys: Captured) -> None:
    assert main(["model", *argv]) == 2
    assert "model import needs one config.json" in capsys.readouterr().err


# --- the real parsers --------------------------------------------------------------------------------------

VLLM_PARSER = """
import json, sys
import vllm.entrypoints.cli.serve as serve
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
serve.ServeSubcommand().subparser_init(parser.add_subparsers(dest="command"))
for line in json.load(sys.stdin):
    parsed = parser.parse_args(line[1:])
    assert parsed.max_num_batched_tokens == int(line[line.index("--max-num-batched-tokens") + 1])
print("parsed")
"""

LMCACHE_PARSER = """
import argparse, json, sys
from lmcache.cli.commands import register_commands
parsers = argparse.ArgumentParser()
register_commands(parsers.add_subparsers(dest="command"), ["server"])
for line in json.load(sys.stdin):
    parsed = parsers.parse_args(line[1:])
    assert parsed.chunk_size == int(line[line.index("--chunk-size") + 1])
print("parsed")
"""


@pytest.mark.stack
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("server", "parser"), [("vllm", VLLM_PARSER), ("lmcache", LMCACHE_PARSER)])
def test_the_installed_servers_accept_every_planned_command(server: str, parser: str) -> None:
    lines = []
    for model in MODELS:
        for budgets in ("N", "2N-1", "4N"):
            plan = as_json(make_plan(composed(f"model={model}", f"sweep.budgets=[{budgets}]")))
            lines += [commands[server] for commands in plan["commands"].values()]
    environment = server_environment(composed())
    result = subprocess.run(
        [sys.executable, "-c", parser],
        input=json.dumps(lines),
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert result.stdout.endswith("parsed\n"), result.stderr[-2000:]
