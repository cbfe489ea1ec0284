"""Secrets, loopback, dangerous calls, and results folders that come from a stranger."""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from report_support import failing, make_run
from stack_support import composed

from harness import cli, plan, runner
from harness.arms import read_arms
from harness.checking import ARGUMENTS
from harness.diagnosis.files import logs_below
from harness.errors import HarnessError, ServerError, UsageError
from harness.redaction import fields_with_secrets, known_secrets, redacted, secret_argument, without_secrets_in
from harness.report.figures import write_figures
from harness.report.runs import read_run
from harness.servers.commands import check_extra_args, lmcache_command, vllm_command
from harness.servers.environment import EXPOSING, OWNED_VARIABLES, check_variables, server_environment
from harness.servers.leftovers import SCRATCH
from harness.servers.process import ServerProcess
from harness.store import RunFolder, read_json, write_json

Captured = pytest.CaptureFixture[str]

PACKAGE = Path(cli.__file__).parent

# Nobody's: they only look like secrets.
TOKEN = "hf_" + 20 * "c4"
KEY = "sk-" + "canary1" * 4
PASSWORD = "canary-pass-word"
HUSH = "canary-in-the-environment"
CANARIES = (TOKEN, KEY, PASSWORD, HUSH)


def give_away(text: str) -> list[str]:
    return [each for each in CANARIES if each in text]


# --- secrets -----------------------------------------------------------------------------------------------


@pytest.fixture
def canaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secrets in the caller's environment, and servers that can't be started."""
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "VLLM_API_KEY", "LMCACHE_REDIS_PASSWORD", "VLLM_X_SECRET"):
        monkeypatch.setenv(name, HUSH)
    monkeypatch.setenv("LMCACHE_REMOTE_URL", f"redis://me:{PASSWORD}@cache:6379")
    monkeypatch.setenv("VLLM_SOMETHING", TOKEN)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")

    def installed(python: str, env: object) -> dict[str, str]:
        return {"python": "3.11", "vllm": "0.32.0", "lmcache": "0.5.6"}

    monkeypatch.setattr(plan, "versions", installed)
    monkeypatch.setattr(runner, "versions_of", lambda pythons, env: {name: installed(name, env) for name in pythons})

    def start(self: ServerProcess) -> None:
        given = " ".join(self.command)
        assert not give_away(given), "what a process list shows"
        raise ServerError(f"its log says: token {HUSH}, {TOKEN} and http://me:{PASSWORD}@proxy")

    monkeypatch.setattr(ServerProcess, "start", start)


@pytest.mark.usefixtures("canaries")
def test_a_run_writes_and_shows_no_secret(tmp_path: Path, capfd: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to servers that fail and quote secrets in their log, and from there to the report."""
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "job-summary.md"))
    given = [f"+engine.env.MY_TOKEN={TOKEN}", f"+engine.env.SOME_PASSWORD={PASSWORD}", f"+engine.env.OTHER={KEY}",
             f"+engine.env.https_proxy='http://me:{PASSWORD}@proxy'", "task.limit=3", "engine=cpu"]  # fmt: skip
    assert cli.main(["run", f"results_dir={tmp_path}", "run_id=run", *given]) == 3
    assert cli.main(["report", str(tmp_path / "run")]) == 0
    assert cli.main(["plan", *given]) == 0
    assert cli.main(["plan", "format=json", *given]) == 0
    out, err = capfd.readouterr()
    assert give_away(out + err) == []
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert {"run.json", "report.html", "report.md", "junit.xml", "job-summary.md"} <= {each.name for each in files}
    for file in files:
        assert give_away(file.read_text(errors="replace")) == [], file
    record = read_json(tmp_path / "run" / "run.json")
    env = record["config"]["engine"]["env"]
    assert env["MY_TOKEN"] == env["SOME_PASSWORD"] == env["OTHER"] == "***", "by name, without their values"
    assert env["https_proxy"] == "http://***@proxy"
    assert record["provenance"]["environment"]["VLLM_X_SECRET"] == "***"


@pytest.mark.usefixtures("canaries")
@pytest.mark.parametrize(
    "override",
    [
        *(f"{name}=[--hf-token,{HUSH}]" for name in ARGUMENTS),
        f"servers.vllm.extra_args=[--api-key,{HUSH}]",
        f"servers.vllm.extra_args=[--api_k,{HUSH}]",
        f"servers.vllm.extra_args=['--api-key={HUSH}']",
        f"servers.vllm.extra_args=['--hf-tok={HUSH}']",
        f"servers.lmcache.extra_args=[--redis-password,{HUSH}]",
        f"servers.vllm.extra_args=[--x,'http://me:{PASSWORD}@proxy']",
        f'servers.vllm.extra_args=[--x,\'{{"api_key":"{HUSH}"}}\']',
        f"servers.vllm.extra_args=[--x,{TOKEN}]",
        f"model.path='https://me:{PASSWORD}@hub/x'",
        f"model.path={TOKEN}",
        f"model.name={TOKEN}",
        f"model.support_source='http://me:{PASSWORD}@x'",
        f"task.data_dir='https://me:{PASSWORD}@hub/x'",
        f"results_dir='s3://me:{PASSWORD}@bucket'",
        f"run_id={KEY}",
        f"servers.vllm.python='/opt/{KEY}/python'",
        f"sweep.name={TOKEN}",
    ],
)
def test_a_secret_anywhere_else_is_refused_and_not_repeated(override: str, tmp_path: Path, capfd: Captured) -> None:
    for command in (["run", f"results_dir={tmp_path / 'results'}"], ["plan"]):
        if override.startswith("results_dir") and command[0] == "run":
            command = ["run"]
        assert cli.main([*command, "engine=cpu", override]) == 2
        out, err = capfd.readouterr()
        assert give_away(out + err) == []
        assert err.startswith("error: ") and override.split("=")[0] in err
        assert not (tmp_path / "results").exists()


