"""What logs are found to say: every entry on lines that servers print, causes before echoes, and nothing in health."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from harness.cli import compose_config, main
from harness.diagnosis.diagnose import FEW_REQUESTS, UNEXPLAINED, Diagnosis, Log, diagnose
from harness.diagnosis.files import BLOCK, LONG_LINE, blocks_of, lines_before
from harness.diagnosis.page import page, troubleshooting_rows
from harness.diagnosis.recognise import not_a_log
from harness.diagnosis.table import NOTHING_STORED, TABLE, Entry
from harness.errors import UsageError
from harness.model.rules import Severity
from harness.servers.commands import check_extra_args
from harness.servers.process import ServerProcess
from harness.servers.stack import Stack

DATA = Path(__file__).parent / "data" / "logs"
"""Excerpts of real logs: what was printed often is cut, and paths are those of nobody's machine."""

EXAMPLES = [
    pytest.param(entry, example, id=f"{entry.name} {number}")
    for entry in TABLE
    if entry is not NOTHING_STORED
    for number, example in enumerate(entry.examples)
]


def say(text: str | bytes, name: str = "vllm.log") -> Log:
    """A log that is at hand."""
    return Log(name, [text.encode() if isinstance(text, str) else text])


def names(diagnosis: Diagnosis) -> list[str]:
    return [finding.entry.name for finding in diagnosis.findings]


# --- the table ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("entry", "example"), EXAMPLES)
def test_every_example_is_its_entry(entry: Entry, example: str) -> None:
    diagnosis = diagnose([say(f"a line before\n{example}\nand one behind\n")])
    assert names(diagnosis) == [entry.name]
    (finding,) = diagnosis.findings
    assert (finding.evidence.file, finding.evidence.line, finding.count) == ("vllm.log", 2, 1)
    assert diagnosis.wrong == (entry.severity is Severity.ERROR)
    assert (diagnosis.root is finding) == (entry.severity is Severity.ERROR and not entry.echo)
    for told in (finding.cause, finding.remedy, finding.override or ""):
        assert "{" not in told.replace('{"', "")
    assert not finding.cause.endswith(".") and not finding.remedy.endswith(".")


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_every_entry_is_complete(entry: Entry) -> None:
    assert entry.examples and entry.versions and entry.source
    for marker in entry.markers:
        assert any(marker in example for example in entry.examples), f"no example for {marker!r}"
    known = set(re.compile(entry.pattern).groupindex) | {"widest", "share", "requests"}
    for template in (entry.cause, entry.remedy, entry.override or ""):
        assert set(re.findall(r"\{(\w+)\}", template)) <= known
    # The first example has every number, since the page shows it.
    if entry is not NOTHING_STORED:
        assert "?" not in diagnose([say(entry.examples[0])]).findings[0].cause


