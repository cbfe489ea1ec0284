"""Where a result comes from, and what must never be written down with it."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import venv
from pathlib import Path
from types import ModuleType

import pytest

from harness.measure import provenance as module
from harness.measure.provenance import (
    kept_environment,
    machine,
    provenance,
    versions,
)
from harness.redaction import without_passwords, without_secrets, without_secrets_in

HUSH = "hf_s3cret"


# --- secrets -----------------------------------------------------------------------------------------------


def test_variables_that_hold_secrets_are_not_kept() -> None:
    kept = kept_environment(
        {
            "HF_TOKEN": HUSH,
            "OPENAI_API_KEY": HUSH,
            "AWS_SECRET_ACCESS_KEY": HUSH,
            "VLLM_API_KEY": HUSH,
            "LMCACHE_AUTH": HUSH,
            "LMCACHE_REMOTE_URL": f"redis://user:{HUSH}@cache:6379/0",
            "HOME": "/root",
            "VLLM_LOGGING_LEVEL": "INFO",
            "OMP_NUM_THREADS": "2",
        }
    )
    assert HUSH not in json.dumps(kept)
    assert kept == {
        "LMCACHE_AUTH": "***",
        "LMCACHE_REMOTE_URL": "redis://***@cache:6379/0",
        "OMP_NUM_THREADS": "2",
        "VLLM_API_KEY": "***",
        "VLLM_LOGGING_LEVEL": "INFO",
    }


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (f"--api-key {HUSH} --dtype auto", "--api-key *** --dtype auto"),
        (f"--api-key={HUSH} --dtype auto", "--api-key=*** --dtype auto"),
        (f"--api_key {HUSH}", "--api_key ***"),
        (f"--api-key {HUSH} {HUSH} --dtype auto", "--api-key *** *** --dtype auto"),
        (f"--hf-token {HUSH}", "--hf-token ***"),
        (f"--TOKEN={HUSH}", "--TOKEN=***"),
        (f"--redis-password {HUSH}", "--redis-password ***"),
        (f"--client.secret={HUSH}", "--client.secret=***"),
        (f"--url http://me:{HUSH}@proxy:80/x", "--url http://***@proxy:80/x"),
        ("--api-key --dtype auto", "--api-key --dtype auto"),
        ("--api-key", "--api-key"),
        (f"--api-key={HUSH} serve", "--api-key=*** serve"),
    ],
)
def test_secret_arguments_are_hidden(arguments: str, shown: str) -> None:
    assert without_secrets(arguments.split()) == shown.split()


def test_the_recipes_commands_are_shown_whole() -> None:
    """Budgets hold the word token, and are what a reader looks for."""
    recipe = (
        "vllm serve Qwen/Qwen3.6-27B --enable-prefix-caching --mamba-cache-mode align --max-num-batched-tokens 1567 "
        "--max-model-len 4096 --tokenizer Qwen/x --tokenizer-mode auto --enable-prompt-tokens-details "
        "--shutdown-timeout 15 --kv-cache-dtype fp8 --speculative-config={} --port 8001"
    )
    assert without_secrets(recipe.split()) == recipe.split()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"http://me:{HUSH}@proxy", "http://***@proxy"),
        (f"redis://:{HUSH}@cache:6379", "redis://***@cache:6379"),
        (f"https://{HUSH}@github.com/x.git", "https://***@github.com/x.git"),
        (f"postgresql+psycopg://me:p@ss{HUSH}@db/x", "postgresql+psycopg://***@db/x"),
        (f"a http://me:{HUSH}@x, b http://you:{HUSH}@y", "a http://***@x, b http://***@y"),
    ],
)  # fmt: skip
def test_credentials_in_urls_are_hidden(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize(
    "text", ['{"a": "tcp://127.0.0.1", "port": 5555, "mail": "a@b"}', "http://127.0.0.1:8000/v1/models@main", "a@b"]
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert without_passwords(text) == text


def test_a_whole_configuration_without_its_secrets() -> None:
    config = {
        "engine": {"env": {"HF_TOKEN": HUSH, "OMP_NUM_THREADS": "2", "https_proxy": f"http://a:{HUSH}@p"}},
        "servers": {"vllm": {"extra_args": ["--api-key", HUSH, "--seed", "1"], "python": None}},
        "check": {"launch": ["clear", {"pass": "cold"}]},
        "load": {"concurrency": 8, "max_num_batched_tokens": "1567"},
    }
    shown = without_secrets_in(config)
    assert HUSH not in json.dumps(shown)
    assert shown == {
        "engine": {"env": {"HF_TOKEN": "***", "OMP_NUM_THREADS": "2", "https_proxy": "http://***@p"}},
        "servers": {"vllm": {"extra_args": ["--api-key", "***", "--seed", "1"], "python": None}},
        "check": {"launch": ["clear", {"pass": "cold"}]},
        "load": {"concurrency": 8, "max_num_batched_tokens": "1567"},
    }


# --- machine and versions ----------------------------------------------------------------------------------


def test_the_machine_without_its_name() -> None:
    told = machine()
    assert told["cores"] == os.cpu_count()
    assert told["memory_bytes"] > 2**28
    assert set(told) == {"processor", "cores", "memory_bytes", "system", "architecture"}
    if len(platform.node()) > 3:
        assert platform.node() not in json.dumps(told)


def test_no_gpu_is_an_empty_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert module.gpus() == []


def test_gpus_as_nvidia_smi_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.86.15'\necho 'NVIDIA H200, 143771 MiB, 570.86.15'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert module.gpus() == [{"name": "NVIDIA H200", "memory": "143771 MiB", "driver": "570.86.15"}] * 2


def test_versions_of_this_interpreter() -> None:
    found = versions(sys.executable, os.environ)
    assert found["python"] == platform.python_version()
    assert found["hydra-core"] == "1.3.8"


def test_versions_of_another_interpreters_environment(tmp_path: Path) -> None:
    """They are asked of that interpreter, whatever is installed here."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    (site,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    package = site / "vllm-9.8.7.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 9.8.7\n")
    found = versions(str(tmp_path / "venv" / "bin" / "python"), {"PATH": os.environ["PATH"]})
    assert found == {"python": platform.python_version(), "vllm": "9.8.7"}