def test_what_looks_like_a_secret() -> None:
    for value in (TOKEN, KEY, "ghp_" + 20 * "a1", "AKIA" + 16 * "A", "glpat-" + 20 * "a", "xoxb-1234567890-abc"):
        assert redacted(f"x {value} y") == "x *** y"
    for plain in ("Qwen/Qwen3.6-27B", "risk-learn-a-long-name-without-digits", "hf_internal", "2N-1", "a@b"):
        assert redacted(plain) == plain
    assert secret_argument(["--seed", "1", "--max-num-seqs", "8"]) is None
    assert secret_argument(["--x", '{"max_tokens": "8", "a": 1}']) is None
    assert list(fields_with_secrets({"a": {"b": [TOKEN]}, "c": "x"})) == ["a.b"]
    assert list(fields_with_secrets(without_secrets_in({"a": f"http://me:{PASSWORD}@x"}))) == [], "what is hidden is"
    assert known_secrets({"HF_TOKEN": HUSH, "A_KEY": "short", "SSH_AUTH_SOCK": "/tmp/x.sock", "HOME": HUSH}) == {HUSH}


def test_no_error_repeats_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", HUSH)
    for kind in (HarnessError, UsageError, ServerError):
        assert give_away(str(kind(f"{HUSH} {TOKEN} http://me:{PASSWORD}@x"))) == []


# --- loopback ----------------------------------------------------------------------------------------------


def test_servers_listen_on_loopback_alone() -> None:
    config = composed()
    vllm = vllm_command(config, budget=127, port=1, lmcache_port=2)
    lmcache = lmcache_command(config, chunk_size=64, port=1, http_port=2)
    assert vllm[vllm.index("--host") + 1] == "127.0.0.1"
    assert lmcache[lmcache.index("--host") + 1] == lmcache[lmcache.index("--http-host") + 1] == "127.0.0.1"
    for other in ("--host", "--hos", "--host=0.0.0.0", "--http-host", "--http_h", "--uds", "--script-allowed-imports"):
        for server in (config.servers.vllm, config.servers.lmcache):
            server.extra_args = [other, "0.0.0.0"]
            refused = other in ("--http-host", "--http_h", "--script-allowed-imports") and server is config.servers.vllm
            if refused or (other == "--uds" and server is config.servers.lmcache):
                continue  # not an option of that program
            with pytest.raises(UsageError, match=r"loopback|scripts stays off"):
                check_extra_args(config)
            server.extra_args = []


@pytest.mark.parametrize("name", [*OWNED_VARIABLES, *EXPOSING])
def test_variables_that_would_open_a_server(name: str) -> None:
    config = composed()
    assert server_environment(config, {})["VLLM_SERVER_DEV_MODE"] == "1"
    config.engine.env[name] = "0.0.0.0"
    with pytest.raises(UsageError, match=rf"^engine\.env\.{name} can't be set: .*; leave it out\.$"):
        check_variables(config)


@pytest.mark.parametrize("name", EXPOSING)
def test_they_are_not_inherited_either(name: str) -> None:
    assert name not in server_environment(composed(), {name: "0.0.0.0", "HF_TOKEN": HUSH})
    assert server_environment(composed(), {name: "x", "HF_TOKEN": HUSH})["HF_TOKEN"] == HUSH


# --- dangerous calls ---------------------------------------------------------------------------------------

MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {"eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load",
         "subprocess.getoutput", "subprocess.getstatusoutput", "pd.read_pickle", "torch.load"}  # fmt: skip
KEYWORDS = {"shell", "allow_pickle", "trust_remote_code"}