def test_names_are_unique() -> None:
    assert len({entry.name for entry in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    "override",
    sorted({f.override for e in TABLE for x in e.examples for f in diagnose([say(x)]).findings if f.override}),
)
def test_every_override_can_be_pasted(override: str) -> None:
    config = compose_config(shlex.split(override))
    check_extra_args(config)
    if "max-num-seqs" in override:
        assert config.servers.vllm.extra_args == ["--max-num-seqs", "600"]


@pytest.mark.parametrize(
    ("name", "numbers", "override", "words"),
    [
        (
            "budget below N",
            {"budget": "32", "block": "64", "widest": "127"},
            "sweep.budgets=[2N-1]",
            "64 that the line",
        ),
        (
            "budget outside [N, 2N)",
            {"budget": "8192", "block": "784", "widest": "1567"},
            "sweep.budgets=[2N-1]",
            "--max-num-batched-tokens 1567 (2N-1). The 784 that the line advises is the slow setting",
        ),
        (
            "max_num_seqs above the Mamba blocks",
            {"wanted": "1024", "blocks": "600"},
            "servers.vllm.extra_args=[--max-num-seqs,600]",
            "lower --max-num-seqs to 600, or raise --gpu-memory-utilization",
        ),
        (
            "chunk size not a multiple of N",
            {"chunk": "96", "block": "64", "widest": "127"},
            "servers.lmcache.chunk_size=64",
            "--chunk-size 64",
        ),
        (
            "GPU memory taken by others",
            {"device": "cuda:0 ", "free": "7.34", "total": "15.49", "wanted": "0.8", "bytes": "12.39", "share": "0.47"},
            "servers.vllm.extra_args=[--gpu-memory-utilization,0.47]",
            "below 0.47",
        ),
        ("port in use, LMCache", {"port": "5555"}, None, "ss -ltnp"),
    ],
)
def test_numbers_and_what_follows_from_them(
    name: str, numbers: dict[str, str], override: str | None, words: str
) -> None:
    entry = next(entry for entry in TABLE if entry.name == name)
    (finding,) = diagnose([say(entry.examples[0])]).findings
    assert {key: value.strip() for key, value in finding.numbers.items()} == {k: v.strip() for k, v in numbers.items()}
    assert finding.override == override
    assert words in finding.remedy


def test_an_override_without_its_number_is_none() -> None:
    line = (
        "ValueError: To serve at least one request with the model's max seq len (4096), (4.1 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (3.86 GiB). Try increasing `gpu_memory_utilization`"
    )
    (finding,) = diagnose([say(line)]).findings
    assert finding.entry.name == "context longer than the cache"
    assert finding.override is None
    assert "4096 tokens needs 4.1 GiB" in finding.cause


def test_absurd_numbers_do_no_harm() -> None:
    line = "LMCache chunk size 96 must be a multiple of " + "9" * 9000
    (finding,) = diagnose([say(line)]).findings
    assert finding.entry.name == "chunk size not a multiple of N"
    assert len(finding.cause) < 1000
    free = "Available memory on node 0 (1.2.3/... GiB) on kv cache allocation is less than requested memory for kv (1.0"
    assert names(diagnose([say(free)])) == ["CPU memory too small for the cache"]


# --- causes and echoes -------------------------------------------------------------------------------------


def read(name: str) -> list[Log]:
    """The logs of one launch."""
    return [Log(path.name, blocks_of(path)) for path in sorted((DATA / name).glob("*.log"))]


def test_the_cause_comes_before_its_echoes() -> None:
    diagnosis = diagnose(read("budget"))
    assert names(diagnosis) == ["budget below N", "engine dead", "worker died"]
    root, engine, worker = diagnosis.findings
    assert diagnosis.root is root
    # The engine's first echo, "WorkerProc hit an exception", stands before the cause in the log.
    assert engine.evidence.line < root.evidence.line < worker.evidence.line
    assert root.count == 4, "the worker says it twice, the engine and the API server repeat it"
    text = (DATA / "budget" / "vllm.log").read_text().splitlines()[root.evidence.line - 1]
    assert text.endswith(root.evidence.text)
    assert root.evidence.text.startswith("ValueError: Mamba-hybrid models with LMCache require")
    assert diagnosis.unexplained == ()


def test_a_worker_that_was_killed_is_told_without_a_cause() -> None:
    diagnosis = diagnose(read("killed"))
    assert names(diagnosis) == ["worker died", "engine dead"]
    assert diagnosis.root is None and diagnosis.wrong
    assert "without one it was killed" in diagnosis.findings[0].remedy
    assert diagnosis.unexplained == ()


def test_the_earliest_cause_wins_across_logs() -> None:
    late = "(EngineCore pid=1) ERROR 11-29 20:32:40 [x.py:1] RuntimeError: Unexpected head dim size, 32\n"
    early = "[2026-11-29 20:32:37,001] LMCache ERROR: Some keys not found during retrieve!\n"
    for logs in ([say(late), say(early, "lmcache.log")], [say(early, "lmcache.log"), say(late)]):
        diagnosis = diagnose(logs)
        assert names(diagnosis) == ["found blocks gone", "unexpected head dim"]
        assert diagnosis.root and diagnosis.root.evidence.file == "lmcache.log"


def test_of_the_same_failure_the_earliest_line_is_shown() -> None:
    line = "(EngineCore pid=1) ERROR 11-29 20:32:4{} [x.py:1] RuntimeError: Unexpected head dim size, {}\n"
    (finding,) = diagnose([say(line.format(1, 32) + line.format(2, 48)), say(line.format(0, 16), "other.log")]).findings
    assert (finding.evidence.file, finding.numbers, finding.count) == ("other.log", {"dim": "16"}, 3)


def test_a_traceback_has_the_time_of_what_was_printed_before_it() -> None:
    lmcache = "[2026-11-29 20:32:37,001] LMCache INFO: Stored 64 tokens in 0.001 seconds\nTraceback:\n"
    lmcache += "ValueError: tensor is not contiguous\n"
    lmcache += "[2026-11-29 20:32:59,001] LMCache INFO: what comes later\n"
    vllm = "(EngineCore pid=1) ERROR 11-29 20:32:36 [x.py:1] RuntimeError: Unexpected head dim size, 32\n"
    assert names(diagnose([say(lmcache, "lmcache.log"), say(vllm)])) == [
        "unexpected head dim",
        "non-contiguous KV tensor",
    ]
    assert names(diagnose([say(lmcache, "lmcache.log"), say(vllm.replace("20:32:36", "20:32:38"))])) == [
        "non-contiguous KV tensor",
        "unexpected head dim",
    ]
    # Also where a whole block lies between.
    filling = b"[2026-11-29 20:32:39,001] LMCache INFO: Stored 64 tokens in 0.001 seconds\n"
    blocks = [filling, b"ValueError: tensor is not contiguous\n"]
    assert names(diagnose([Log("lmcache.log", blocks), say(vllm.replace("20:32:36", "20:32:38"))])) == [
        "unexpected head dim",
        "non-contiguous KV tensor",
    ]


def test_errors_before_warnings_before_notes() -> None:
    note = next(e for e in TABLE if e.severity is Severity.NOTE).examples[0]
    warning = next(e for e in TABLE if e.severity is Severity.WARNING).examples[0]
    error = TABLE[0].examples[0]
    diagnosis = diagnose([say(f"{note}\n{warning}\n{error}\n")])
    assert [each.entry.severity for each in diagnosis.findings] == list(Severity)


def test_an_unknown_cause_in_a_known_wrapper() -> None:
    log = """\
(Worker pid=7) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=7) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=7) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] ValueError: block table of 7 rows
(EngineCore pid=6) ERROR 11-29 20:32:37 [core.py:1510] EngineCore failed to start.
(EngineCore pid=6) ERROR 11-29 20:32:37 [core.py:1510] RuntimeError: Worker failed with error 'block table of 7 rows', please check the stack trace above for the root cause
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""  # noqa: E501
    diagnosis = diagnose([say(log)])
    assert names(diagnosis) == ["engine dead"]
    assert diagnosis.root is None
    assert [str(each) for each in diagnosis.unexplained] == ["vllm.log:3: ValueError: block table of 7 rows"]


def test_unknown_failures_are_the_first_ones_each_once() -> None:
    log = "".join(f"KeyError: {number // 2}\n" for number in range(40))
    diagnosis = diagnose([say(log)])
    assert diagnosis.wrong and diagnosis.root is None
    told = diagnosis.unexplained
    assert [each.text for each in told] == [f"KeyError: {number}" for number in range(UNEXPLAINED)]
    assert [each.line for each in told] == [1, 3, 5, 7]


def test_an_exception_without_a_word_is_told_with_its_statement() -> None:
    log = "  File 'scheduler.py', line 3224\n    assert self.blocks == 3\n           ^^^^^^^^^^^\nAssertionError\n"
    assert [each.text for each in diagnose([say(log)]).unexplained] == ["AssertionError (assert self.blocks == 3)"]
    assert [each.text for each in diagnose([say("noise\nAssertionError\n")]).unexplained] == ["AssertionError"]
    known = log.replace("self.blocks == 3", "req_id in self.requests")
    assert names(diagnose([say(known)])) == ["transfer of an aborted request"]
    assert diagnose([say(known)]).unexplained == ()


# --- health ------------------------------------------------------------------------------------------------


def test_a_healthy_run_says_nothing_though_its_engine_is_dead_at_the_end() -> None:
    assert any(b"EngineDeadError" in block for log in read("healthy") for block in log.blocks)
    diagnosis = diagnose(read("healthy"))
    assert diagnosis == Diagnosis((), ())
    assert not diagnosis.wrong


def test_what_follows_a_stop_is_no_failure_until_the_next_start() -> None:
    dead = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    stop = "(APIServer pid=1) INFO 11-29 21:36:31 [launcher.py:254] [shutdown] API server: shutdown triggered\n"
    start = "(APIServer pid=2) INFO 11-29 21:36:41 [api_utils.py:286] non-default args: {'port': 1}\n"
    assert not diagnose([say(stop + dead + "ValueError: on the way out\n")]).wrong
    assert names(diagnose([say(dead + stop)])) == ["engine dead"]
    assert names(diagnose([say(stop + start + dead)])) == ["engine dead"]
    # A cause is one in any state.
    assert names(diagnose([say(stop + "torch.OutOfMemoryError: CUDA out of memory.\n")])) == ["GPU out of memory"]


def test_requests_in_flight_when_vllm_leaves_are_no_failure() -> None:
    left = "[2026-11-29 23:51:59,788] LMCache INFO: Unregistered KV cache for GPU ID 22\n"
    late = "[2026-11-29 23:51:59,790] LMCache WARNING: Rejecting RETRIEVE for unregistered GPU instance ID 22\n"
    came = "[2026-11-29 23:52:09,790] LMCache INFO: Registered KV cache for GPU ID 23 with 4 layers\n"
    assert names(diagnose([say(left + late)])) == []
    assert names(diagnose([say(left + came + late)])) == ["vLLM not registered with LMCache"]


@pytest.mark.parametrize(
    "line",
    [
        "(APIServer pid=1) INFO 11-30 01:00:00 [logger.py:40] Received request cmpl-1: prompt: 'CUDA out of memory.'",
        'INFO:     127.0.0.1:56602 - "POST /reset_prefix_cache HTTP/1.1" 200 OK',
        'INFO:     127.0.0.1:56602 - "GET /reset_prefix_cache_404 HTTP/1.1" 404 Not Found',
        "Engine 000: Running: 0 reqs, Prefix cache hit rate: 45.4%, Corrupted: 0 reqs",
        "Resolved LMCache MP geometry: group_tokens_per_block=[640, 10, 400], scheduler_block_size=400",
        "Group 0 first-layer tensor: layer_idx=0 is_contiguous=True dtype=torch.int8 device=cpu storage_offset=0",
        "Resolved architecture: Qwen3_5ForConditionalGeneration",
        "This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing",
        'LMCache INFO: Created AffinityThreadPool "pool" with 1 worker slots',
        "LMCache INFO: Worker engine-driven context registered (instance_id=7, mode=SHM)",
        "                raise ValueError(f'max_num_seqs ({max_num_reqs}) exceeds available Mamba cache blocks')",
    ],
)
def test_what_looks_like_a_failure_and_is_none(line: str) -> None:
    assert diagnose([say(line)]) == Diagnosis((), ())


# --- nothing stored ----------------------------------------------------------------------------------------

SERVED = 'INFO:     127.0.0.1:60282 - "POST /v1/completions HTTP/1.1" 200 OK\n'
LMCACHE_UP = "[2026-11-30 01:33:52,461] LMCache INFO: LMCache cache server is running...\n"


def test_nothing_ever_stored() -> None:
    vllm = say("INFO:     Application startup complete.\n" + SERVED * FEW_REQUESTS)
    (finding,) = diagnose([say(LMCACHE_UP, "lmcache.log"), vllm]).findings
    assert finding.entry is NOTHING_STORED
    assert finding.cause.startswith(f"vLLM served {FEW_REQUESTS} requests")
    assert str(finding.evidence) == f"vllm.log:2: {SERVED.strip()}"


def test_when_nothing_stored_proves_nothing() -> None:
    many = say(SERVED * FEW_REQUESTS)
    stored = "[2026-11-30 01:34:17,151] LMCache INFO: Stored 64 tokens in 0.002 seconds\n"
    assert diagnose([say(LMCACHE_UP + stored, "lmcache.log"), many]).findings == ()
    assert diagnose([say(LMCACHE_UP, "lmcache.log"), say(SERVED * (FEW_REQUESTS - 1))]).findings == ()
    assert diagnose([many]).findings == (), "without LMCache's log nobody knows"
    assert diagnose([say("LMCache WARNING: quiet\n", "lmcache.log"), many]).findings == (), "it does not log INFO"


# --- reading -----------------------------------------------------------------------------------------------


def test_big_files_in_blocks_with_right_line_numbers(tmp_path: Path) -> None:
    filling = "INFO:     127.0.0.1:52128 - GET /metrics\n"
    lines = 3 * BLOCK // len(filling)
    path = tmp_path / "vllm.log"
    path.write_text(filling * lines + TABLE[0].examples[0] + "\n" + filling * lines)
    sizes = [len(block) for block in blocks_of(path)]
    assert len(sizes) > 3 and max(sizes) < BLOCK + LONG_LINE
    began = time.perf_counter()
    (finding,) = diagnose([Log("vllm.log", blocks_of(path))]).findings
    assert finding.evidence.line == lines + 1
    assert time.perf_counter() - began < 10


def test_a_line_across_two_blocks_is_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_text("x" * (BLOCK - 41) + "\n" + TABLE[0].examples[0] + "\n")
    (finding,) = diagnose([Log("vllm.log", blocks_of(path))]).findings
    assert (finding.evidence.line, finding.evidence.text) == (2, TABLE[0].examples[0])


def test_many_failures_take_neither_memory_nor_time() -> None:
    began = time.perf_counter()
    assert len(diagnose([say("".join(f"KeyError: {number}\n" for number in range(50_000)))]).unexplained) == UNEXPLAINED
    assert time.perf_counter() - began < 10


def test_a_line_without_end_is_cut_and_still_read(tmp_path: Path) -> None:
    path = tmp_path / "vllm.log"
    path.write_bytes(b"/dev/shm" * (BLOCK // 4) + b"\nRuntimeError: Unexpected head dim size, 32\n")
    (finding,) = diagnose([Log("vllm.log", blocks_of(path))]).findings
    assert (finding.evidence.line, finding.entry.name) == (2, "unexpected head dim")
    began = time.perf_counter()
    # The pattern of a full /dev/shm would try every one of them to the end.
    diagnose([say("aBus errors " + "/dev/shm" * 100_000)])
    assert time.perf_counter() - began < 5


def test_any_bytes_can_be_read_and_shown() -> None:
    raw = b"\x00\xff\xfe\x1b]0;title\x07\x1b[2J \x1b[31mRuntimeError: Unexpected head dim size, 32\x1b[0m "
    raw += b"[bold]x[/bold]\r\n"
    (finding,) = diagnose([say(raw)]).findings
    assert "Unexpected head dim size, 32 [bold]x[/bold]" in finding.evidence.text
    assert all(each.isprintable() for each in finding.evidence.text)


def test_of_a_long_line_the_part_that_matters_is_shown() -> None:
    (finding,) = diagnose([say("x" * 3000 + " Unexpected head dim size, 32 " + "y" * 3000)]).findings
    assert finding.evidence.text.startswith("… ") and finding.evidence.text.endswith(" …")
    assert "Unexpected head dim size, 32" in finding.evidence.text
    assert len(finding.evidence.text) < 410


def test_lines_before(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("one\ntwo\nthree\n")
    assert [lines_before(path, end) for end in (0, 3, 4, 8, 14, 99)] == [0, 0, 1, 2, 3, 3]
    assert lines_before(tmp_path / "none.log", 5) == 0


# --- a server that failed ----------------------------------------------------------------------------------


def server(name: str, log: Path) -> ServerProcess:
    return ServerProcess(name, [sys.executable], {}, log)


def test_a_server_tells_the_cause_and_what_mends_it(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text((DATA / "budget" / "vllm.log").read_text())
    told = server("vLLM", log).log_excerpt()
    assert told.startswith("Its log says:\n    vllm.log:")
    assert "ValueError: Mamba-hybrid models with LMCache require" in told
    assert "\n  Cause: a budget of 32 tokens is less than one block of N = 64" in told
    assert "\n  Remedy: take --max-num-batched-tokens 127 (2N-1)." in told
    assert "\n  Here: sweep.budgets=[2N-1]\n" in told
    assert told.endswith(f"All of it: {log}")


def test_a_server_tells_what_stands_in_the_others_log(tmp_path: Path) -> None:
    vllm, lmcache = server("vLLM", tmp_path / "vllm.log"), server("LMCache", tmp_path / "lmcache.log")
    vllm.log.write_text("(EngineCore pid=1) ERROR 11-29 20:32:40 [core.py:1510] EngineCore failed to start.\n")
    lmcache.log.write_text("[2026-11-29 20:32:37,001] LMCache ERROR: Some keys not found during retrieve!\n")
    assert vllm.log_excerpt().startswith("Its log says:\n    EngineCore failed to start.")
    vllm.beside = [lmcache]
    told = vllm.log_excerpt()
    assert told.startswith("LMCache's log says:\n    lmcache.log:1: ")
    assert told.endswith(f"All of it: {lmcache.log}")
    lmcache.log.unlink()
    assert vllm.log_excerpt().startswith("Its log says:\n    EngineCore failed to start.")
    vllm.log.write_text(TABLE[0].examples[0])
    assert "\n  Here: sweep.budgets=[2N-1]\n" in vllm.log_excerpt()


def test_the_servers_of_a_launch_know_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = Stack(compose_config([]), budget=127, chunk_size=64, folder=tmp_path)
    monkeypatch.setattr(Stack, "_process", lambda _, name: server(name, tmp_path / f"{name.lower()}.log"))
    monkeypatch.setattr(Stack, "_start", lambda *_: None)
    stack._start_lmcache()
    stack._start_vllm()
    vllm, lmcache = stack.vllm.process, stack.lmcache.process
    assert (vllm.beside, lmcache.beside) == ([lmcache], [vllm])


def test_a_server_speaks_for_its_own_launch_only(tmp_path: Path) -> None:
    vllm = server("vLLM", tmp_path / "vllm.log")
    old = "RuntimeError: Unexpected head dim size, 32\n"
    vllm.log.write_text(old + TABLE[0].examples[0] + "\nKeyError: 7\n")
    vllm._log_start = len(old)
    told = vllm.log_excerpt()
    assert "vllm.log:2: ValueError: Mamba-hybrid" in told
    assert "head dim" not in told
    assert "\n  It says too: KeyError: 7\n" in told


# --- the command -------------------------------------------------------------------------------------------

Captured = pytest.CaptureFixture[str]


def run(capsys: Captured, *arguments: str) -> tuple[int, str, str]:
    code = main(["diagnose", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_prints_cause_evidence_remedy_and_versions(capsys: Captured) -> None:
    code, out, _ = run(capsys, str(DATA / "budget" / "vllm.log"))
    assert code == 1
    first, evidence, remedy, here, versions, *echoes = out.splitlines()
    assert first == (
        "error: a budget of 32 tokens is less than one block of N = 64, so that no step could fill a block"
    )
    assert re.match(rf"  {re.escape(str(DATA))}/budget/vllm\.log:\d+: ValueError: Mamba-hybrid", evidence)
    assert evidence.endswith("(and 3 more lines)")
    assert remedy.startswith("  do: take --max-num-batched-tokens 127 (2N-1)")
    assert here == "  here: sweep.budgets=[2N-1]"
    assert versions == "  seen in: LMCache 0.5.6"
    assert [line.split(" (")[0] for line in echoes] == [
        "then: vLLM's engine ended",
        "then: a worker process of vLLM ended",
    ]


def test_a_healthy_log_ends_with_0(capsys: Captured) -> None:
    code, out, _ = run(capsys, str(DATA / "healthy"))
    assert (code, out) == (0, "nothing wrong is seen in these logs\n")


def test_folders_are_told_apart(capsys: Captured) -> None:
    code, out, _ = run(capsys, str(DATA))
    assert code == 1
    assert [line for line in out.splitlines() if line.startswith(str(DATA))] == [
        str(DATA / "budget"),
        str(DATA / "killed"),
    ]


def test_warnings_alone_end_with_0(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "lmcache.log").write_text("LMCache WARNING: Session cmpl-1 not found, skipping touch (lookup.py:482)\n")
    code, out, _ = run(capsys, str(tmp_path))
    assert code == 0 and out.startswith("warning: ")


def test_an_unknown_failure_shows_its_telling_lines_and_ends_with_1(capsys: Captured, tmp_path: Path) -> None:
    log = tmp_path / "any.txt"
    log.write_text("INFO fine\nKeyError: [red]7[/red] [/]\nEngineCore failed to start.\n")
    code, out, _ = run(capsys, str(log))
    assert code == 1
    assert out.splitlines()[:2] == [
        "error: not in the table of known failures; its most telling lines:",
        f"  {log}:2: KeyError: [red]7[/red] [/]",
    ]
    assert "error: vLLM's engine ended" in out


def test_json_has_everything(capsys: Captured) -> None:
    code, out, _ = run(capsys, str(DATA / "budget"), "format=json")
    assert code == 1
    ((folder),) = json.loads(out)
    assert folder["folder"] == str(DATA / "budget")
    assert (folder["wrong"], folder["root"], folder["unexplained"]) == (True, "budget below N", [])
    first: dict[str, Any] = folder["findings"][0]
    assert first["numbers"] == {"budget": "32", "block": "64", "widest": "127"}
    assert first["evidence"]["file"].endswith("budget/vllm.log") and first["evidence"]["line"] > 1
    assert (first["severity"], first["echo"], first["lines"]) == ("error", False, 4)
    assert first["override"] == "sweep.budgets=[2N-1]"
    assert all(first[key] for key in ("cause", "remedy", "versions"))
    assert folder["findings"][1]["echo"] is True


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "diagnose needs logs or a folder of them"),
        (["format=json"], "diagnose needs logs or a folder of them"),
        (["no/such.log"], "no/such.log: no such file or folder."),
        ([str(DATA), "format=yaml"], "format=yaml is not known; known: text, json."),
    ],
)
def test_bad_usage_ends_with_2(capsys: Captured, arguments: list[str], words: str) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_a_folder_without_logs(capsys: Captured, tmp_path: Path) -> None:
    code, _, err = run(capsys, str(tmp_path))
    assert code == 2 and "no *.log below this folder" in err


def test_a_log_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"x\.log can't be read: Is a directory\."):
        (tmp_path / "x.log").mkdir()
        list(blocks_of(tmp_path / "x.log"))


# --- the page ----------------------------------------------------------------------------------------------


def test_the_page_is_the_one_that_the_table_gives() -> None:
    committed = Path(__file__).parent.parent / "docs" / "troubleshooting.md"
    assert committed.read_text() == page(), "python -m harness.diagnosis.page > docs/troubleshooting.md"


def test_every_entry_has_a_row() -> None:
    rows = troubleshooting_rows()
    assert len(rows) == len(TABLE)
    assert all(row.symptom and row.cause and row.setting and row.versions for row in rows)
    assert all(line.count("|") - line.count("\\|") == 5 for line in page().splitlines() if line.startswith("|"))
    assert "300 requests" in next(row.cause for row in rows if "completions" in row.symptom)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty: the server ended before it printed anything."),
        ("\n \n", "is empty: the server ended before it printed anything."),
        (
            "# A page about vLLM\nand LMCache: servers.vllm.python=PATH\n",
            "does not look like a log of vLLM or LMCache.",
        ),
    ],
)
def test_what_is_no_log_proves_nothing(text: str, told: str, capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text(text)
    assert run(capsys, str(tmp_path / "any.txt")) == (2, "", f"error: {tmp_path / 'any.txt'} {told}\n")


def test_the_readme_is_no_log() -> None:
    for file in (DATA.parents[2] / "README.md", DATA.parents[2] / "docs" / "ci.md"):
        assert not_a_log("x", blocks_of(file)) == "x does not look like a log of vLLM or LMCache."


@pytest.mark.parametrize(
    "line",
    [
        "vllm-1  | INFO 11-29 20:32:18 [model.py:733] Resolved architecture: Qwen3_5ForCausalLM",
        "2026-11-29T20:32:18.1Z stdout F (EngineCore pid=12) anything",
        "Nov 29 20:32:18 host vllm[1]: INFO:     Started server process [19206]",
        "lmcache-1 | \x1b[32;20m[2026-11-30 00:13:39,777] LMCache INFO:\x1b[0m torch_dev=StubCPUDevice",
        "usage: vllm serve [model_tag] [options]",
        "/usr/bin/python: No module named vllm",
        '  File "/venv/lib/python3.11/site-packages/vllm/v1/engine/core.py", line 1496, in run_engine_core',
        '{"level": "INFO", "logger": "vllm.engine", "message": "up"}',
    ],
)
def test_a_log_is_one_whatever_stands_before_its_lines(line: str, capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "any.txt").write_text(f"something else\n{line}\n")
    assert run(capsys, str(tmp_path / "any.txt"))[0] != 2


def test_an_empty_log_beside_another_is_told(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "lmcache.log").write_text("")
    (tmp_path / "vllm.log").write_text("(APIServer pid=1) INFO 11-29 20:32:18 [model.py:733] up\n")
    told = f"{tmp_path / 'lmcache.log'} is empty: the server ended before it printed anything."
    code, out, _ = run(capsys, str(tmp_path))
    assert (code, out) == (0, f"nothing wrong is seen in the other logs\n{told}\n")
    code, out, _ = run(capsys, str(tmp_path), "format=json")
    assert json.loads(out)[0]["unread"] == [told]
