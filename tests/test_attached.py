"""Servers that run already (``servers.attach=true``): looked at, measured, and left alone."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fault_support import Scene, run_arguments

from harness import cli, runner
from harness.config import RunConfig
from harness.errors import UsageError
from harness.measure.counters import parse_counters
from harness.servers.attached import NOT_KNOWN, check_attachable
from harness.servers.ports import LOOPBACK, free_ports, give_back
from harness.servers.vllm import VllmServer
from harness.steps import parse_check
from harness.sweep import launches

STANDIN = Path(__file__).with_name("standin_servers.py")
SERVER_INFO = "/server_info?config_format=json"


def vllm_config(budget: int = 127, **changes: Any) -> dict[str, Any]:
    """What GET /server_info says, with the sections that are looked at."""
    told: dict[str, Any] = {
        "scheduler_config": {"max_num_batched_tokens": budget},
        "cache_config": {"enable_prefix_caching": True, "mamba_cache_mode": "align"},
        "kv_transfer_config": {"kv_connector": "LMCacheMPConnector", "kv_load_failure_policy": "fail"},
    }
    for name, value in changes.items():
        section = next(each for each in told.values() if name in each)
        section[name] = value
    return {"vllm_config": told}


class Outside:
    """Both stand-ins, started as somebody else would."""

    def __init__(self, folder: Path, **faults: dict[str, Any]) -> None:
        self.ports = free_ports(3)
        port, http_port, vllm_port = self.ports
        self.lmcache, self.vllm = f"http://{LOOPBACK}:{http_port}", f"http://{LOOPBACK}:{vllm_port}"
        env = {"STANDIN_FAULTS": json.dumps(faults), "TMPDIR": str(folder), "PYTHONUNBUFFERED": "1"}
        connector = json.dumps({"kv_connector_extra_config": {"lmcache.mp.port": port}})
        self.processes = [
            subprocess.Popen([sys.executable, "-I", "-S", STANDIN, *words], env=env, stdout=subprocess.DEVNULL)
            for words in (
                ["-m", "lmcache.cli.main", "server", "--port", str(port), "--http-port", str(http_port)],
                ["-m", "vllm.entrypoints.cli.main", "serve", "x", "--port", str(vllm_port)],
            )
            if words[1].startswith("lmcache") or not self._wait(http_port)
            for words in [[*words, *(["--kv-transfer-config", connector] if words[1].startswith("vllm") else [])]]
        ]
        self._wait(vllm_port)

    @staticmethod
    def _wait(port: int) -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            with socket.socket() as one:
                if one.connect_ex((LOOPBACK, port)) == 0:
                    return
            time.sleep(0.02)
        raise AssertionError(f"nothing listens on {port}")

    def overrides(self) -> list[str]:
        return ["servers.attach=true", f"servers.vllm.url={self.vllm}", f"servers.lmcache.url={self.lmcache}/"]

    def counters(self) -> dict[str, float]:
        with urllib.request.urlopen(f"{self.vllm}/metrics") as page:
            return parse_counters(page.read().decode())

    def alive(self) -> bool:
        return all(process.poll() is None for process in self.processes)

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
            process.wait()
        give_back(self.ports)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Scene]:
    scene = Scene(tmp_path, monkeypatch, capfd)
    yield scene
    scene.close()


@pytest.fixture
def start(scene: Scene) -> Iterator[Any]:
    started: list[Outside] = []

    def start(**faults: dict[str, Any]) -> Outside:
        folder = scene.temporary / f"outside{len(started)}"
        folder.mkdir()
        started.append(Outside(folder, **faults))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def arguments(scene: Scene, outside: Outside, *more: str) -> list[str]:
    """As a run of the scene, but of servers that run already."""
    own = [each for each in run_arguments(scene.folder) if not each.startswith(("servers.", "run"))]
    return [*own, *outside.overrides(), "load.request_timeout_s=10", "run_id=run", *more]


def attached(scene: Scene, outside: Outside, *more: str) -> tuple[int, str]:
    code = cli.main(["run", *arguments(scene, outside, *more)])
    return code, scene.capfd.readouterr().err


def test_a_doctor_asks_them_and_resets_nothing(scene: Scene, start: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VllmServer, "reset_prefix_cache", lambda self: pytest.fail("it was reset"))
    outside = start(vllm={"says": {SERVER_INFO: vllm_config()}})
    assert cli.main(["doctor", *arguments(scene, outside)]) == 0
    told = " ".join(scene.capfd.readouterr().out.split())
    assert f"{outside.vllm} and {outside.lmcache}/ can be measured" in told
    assert "max num batched tokens 127" in told and "does not say its chunk size" in told
    assert "gpus" not in told and "memory" not in told, "what it takes to start servers"
    assert outside.alive()


def test_a_doctor_tells_what_a_run_would_refuse(scene: Scene, start: Any) -> None:
    outside = start(vllm={"says": {SERVER_INFO: vllm_config()}})
    for more, why in (
        ("sweep.budgets=[128]", "--max-num-batched-tokens 127, and sweep.budgets=[128] is 128"),
        ("sweep.budgets=[N,2N-1]", "The sweep has 2 launches"),
        ("check=restart_vllm", "has a restart step"),
    ):
        assert cli.main(["doctor", *arguments(scene, outside, more)]) == 3
        assert why in " ".join(scene.capfd.readouterr().out.split())


def test_a_run_measures_them_and_leaves_them_alone(scene: Scene, start: Any) -> None:
    says = {"vllm": {"says": {"/version": {"version": "0.33.1"}, SERVER_INFO: vllm_config()}},
            "lmcache": {"says": {"/version": '"0.6.0"', "/config": {"mp": {"chunk_size": 64}}}}}  # fmt: skip
    outside = start(**says)
    code, err = attached(scene, outside)
    assert code == 0, err
    assert scene.servers == [], "no process was started"
    assert outside.alive()
    record = scene.record()
    (cell,) = scene.results.glob("run/cells/*/cell.json")
    judged = json.loads(cell.read_text())
    assert judged["verdict"] == "inconclusive" and all(each["ok"] for each in judged["validity"])
    assert judged["hit_rate"]["measured"] > 0.8
    (launch,) = record["launches"].values()
    assert launch["commands"] == {} and launch["unified_block_size"] == 64
    assert launch["attached"]["max_num_batched_tokens"] == 127 and launch["attached"]["served_model"] == "pocket"
    assert record["provenance"]["attached"] is True
    assert record["provenance"]["versions"] == {"vllm": {"vllm": "0.33.1"}, "lmcache": {"lmcache": "0.6.0"}}
    assert record["warnings"] == [NOT_KNOWN] and NOT_KNOWN in " ".join(err.split())


def test_what_a_server_does_not_say_is_said_to_be_not_known(scene: Scene, start: Any) -> None:
    code, err = attached(scene, start())
    assert code == 0, err
    record = scene.record()
    assert record["provenance"]["versions"] == {"vllm": {}, "lmcache": {}}
    told = " ".join(record["warnings"])
    assert "does not say how it was started (GET /server_info): that its budget is 127" in told
    assert "does not say its chunk size (GET /config): it is taken to be 64 tokens" in told


def test_a_validity_check_that_misses_is_still_invalid(scene: Scene, start: Any) -> None:
    """LMCache says that it stores, and holds nothing."""
    monkeypatch_settle = start(lmcache={"stores": "get lost"})
    code, err = attached(scene, monkeypatch_settle)
    assert code in (3, 4), err


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"vllm": {"says": {"/v1/models": {"data": [{"id": "other", "max_model_len": 4096}]}}}}, "serves other, and"),
    ({"vllm": {"says": {SERVER_INFO: vllm_config(2048)}}}, "batched-tokens 2048, and sweep.budgets=['2N-1'] is 127"),
    ({"vllm": {"says": {SERVER_INFO: vllm_config(enable_prefix_caching=False)}}}, "--enable-prefix-caching False"),
    ({"vllm": {"says": {SERVER_INFO: vllm_config(mamba_cache_mode="none")}}}, "--mamba-cache-mode none"),
    ({"vllm": {"says": {SERVER_INFO: vllm_config(kv_connector=None)}}}, "kv_connector none"),
    ({"vllm": {"says": {SERVER_INFO: vllm_config(kv_load_failure_policy="recompute")}}}, "_failure_policy recompute"),
    ({"lmcache": {"says": {"/config": {"mp": {"chunk_size": 256}}}}}, "use servers.lmcache.chunk_size=256"),
]  # fmt: skip


@pytest.mark.parametrize(("faults", "told"), WRONG, ids=[told for _, told in WRONG])
def test_servers_that_can_not_be_compared(scene: Scene, start: Any, faults: dict[str, Any], told: str) -> None:
    outside = start(**faults)
    code, err = attached(scene, outside)
    assert code == 2
    assert told in err and "Traceback" not in err
    assert "vllm:prompt_tokens_total" not in outside.counters() or outside.counters()["vllm:prompt_tokens_total"] == 0
    assert outside.alive()


def test_a_vllm_without_its_development_mode(scene: Scene, start: Any) -> None:
    """The stand-in answers 404 to what it does not know."""
    outside = start(vllm={"refuse_resets": -1})
    code, err = attached(scene, outside)
    assert code == 3 and "to reset its prefix cache" in err
    assert "look at its log there" in err, "there is no log to quote"


def test_nobody_answers(scene: Scene, start: Any) -> None:
    outside = start()
    outside.stop()
    code, err = attached(scene, outside)
    assert code == 3
    assert "LMCache does not answer GET" in err and "was not started by the harness" in err
    assert scene.record()["status"] == "failed"


def test_a_server_that_serves_somebody_else(scene: Scene, start: Any) -> None:
    busy = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 2\n"
    busy += "# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting 1\n"
    busy += '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="64"} 1\n'
    code, err = attached(scene, start(vllm={"says": {"/metrics": busy}}))
    assert code == 3 and "is answering 3 requests of somebody else" in err


ADDRESSES: list[tuple[list[str], str]] = [
    (["servers.attach=true"], "servers.attach=true needs servers.vllm.url"),
    (["servers.attach=true", "servers.vllm.url=http://h:1"], "needs servers.lmcache.url"),
    (["servers.vllm.url=http://h:1"], "add servers.attach=true, or leave it out"),
]


@pytest.mark.parametrize(("overrides", "told"), ADDRESSES, ids=[told for _, told in ADDRESSES])
def test_addresses_are_needed(overrides: list[str], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        cli.compose_config(["engine=cpu", *overrides])


BOTH = ["servers.attach=true", "servers.vllm.url=http://h:1", "servers.lmcache.url=http://h:2"]


@pytest.mark.parametrize(
    "url",
    ["h:8000", "ftp://h", "http://", "http://h:x", "http://h/v1", "'http://h?a=1'", "'http://h h'", "'http://h#a'"],
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(UsageError, match=r"^servers\.vllm\.url=.* (is no address|has more than a base address)"):
        cli.compose_config(["engine=cpu", *BOTH, f"servers.vllm.url={url}"])


@pytest.mark.parametrize("url", ["http://u@h", "http://u:p@h:1"])
def test_no_secret_in_an_address(url: str) -> None:
    with pytest.raises(UsageError, match=r"^servers\.vllm\.url .*(password|secret)"):
        cli.compose_config(["engine=cpu", *BOTH, f"servers.vllm.url={url}"])


@pytest.mark.parametrize(
    "override",
    ["servers.vllm.python=x", "servers.lmcache.extra_args=[--a]", "check=flipped_bytes", "check=stale_checkpoint",
     "check=no_connector", "check=restart_lmcache", "check=selftest", "check=preemption", "check=l2"],
)  # fmt: skip
def test_what_only_a_start_could_give(override: str) -> None:
    with pytest.raises(UsageError, match=r"says how a server is to be started, and servers\.attach=true starts none"):
        cli.compose_config(["engine=cpu", *BOTH, override])


def planned(*overrides: str) -> tuple[RunConfig, Any, Any]:
    config = cli.compose_config(["engine=cpu", *BOTH, *overrides])
    check = parse_check(config.check)
    return config, check, launches(config.sweep, 64, list(check.variants))


@pytest.mark.parametrize("check", ["restart_vllm"])
def test_nothing_is_started_anew(check: str) -> None:
    _, parsed, plan = planned(f"check={check}")
    with pytest.raises(UsageError, match=f"check {check} has a restart step, and servers.attach=true starts nothing"):
        check_attachable(parsed, plan)


def test_one_launch() -> None:
    _, parsed, plan = planned("sweep.budgets=[2N-1,4N]")
    with pytest.raises(UsageError, match="The sweep has 2 launches"):
        check_attachable(parsed, plan)
    for fine in ("reset_warm", "bypassed", "unreset", "mixed", "boundary", "concurrency", "repeat_warm"):
        _, parsed, plan = planned(f"check={fine}")
        check_attachable(parsed, plan)


def test_hardware_of_this_machine_does_not_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Eight GPUs are where the servers are."""
    monkeypatch.setattr(runner, "load_task", lambda *_: None)
    argv = ["run", "model=qwen3_8_flash_next", *BOTH, f"results_dir={tmp_path}", "servers.vllm.url=http://127.0.0.1:9"]
    assert cli.main([*argv, "servers.lmcache.url=http://127.0.0.1:9"]) == 3
    assert any(tmp_path.iterdir())
