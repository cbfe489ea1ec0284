"""What people are shown of a server's log, on lines that vLLM and LMCache really print."""

from __future__ import annotations

import pytest

from harness.servers.logs import block_size_from_log, plain, telling_lines

MAMBA_ERROR = (
    "Mamba-hybrid models with LMCache require max_num_batched_tokens >= block_size so every prefill step advances at "
    "least one full block; got max_num_batched_tokens=32, block_size=64. Set --max-num-batched-tokens to at least 64."
)

BUDGET_TOO_SMALL = f"""\
(APIServer pid=18071) WARNING 11-29 20:32:18 [system_utils.py:255] Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too many open files`. Consider increasing with ulimit -n
(EngineCore pid=19620) INFO 11-29 20:32:33 [core.py:133] Initializing a V1 LLM engine (v0.32.0)
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] WorkerProc hit an exception.
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063]   File "site-packages/lmcache/integration/vllm/lmcache_mp_connector.py", line 421, in validate_mamba_step_alignment
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063]     raise ValueError(
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] ValueError: {MAMBA_ERROR}
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] Traceback (most recent call last):
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063] ValueError: {MAMBA_ERROR}
(Worker pid=19635) ERROR 11-29 20:32:37 [multiproc_executor.py:1063]\x20
(EngineCore pid=19620) ERROR 11-29 20:32:37 [core.py:1510] EngineCore failed to start.
(EngineCore pid=19620) ERROR 11-29 20:32:37 [core.py:1510] RuntimeError: Worker failed with error '{MAMBA_ERROR}', please check the stack trace above for the root cause
(APIServer pid=18071) Traceback (most recent call last):
(APIServer pid=18071)   File "<frozen runpy>", line 198, in _run_module_as_main
(APIServer pid=18071) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {{}}
"""  # noqa: E501

HEALTHY = """\
(Worker pid=6840) INFO 11-29 20:15:15 [interface.py:1120] Padding mamba page size by 86.86% to ensure that mamba page size and attention page size are exactly equal.
(EngineCore pid=6782) INFO 11-29 20:15:17 [kv_cache_utils.py:2327] CPU KV cache size: 762,600 tokens, Maximum concurrency for 1,024 tokens per request: 744.73x
(EngineCore pid=6782) INFO 11-29 20:15:17 [kv_cache_utils.py:853] kv cache group sizes (64, 64, 64, 64)
(EngineCore pid=6782) INFO 11-29 20:15:17 [kv_cache_utils.py:854] kv lcm block sizes 64
\x1b[32;20m[2026-11-29 20:15:17,369] LMCache INFO:\x1b[0m Resolved LMCache MP geometry: group_tokens_per_block=[64, 64, 64, 64], scheduler_block_size=64, cache_model_name=/models/pocket \x1b[3m(lmcache_mp_connector.py:667:lmcache.integration.vllm.lmcache_mp_connector)\x1b[0m
INFO:     Application startup complete.
INFO:     127.0.0.1:60282 - "GET /health HTTP/1.1" 200 OK
"""  # noqa: E501

ATTENTION = (
    "(EngineCore pid=12) INFO 11-29 20:15:15 [config.py:390] Setting attention block size to 784 tokens to ensure that "
    "attention page size is >= mamba page size."
)
GROUPS = "(EngineCore pid=12) INFO 11-29 20:15:17 [kv_cache_utils.py:853] kv cache group sizes (544, 544)"
GEOMETRY = (
    "\x1b[32;20m[2026-11-29 20:15:17,369] LMCache INFO:\x1b[0m Resolved LMCache MP geometry: "
    "group_tokens_per_block=[0, 400, 400], scheduler_block_size=400"
)


def test_root_first_echoes_once_and_without_prefixes() -> None:
    root, worker, engine = telling_lines(BUDGET_TOO_SMALL)
    assert root == f"ValueError: {MAMBA_ERROR}"
    assert worker.startswith("RuntimeError: Worker failed with error 'Mamba-hybrid")
    assert engine.startswith("RuntimeError: Engine core initialization failed")


def test_no_more_than_asked_for() -> None:
    log = "\n".join(f"ValueError: {number}" for number in range(9))
    assert telling_lines(log) == [f"ValueError: {number}" for number in range(4)]
    assert telling_lines(log, count=1) == ["ValueError: 0"]