def dangers(source: str) -> list[str]:
    """Imports, calls and keywords that run or unpickle what a file says."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [each.name for each in node.names if each.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in MODULES:
            found.append(str(node.module))
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            found += [name] if name in CALLS else []
            found += [str(each.arg) for each in node.keywords if each.arg in KEYWORDS]
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pickle_no_shell_and_nothing_evaluated(path: Path) -> None:
    assert dangers(path.read_text()) == []


def test_dangers_are_seen() -> None:
    for line in ("import pickle", "from joblib import load", "eval(x)", "os.system(x)", "run(x, shell=True)",
                 "np.load(x, allow_pickle=True)", "torch.load(x)", "yaml.load(x)"):  # fmt: skip
        assert dangers(line)
    assert dangers("model.eval(); yaml.safe_load(x); subprocess.run([x])") == []


# --- results folders of strangers --------------------------------------------------------------------------

OUTSIDE_NAMES = ("../../outside", "/etc", "..", "a/b", "")


@pytest.mark.parametrize("name", OUTSIDE_NAMES)
def test_ids_stay_in_the_folder(name: str, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    for use in (run.launch, run.cell, lambda name: RunFolder.create(tmp_path, name), lambda name: RunFolder.reopen(tmp_path, name)):  # fmt: skip # noqa: E501
        with pytest.raises(UsageError, match="plain folder name"):
            use(name)


@pytest.mark.parametrize("field", ["cell", "launch"])
@pytest.mark.parametrize("name", OUTSIDE_NAMES)
def test_a_cell_does_not_name_another_place(field: str, name: str, tmp_path: Path) -> None:
    path = failing(tmp_path)
    (file,) = path.glob("cells/*/cell.json")
    write_json(file, read_json(file) | {field: name})
    with pytest.raises(UsageError, match=r"has to have that name|plain folder name"):
        read_run(path)


def test_links_to_elsewhere_are_not_followed(tmp_path: Path) -> None:
    path = failing(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.log").write_text("root:x:0:0")
    launch = path / "launches" / "stranger"
    launch.mkdir()
    (launch / "vllm.log").symlink_to(outside / "secret.log")
    assert outside / "secret.log" not in {each.resolve() for each in read_run(path).logs()}
    assert all(each.resolve() != outside / "secret.log" for files in _logs(path) for each in files)
    (path / "figures").symlink_to(outside)
    with pytest.raises(UsageError, match=r"figures leads out of .*: remove the link\.$"):
        write_figures(path)
    assert {each.name for each in outside.iterdir()} == {"secret.log"}


def _logs(path: Path) -> list[list[Path]]:
    (path / "launches" / "own.log").write_text("x")
    return list(logs_below([str(path)]).values())


def test_a_cell_that_is_a_link_to_elsewhere(tmp_path: Path) -> None:
    path, other = failing(tmp_path / "one"), failing(tmp_path / "two")
    (cell,) = (other / "cells").iterdir()
    (path / "cells" / "stranger").symlink_to(cell)
    with pytest.raises(UsageError, match=r"leads out of .*remove the link"):
        read_run(path)


def test_a_resumed_run_does_not_write_elsewhere(tmp_path: Path) -> None:
    path = make_run(tmp_path / "one")
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (path / ".reserve").unlink(missing_ok=True)
    (path / ".reserve").symlink_to(victim)
    RunFolder.reopen(path.parent, path.name).unlock()
    assert victim.read_text() == "precious"
    outside = tmp_path / "outside"
    (path / "launches").rename(outside)
    (path / "launches").symlink_to(outside)
    with pytest.raises(UsageError, match=r"launches leads out of"):
        RunFolder.reopen(path.parent, path.name)


def test_a_link_in_the_place_of_a_temporary_file(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".run.json.tmp-{os.getpid()}").symlink_to(victim)
    (tmp_path / "run.json").symlink_to(victim)
    write_json(tmp_path / "run.json", {"a": 1})
    assert victim.read_text() == "precious"
    assert not (tmp_path / "run.json").is_symlink()


def test_arms_do_not_name_another_place(tmp_path: Path) -> None:
    write_json(tmp_path / "attribution.json", {"arms": [{"arm": "../x", "status": "error", "reason": ""}]})
    with pytest.raises(UsageError, match=r"^arm=\.\./x must be a plain folder name\.$"):
        read_arms(tmp_path)


@pytest.mark.parametrize("name", ["harness-data", "harness-", "data", "harness-12/../../x"])
def test_only_a_launchs_own_folder_is_removed(name: str) -> None:
    assert SCRATCH.fullmatch(name) is None
    assert SCRATCH.fullmatch("harness-0a1b2c3d4e5f") is not None


def test_logs_and_warnings_are_escaped_in_the_page(tmp_path: Path) -> None:
    evil = "</pre><script>alert(1)</script>"
    path = make_run(tmp_path, status="failed", verdict=None, error=f"Its log says:\n    {evil}", warnings=[evil])
    assert cli.main(["report", str(path)]) == 0
    page = (path / "report.html").read_text()
    assert evil not in page and "&lt;script&gt;alert(1)" in page
    assert json.loads((path / "run.json").read_text())["warnings"] == [evil], "what was recorded is left as it is"


def test_a_record_is_only_text() -> None:
    assert isinstance(without_secrets_in({"a": 1, "token": "x"}), dict)
    told: Any = without_secrets_in({"max_num_batched_tokens": "1567", "hf_token": "x"})
    assert told == {"max_num_batched_tokens": "1567", "hf_token": "***"}
