"""Command lines and environments of both servers: the recipes' arguments, and nobody else's in their place."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.config import EngineConfig, ModelConfig, RunConfig
from harness.errors import UsageError
from harness.servers.commands import (
    OWNED_BY_HARNESS,
    check_extra_args,
    lmcache_command,
    served_path,
    shown,
    vllm_command,
)
from harness.servers.environment import OVERLAY, added_environment, server_environment

VLLM_ARGS = "servers.vllm.extra_args"
LMCACHE_ARGS = "servers.lmcache.extra_args"


def config(path: str = "Qwen/Qwen3.6-27B", **model: object) -> RunConfig:
    run = RunConfig()
    run.model = ModelConfig(name="model", path=path, **model)  # type: ignore[arg-type]
    run.engine = EngineConfig(name="gpu")
    return run


def vllm(run: RunConfig, budget: int = 1567) -> list[str]:
    return vllm_command(run, budget=budget, port=8001, lmcache_port=5556)


def lmcache(run: RunConfig, chunk_size: int = 784, l2_dir: Path | None = None) -> list[str]:
    return lmcache_command(run, chunk_size=chunk_size, port=5556, http_port=8090, l2_dir=l2_dir)


def has(command: list[str], arguments: str) -> bool:
    """Whether these arguments stand in the command, unchanged and in this order."""
    wanted = arguments.split()
    return any(command[i : i + len(wanted)] == wanted for i in range(len(command)))


def value(command: list[str], name: str) -> str:
    assert command.count(name) == 1, name
    return command[command.index(name) + 1]


def test_recipe_of_qwen36_27b() -> None:
    run = config(separate_object_groups=False)
    run.servers.lmcache.l1_size_gb = 100
    assert has(lmcache(run), "--chunk-size 784 --l1-size-gb 100 --eviction-policy LRU")
    command = vllm(run)
    assert has(command, "serve Qwen/Qwen3.6-27B")
    assert has(command, "--enable-prefix-caching --mamba-cache-mode align --max-num-batched-tokens 1567")
    assert "--separate-object-groups" not in lmcache(run)
    for argument in ("--tensor-parallel-size", "--kv-cache-dtype", "--block-size", "--max-model-len"):
        assert argument not in command, "the recipe leaves it to vLLM"


def test_recipe_of_qwen35_08b() -> None:
    run = config("Qwen/Qwen3.5-0.8B")
    assert has(lmcache(run, 544), "--chunk-size 544")
    assert has(vllm(run, 1087), "--mamba-cache-mode align --max-num-batched-tokens 1087")


def test_recipe_of_flash_next_on_8_gpus() -> None:
    run = config("Qwen/Qwen3.8-Flash-Next", tensor_parallel_size=8)
    command = lmcache(run, 400)
    assert has(command, "--chunk-size 400")
    assert "--separate-object-groups" in command
    assert int(value(command, "--max-workers")) >= 8, "fewer workers than ranks give 0 hits that look clean"
    assert has(vllm(run, 799), "--tensor-parallel-size 8")
    assert has(vllm(run, 799), "--max-num-batched-tokens 799")


@pytest.mark.parametrize(("tp", "asked", "workers"), [(1, None, None), (1, 4, "4"), (8, None, "8"), (2, 16, "16")])
def test_workers(tp: int, asked: int | None, workers: str | None) -> None:
    run = config(tensor_parallel_size=tp)
    run.servers.lmcache.max_workers = asked
    command = lmcache(run)
    assert (value(command, "--max-workers") if workers else None) == workers
    assert workers or "--max-workers" not in command


def test_the_connector_loads_both_ways_and_a_failed_load_is_no_recompute() -> None:
    transfer = json.loads(value(vllm(config()), "--kv-transfer-config"))
    assert transfer == {
        "kv_connector": "LMCacheMPConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "fail",
        "kv_connector_extra_config": {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": 5556},
    }


def test_both_bind_loopback_on_the_ports_given() -> None:
    assert has(lmcache(config()), "--host 127.0.0.1 --port 5556 --http-host 127.0.0.1 --http-port 8090")
    assert has(vllm(config()), "--served-model-name model --host 127.0.0.1 --port 8001")
    assert not any("0.0.0.0" in argument for argument in lmcache(config()) + vllm(config()))


def test_vllm_is_told_what_the_harness_needs() -> None:
    command = vllm(config())
    assert "--enable-prompt-tokens-details" in command
    assert int(value(command, "--shutdown-timeout")) > 0, "without it vLLM leaks its shared memory"


def test_settings_of_the_model_and_the_engine_reach_vllm() -> None:
    run = config(
        block_size=64, max_model_len=4096, kv_cache_dtype="fp8", vllm_args=["--dtype", "bfloat16"],
    )  # fmt: skip
    run.engine.vllm_args = ["--enforce-eager"]
    run.servers.vllm.extra_args = ["--seed", "1"]
    command = vllm(run)
    assert value(command, "--block-size") == "64"
    assert value(command, "--max-model-len") == "4096"
    assert value(command, "--kv-cache-dtype") == "fp8"
    assert has(command, "--dtype bfloat16 --enforce-eager")
    assert command[-2:] == ["--seed", "1"]


def test_file_l2_is_json() -> None:
    assert "--l2-adapter" not in lmcache(config())
    adapter = json.loads(value(lmcache(config(), l2_dir=Path('/tmp/l2 "x"')), "--l2-adapter"))
    assert adapter == {"type": "fs", "base_path": '/tmp/l2 "x"'}


def test_other_interpreters_run_the_servers() -> None:
    run = config()
    run.servers.vllm.python, run.servers.lmcache.python = "/a/python", "/b/python"
    assert vllm(run)[:3] == ["/a/python", "-m", "vllm.entrypoints.cli.main"]
    assert lmcache(run)[:3] == ["/b/python", "-m", "lmcache.cli.main"]


def test_shown_as_a_person_would_type_it() -> None:
    assert shown(vllm(config()))[:3] == ["vllm", "serve", "Qwen/Qwen3.6-27B"]
    assert shown(lmcache(config()))[:3] == ["lmcache", "server", "--chunk-size"]


def test_a_checkpoint_folder_is_absolute_since_servers_work_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "checkpoint")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for written in ("checkpoint", "./checkpoint", "~/checkpoint", str(tmp_path / "checkpoint")):
        assert has(vllm(config(written)), f"serve {tmp_path / 'checkpoint'}")
    assert served_path("link") == str(tmp_path / "link"), "the path is part of LMCache's key"
    assert served_path("Qwen/Qwen3.6-27B") == "Qwen/Qwen3.6-27B"


OWNED = [(field, name) for field, owned in OWNED_BY_HARNESS.items() for name in owned]


def with_arguments(field: str, arguments: list[str]) -> RunConfig:
    run = config()
    holder = {
        VLLM_ARGS: run.servers.vllm,
        LMCACHE_ARGS: run.servers.lmcache,
        "model.vllm_args": run.model,
        "engine.vllm_args": run.engine,
    }[field]
    setattr(holder, field.rsplit(".", 1)[1], arguments)
    return run


@pytest.mark.parametrize(("field", "name"), OWNED)
def test_owned_arguments_are_refused_in_every_form(field: str, name: str) -> None:
    forms = [[f"{name}=1"], [name, "1"], ["--seed", "3", name], [name[:2] + name[2:].replace("-", "_") + "=1"]]
    for arguments in forms:
        with pytest.raises(UsageError) as error:
            check_extra_args(with_arguments(field, arguments))
        message = str(error.value)
        assert message.startswith(f"{field} contains ")
        assert f"sets {name}," in message
        assert message.endswith(f"{OWNED_BY_HARNESS[field][name]}.")


@pytest.mark.parametrize(
    ("argument", "whole"),
    [
        ("--max-num-batched=800", "--max-num-batched-tokens"),
        ("--kv-transfer-config.kv_load_failure_policy=recompute", "--kv-transfer-config"),
        ("--kv_transfer_config.kv_role", "--kv-transfer-config"),
        ("--tensor-par", "--tensor-parallel-size"),
        ("-tp=2", "-tp"),
    ],
)
def test_abbreviations_and_keys_are_no_way_round(argument: str, whole: str) -> None:
    with pytest.raises(UsageError, match=f"contains {argument}, which sets {whole}"):
        check_extra_args(with_arguments(VLLM_ARGS, [argument, "x"]))


@pytest.mark.parametrize("field", ["model.vllm_args", "engine.vllm_args"])
def test_model_and_engine_may_not_set_them_either(field: str) -> None:
    with pytest.raises(UsageError, match=rf"^{field} contains --max-num-batched-tokens=9, .*: set sweep\.budgets\.$"):
        check_extra_args(with_arguments(field, ["--max-num-batched-tokens=9"]))


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        (VLLM_ARGS, ["--gpu-memory-utilization", "0.8", "--max-num-seqs=600", "--trust-remote-code", "-O3"]),
        (VLLM_ARGS, ["--compilation-config.cudagraph_mode=none", "--model-loader-extra-config", "{}", "--", "-"]),
        (LMCACHE_ARGS, ["--hash-algorithm", "sha256", "--null-block-id=0", "--max-workers-not-yet-known", "2"]),
        ("model.vllm_args", ["--language-model-only"]),
        ("engine.vllm_args", ["--enforce-eager"]),
        (VLLM_ARGS, []),
    ],
)
def test_everything_else_is_let_through(field: str, arguments: list[str]) -> None:
    check_extra_args(with_arguments(field, arguments))


# Environment


def cpu(run: RunConfig) -> RunConfig:
    run.engine = EngineConfig(name="cpu", overlay=True, env={"OMP_NUM_THREADS": "2"})
    return run


def test_both_engines_get_what_a_comparison_needs() -> None:
    for run in (config(), cpu(config())):
        env = server_environment(run, {"PATH": "/bin", "PYTHONHASHSEED": "77", "HF_TOKEN": "secret"})
        assert env["VLLM_SERVER_DEV_MODE"] == "1"
        assert env["PYTHONHASHSEED"] == "0", "hash seeds must agree, whatever the caller has"
        assert env["DO_NOT_TRACK"] == env["VLLM_NO_USAGE_STATS"] == "1"
        assert env["PATH"] == "/bin"
        assert "HF_TOKEN" in env and "HF_TOKEN" not in added_environment(run)


def test_the_overlay_is_for_the_cpu_engine_only() -> None:
    assert "PYTHONPATH" not in server_environment(config(), {})
    assert server_environment(config(), {"PYTHONPATH": "/mine"})["PYTHONPATH"] == "/mine"
    assert server_environment(cpu(config()), {})["PYTHONPATH"] == str(OVERLAY)
    assert (OVERLAY / "sitecustomize.py").is_file()


def test_the_callers_path_is_kept_behind_the_overlay() -> None:
    env = server_environment(cpu(config()), {"PYTHONPATH": "/mine:/other"})
    assert env["PYTHONPATH"].split(os.pathsep) == [str(OVERLAY), "/mine", "/other"]
    assert server_environment(cpu(config()), {"PYTHONPATH": ""})["PYTHONPATH"] == str(OVERLAY)


def test_the_engines_environment_wins() -> None:
    run = cpu(config())
    run.engine.env["NO_COLOR"] = "0"
    env = server_environment(run, {"OMP_NUM_THREADS": "64"})
    assert (env["OMP_NUM_THREADS"], env["NO_COLOR"]) == ("2", "0")
    assert "OMP_NUM_THREADS" not in server_environment(config(), {})


def test_the_hub_is_off_with_a_local_checkpoint_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "HF_HUB_OFFLINE" not in server_environment(config("Qwen/Qwen3.6-27B"), {})
    assert server_environment(config(str(tmp_path)), {})["HF_HUB_OFFLINE"] == "1"
    monkeypatch.setenv("HOME", str(tmp_path))
    assert server_environment(config("~"), {})["HF_HUB_OFFLINE"] == "1"


def test_the_callers_environment_is_the_default_and_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_TEST_VARIABLE", "x")
    before = dict(os.environ)
    assert server_environment(cpu(config()))["HARNESS_TEST_VARIABLE"] == "x"
    assert dict(os.environ) == before