def test_versions_are_those_that_the_servers_see(tmp_path: Path) -> None:
    """The CPU engine puts the vllm alias on PYTHONPATH."""
    package = tmp_path / "lmcache-0.0.1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: lmcache\nVersion: 0.0.1\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    assert versions(sys.executable, env)["lmcache"] == "0.0.1"


@pytest.mark.parametrize("python", ["/nonexistent/python", "false", "echo"])
def test_what_is_no_python_has_no_versions(python: str) -> None:
    assert versions(python, {"PATH": os.environ["PATH"]}) == {}


def test_provenance_names_both_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def told(python: str, env: object) -> dict[str, str]:
        asked.append(python)
        return {"python": python}

    monkeypatch.setattr(module, "versions", told)
    found = provenance({"vllm": None, "lmcache": "/opt/lmcache/bin/python"}, {"VLLM_X": "1", "HF_TOKEN": HUSH})
    assert asked == [sys.executable, "/opt/lmcache/bin/python"]
    assert set(found["versions"]) == {"vllm", "lmcache"}
    assert found["environment"] == {"VLLM_X": "1"}
    assert HUSH not in json.dumps(found)


# --- revision ----------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> str:
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", str(folder), *who, *arguments], check=True, capture_output=True, text=True, env=env
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository laid out like ours, with the module under test in it."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    (tmp_path / "harness" / "measure").mkdir(parents=True)
    shutil.copy(module.__file__, tmp_path / "harness" / "measure" / "provenance.py")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "run.yaml").write_text("a: 1\n")
    (tmp_path / "notes.txt").write_text("x\n")
    return tmp_path


def copied(checkout: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("copied", checkout / "harness" / "measure" / "provenance.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_commit_and_whether_the_code_was_changed_since(checkout: Path) -> None:
    git(checkout, "init", "-q")
    git(checkout, "add", "harness", "configs", "notes.txt")
    git(checkout, "commit", "-qm", "one")
    commit = git(checkout, "rev-parse", "HEAD")
    revision = copied(checkout).harness_revision
    shutil.rmtree(checkout / "harness" / "measure" / "__pycache__", ignore_errors=True)
    assert revision() == {"commit": commit, "dirty": False}
    (checkout / "notes.txt").write_text("y\n")
    assert revision() == {"commit": commit, "dirty": False}, "notes are not the harness"
    (checkout / "configs" / "run.yaml").write_text("a: 2\n")
    assert revision() == {"commit": commit, "dirty": True}


def test_outside_a_checkout_nothing_is_claimed(checkout: Path) -> None:
    assert copied(checkout).harness_revision() == {"commit": None, "dirty": None}


def test_the_commit_of_a_project_around_the_environment_is_not_ours(checkout: Path) -> None:
    """A harness installed in a virtual environment inside another repository."""
    git(checkout, "init", "-q")
    git(checkout, "add", "notes.txt")
    git(checkout, "commit", "-qm", "theirs")
    assert copied(checkout).harness_revision() == {"commit": None, "dirty": None}
