"""Programs that stand in for ``vllm serve`` and ``lmcache server`` in tests of a whole run: never an engine.

They answer over HTTP as the two servers do, keep counters that agree with what they were asked, and misbehave as
``STANDIN_FAULTS`` says (:data:`FAULTS`).  Only the standard library, so that they start in a tenth of a second.

    python standin_servers.py -m vllm.entrypoints.cli.main serve MODEL --port …
    python standin_servers.py -m lmcache.cli.main server --port … --http-port …
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import signal
import subprocess
import sys
import zlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

N = 64
"""Tokens per block."""
NUMBER = 1_000_000
"""Token id of the number 0; that of n is n more."""

FAULTS: dict[str, Any] = {
    "vllm": {
        "healthy": True,
        "refuse_resets": 0,  # so many times, -1: always
        "metrics": "good",  # or: missing, empty, renamed, garbage
        "completion": "good",  # or: hang (after a token), reset, malformed, refused; of the requests below
        "of_prompts": [],  # by the number in their answer
        "token_pause_s": 0.0,
        "says": {},  # path -> what it answers, of what the stand-in does not know otherwise
    },
    "lmcache": {"healthy": True, "stores": "land", "metrics": "good", "start_message": "", "says": {}},
}
"""What may be told to go wrong, and what is right."""

Respond = Callable[[str, str, bytes, asyncio.StreamWriter], Awaitable[None]]


def told(server: str) -> dict[str, Any]:
    """How a server is to behave."""
    chosen = json.loads(os.environ.get("STANDIN_FAULTS", "{}"))
    return {**FAULTS[server], **chosen.get(server, {})}


# --- HTTP ------------------------------------------------------------------------------------------------------------


async def serve(respond: Respond, ports: Sequence[int]) -> None:
    """Serves HTTP/1.1 with connections that are kept, until SIGTERM."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                request, *lines = head.decode().split("\r\n")
                method, path, _ = request.split(" ")
                length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
                await respond(method, path, await reader.readexactly(length), writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    servers = [await asyncio.start_server(connected, "127.0.0.1", port, backlog=1024) for port in ports]
    await stop.wait()
    for server in servers:
        server.close()


def answer(writer: asyncio.StreamWriter, body: object, status: int = 200) -> None:
    """One whole answer; text as it is, anything else as JSON."""
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)


async def ask(port: int, path: str, body: object) -> Any:
    """Asks the other stand-in; raises OSError where it is not there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body).encode()
    writer.write(f"POST {path} HTTP/1.1\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    told = json.loads(await reader.readexactly(length))
    writer.close()
    return told


def page(values: dict[str, float], kind: str, how: str) -> str:
    """A Prometheus page of counters or gauges, or what a fault makes of it."""
    if how == "empty":
        return ""
    if how == "garbage":
        return "<html>503</html>"
    lines = []
    for name, value in values.items():
        shown = name.replace("vllm:", "vllm:new_").replace("lmcache_mp_", "lmcache_v2_") if how == "renamed" else name
        lines += [f"# TYPE {shown.split('{')[0]} {kind}", f"{shown} {value}"]
    return "\n".join(lines) + "\n"


# --- LMCache ---------------------------------------------------------------------------------------------------------


class LMCache:
    """Holds chunks by their hash."""

    def __init__(self) -> None:
        self.how = told("lmcache")
        self.chunks: set[int] = set()
        names = ("submitted_stores", "finished_stores", "submitted_retrieves", "finished_retrieves")
        self.count = {f"lmcache_mp_num_{name}_total": 0.0 for name in names}
        others = ("lookup_requested_tokens", "lookup_hit_tokens", "l1_write_chunks", "l1_read_chunks")
        self.count |= {f"lmcache_mp_{name}_total": 0.0 for name in others}

    async def respond(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path in self.how["says"]:
            answer(writer, self.how["says"][path])
        elif path == "/healthcheck":
            answer(writer, {"status": "healthy"}, 200 if self.how["healthy"] else 503)
        elif path == "/status":
            manager = {"total_object_count": len(self.chunks)}
            controller = {"pending_keys_count": 0, "in_flight_task_count": 0}
            answer(writer, {"storage_manager": {"l1_manager": manager, "store_controller": controller}})
        elif path == "/metrics" and self.how["metrics"] != "missing":
            answer(writer, page(self.count, "counter", self.how["metrics"]))
        elif path == "/cache/clear":
            self.chunks.clear()
            answer(writer, {"status": "ok"})
        elif path == "/standin/lookup":
            answer(writer, self.lookup(json.loads(body)))
        elif path == "/standin/store":
            answer(writer, self.store(json.loads(body)))
        else:
            answer(writer, {"detail": "Not Found"}, 404)

    def lookup(self, chunks: list[int]) -> int:
        found = next((i for i, chunk in enumerate(chunks) if chunk not in self.chunks), len(chunks))
        self.count["lmcache_mp_lookup_requested_tokens_total"] += len(chunks) * N
        self.count["lmcache_mp_lookup_hit_tokens_total"] += found * N
        for name in ("submitted", "finished"):
            self.count[f"lmcache_mp_num_{name}_retrieves_total"] += found > 0
        return found

    def store(self, chunks: list[int]) -> int:
        new = [chunk for chunk in chunks if chunk not in self.chunks]
        self.count["lmcache_mp_num_submitted_stores_total"] += bool(new)
        if self.how["stores"] == "land":
            self.chunks |= set(new)
            self.count["lmcache_mp_num_finished_stores_total"] += bool(new)
            self.count["lmcache_mp_l1_write_chunks_total"] += len(new)
        return len(new)


# --- vLLM ------------------------------------------------------------------------------------------------------------


def tokens_of(text: str) -> list[int]:
    """One token per word; a number's says which."""
    return [
        NUMBER + int(word) if word.isdecimal() else 10 + zlib.crc32(word.encode()) % 900_000 for word in text.split()
    ]