def test_without_an_exception_the_last_lines_are_shown() -> None:
    lines = telling_lines(HEALTHY + "\n\n  \n")
    assert len(lines) == 4
    assert lines[-1] == 'INFO:     127.0.0.1:60282 - "GET /health HTTP/1.1" 200 OK'
    assert lines[0] == "kv lcm block sizes 64"
    assert lines[1].startswith("[2026-11-29 20:15:17,369] LMCache INFO: Resolved")
    assert not any("\x1b" in line for line in lines)


def test_an_empty_log_has_no_lines() -> None:
    assert telling_lines("") == []
    assert telling_lines("\n \n") == []


@pytest.mark.parametrize(
    "line",
    [
        "zmq.error.ZMQError: Address already in use (addr='tcp://127.0.0.1:5556')",
        "OSError: [Errno 98] Address already in use",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB.",
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.",
        "AssertionError",
        "Value error, User-specified max_model_len (9999999) is greater than the derived one [type=value_error]",
        "SystemExit: 2",
    ],
)
@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "(EngineCore pid=12) ERROR 11-29 20:10:06 [core.py:1] ",
        "(Worker_TP0 pid=9) ",
        "ERROR 11-29 20:10:06 [core.py:1] ",
        "\x1b[1;36m(APIServer pid=1)\x1b[0;0m ",
    ],
)
def test_causes_are_told_whatever_stands_before_them(prefix: str, line: str) -> None:
    log = f"{HEALTHY}{prefix}{line}\nINFO:     Application shutdown complete.\nmore\nmore still\nand more\n"
    assert telling_lines(log) == [line]


@pytest.mark.parametrize(
    "line",
    [
        "(Worker pid=1) ERROR 11-29 20:32:37 [multiproc_executor.py:1063]     raise ValueError(",
        "FutureWarning: `torch.distributed.reduce_op` is deprecated",
        "    except ImportError: pass  # RuntimeError",
        "(APIServer pid=1) WARNING 11-29 20:14:58 [x.py:1] errors like `OSError: [Errno 24] Too many open files`.",
        "(EngineCore pid=1) ERROR 11-29 20:32:37 [core.py:1510] EngineCore failed to start.",
    ],
)
def test_what_only_mentions_an_exception_is_no_cause(line: str) -> None:
    assert telling_lines(f"{line}\nValueError: the cause") == ["ValueError: the cause"]


def test_plain_keeps_what_is_no_prefix() -> None:
    assert plain("(EngineCore pid=12) INFO 11-29 20:10:06 [core.py:1]   indented ") == "  indented"
    assert plain("\x1b[33;20m[2026-11-29 20:14:43,303] LMCache WARNING:\x1b[0m no pinning") == (
        "[2026-11-29 20:14:43,303] LMCache WARNING: no pinning"
    )
    assert plain("(not a process) text") == "(not a process) text"


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        pytest.param(HEALTHY, 64, id="a whole log"),
        pytest.param(ATTENTION, 784, id="attention block"),
        pytest.param(GROUPS, 544, id="group sizes"),
        pytest.param(GEOMETRY, 400, id="geometry with a group that is not cached"),
        pytest.param(f"{ATTENTION}\n{GROUPS}\n{GEOMETRY}", 400, id="the most specific wins"),
        pytest.param(f"{ATTENTION}\n{GROUPS}", 544, id="then the groups"),
        pytest.param(f"{GROUPS}\ngroup_tokens_per_block=[0]", 544, id="only the whole line counts"),
        pytest.param(f"{GEOMETRY.replace('400', '0')}\n{GROUPS}", 544, id="all groups uncached: the next line tells"),
        pytest.param("kv cache group sizes (2096,)", 2096, id="a tuple of one"),
        pytest.param("kv cache group sizes (128, 640, 128)", 640, id="groups of several sizes: the largest"),
        pytest.param("kv lcm block sizes 64", None, id="none of them"),
        pytest.param("", None, id="empty"),
    ],
)
def test_block_size(log: str, expected: int | None) -> None:
    assert block_size_from_log(log) == expected