def blocks_of(ids: Sequence[int]) -> list[int]:
    """A hash for each whole block, of all that stands before its end."""
    hashes, last = [], 0
    for end in range(N, len(ids) + 1, N):
        last = hash((last, *ids[end - N : end]))
        hashes.append(last)
    return hashes


class Vllm:
    """Answers every prompt with the last number in it, and takes what it can of it from caches."""

    def __init__(self, lmcache_port: int | None) -> None:
        self.how = told("vllm")
        self.lmcache_port = lmcache_port
        self.local: set[int] = set()
        self.resets = 0
        self.running = 0
        names = ("prompt_tokens", "num_preemptions", "generation_tokens")
        self.count = {f"vllm:{name}_total": 0.0 for name in names}
        sources = ("local_compute", "local_cache_hit", "external_kv_transfer")
        self.count |= {f'vllm:prompt_tokens_by_source_total{{source="{source}"}}': 0.0 for source in sources}

    async def respond(self, method: str, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path in self.how["says"]:
            answer(writer, self.how["says"][path])
        elif path == "/health":
            answer(writer, "", 200 if self.how["healthy"] else 503)
        elif path == "/metrics" and self.how["metrics"] != "missing":
            gauges = {"vllm:num_requests_running": float(self.running), "vllm:num_requests_waiting": 0.0}
            gauges[f'vllm:cache_config_info{{block_size="{N}"}}'] = 1.0
            how = self.how["metrics"]
            answer(writer, page(self.count, "counter", how) + page(gauges, "gauge", how))
        elif path == "/v1/models":
            answer(writer, {"data": [{"id": "pocket", "max_model_len": 4096}]})
        elif path == "/tokenize":
            answer(writer, {"tokens": tokens_of(json.loads(body)["prompt"])})
        elif path == "/reset_prefix_cache":
            self.resets += 1
            refused = self.how["refuse_resets"] < 0 or self.resets <= self.how["refuse_resets"]
            self.local = self.local if refused else set()
            answer(writer, {"success": not refused})
        elif path == "/v1/completions":
            await self.complete(json.loads(body)["prompt"], writer)
        else:
            answer(writer, {"detail": "Not Found"}, 404)

    async def complete(self, ids: list[int], writer: asyncio.StreamWriter) -> None:
        print('INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK', flush=True)
        number = next((token - NUMBER for token in reversed(ids) if token >= NUMBER), 0)  # a prefix has none
        how = self.how["completion"] if number in self.how["of_prompts"] else "good"
        if how == "refused":
            answer(writer, {"error": {"message": "too long"}}, 400)
            return
        self.running += 1
        try:
            cached = await self.found(ids)
            writer.write(b"HTTP/1.1 200 X\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in self.parts(ids, number, cached):
                if self.how["token_pause_s"]:
                    await asyncio.sleep(self.how["token_pause_s"])
                writer.write(b"%x\r\n" % len(part) + part + b"\r\n")
                await writer.drain()
                if how == "hang":
                    await asyncio.sleep(600)
                if how == "reset":
                    writer.transport.abort()
                    raise ConnectionError
                if how == "malformed":
                    writer.write(b"9\r\ndata: {\n\n\r\n")
            writer.write(b"0\r\n\r\n")
        finally:
            self.running -= 1

    async def found(self, ids: list[int]) -> int:
        """Tokens that a cache had; what was computed is kept and stored."""
        blocks = blocks_of(ids)
        wanted = blocks_of(ids[:-1])  # the last token is always computed
        local = next((i for i, block in enumerate(wanted) if block not in self.local), len(wanted))
        external = 0
        if self.lmcache_port is not None:
            try:
                external = max(0, await ask(self.lmcache_port, "/standin/lookup", wanted) - local)
                await ask(self.lmcache_port, "/standin/store", blocks)
            except (OSError, asyncio.IncompleteReadError):
                external = 0
        self.local |= set(blocks)
        self.count["vllm:prompt_tokens_total"] += len(ids)
        hits = {"local_cache_hit": local * N, "external_kv_transfer": external * N}
        for source, tokens in (hits | {"local_compute": len(ids) - sum(hits.values())}).items():
            self.count[f'vllm:prompt_tokens_by_source_total{{source="{source}"}}'] += tokens
        return sum(hits.values())

    def parts(self, ids: list[int], number: int, cached: int) -> list[bytes]:
        """The events of a healthy stream."""
        logprob = -0.01 - (hash(tuple(ids)) % 1000) / 1e5
        events: list[object] = []
        for token, text, end in ((7, " ####", None), (NUMBER + number, f" {number}", "stop")):
            logprobs = {
                "tokens": [f"token_id:{token}"],
                "token_logprobs": [logprob],
                "top_logprobs": [{f"token_id:{token}": logprob, "token_id:5": logprob - 4}],
            }
            choice = {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": end, "token_ids": [token]}
            events.append({"choices": [choice]})
        counts = {"prompt_tokens": len(ids), "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": cached}}
        events.append({"choices": [], "usage": counts})
        return [f"data: {json.dumps(each)}\n\n".encode() for each in events] + [b"data: [DONE]\n\n"]


def segment_of(temporary: Path, pid: int | str) -> Path:
    """Shared memory of a server whose launch's temporary folder lies in another one: tests may run side by side."""
    return Path(f"/dev/shm/standin-{zlib.crc32(str(temporary).encode())}-{pid}")


def run_vllm(arguments: Sequence[str]) -> None:
    """A child process and a shared-memory segment, as the CPU build has; both are gone after a SIGTERM."""
    segment = segment_of(Path(os.environ["TMPDIR"]).parent, os.getpid())
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with segment.open("w+b") as file:
        file.truncate(4096)
        kept = mmap.mmap(file.fileno(), 4096)
    Path(os.environ["TMPDIR"], "socket").touch()
    print(f"(EngineCore pid={child.pid}) INFO 11-29 20:15:17 [k.py:853] kv cache group sizes ({N}, {N})", flush=True)
    lmcache = None
    if "--kv-transfer-config" in arguments:
        config = json.loads(arguments[arguments.index("--kv-transfer-config") + 1])
        lmcache = int(config["kv_connector_extra_config"]["lmcache.mp.port"])
    port = int(arguments[arguments.index("--port") + 1])
    try:
        if lmcache is not None:  # without its LMCache vLLM hangs and says nothing
            asyncio.run(ask(lmcache, "/standin/lookup", []))
        asyncio.run(serve(Vllm(lmcache).respond, [port]))
    finally:
        kept.close()
        segment.unlink(missing_ok=True)
        child.terminate()
        child.wait()


def run_lmcache(arguments: Sequence[str]) -> None:
    ports = [int(arguments[arguments.index(name) + 1]) for name in ("--port", "--http-port")]
    cache = LMCache()
    if cache.how["start_message"]:
        sys.exit(cache.how["start_message"])
    asyncio.run(serve(cache.respond, ports))


def main(arguments: Sequence[str]) -> None:
    """Does what a Python with both packages would do with these arguments."""
    if arguments[0] == "-c":
        print(json.dumps({"python": "3.11", "vllm": "0.32.0", "lmcache": "0.5.6"}))
    elif arguments[1].startswith("vllm"):
        run_vllm(arguments)
    else:
        run_lmcache(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
