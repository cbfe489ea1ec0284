"""Every rule: what breaks it, what it says, what mends it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from stack_support import composed

from harness.errors import UsageError
from harness.model.predict import predicted_sizes
from harness.model.releases import budget_window
from harness.model.rules import PROMPT_RULES, Facts, Finding, Severity, check_rules, obeyed
from harness.model.sizes import GIB

N = 784


def facts(*overrides: str, **changes: Any) -> Facts:
    config = composed("model=qwen3_6_27b", *overrides)
    sizes = predicted_sizes(config.model, config.engine)
    assert sizes.block_size == N
    base = Facts(config, sizes, budgets=[2 * N - 1], chunk_size=N, lmcache="0.5.6")
    return replace(base, **changes)


def found(facts: Facts, rule: str) -> Finding:
    (finding,) = [each for each in check_rules(facts) if each.rule == rule]
    return finding


def test_the_recipe_breaks_no_rule() -> None:
    findings = check_rules(facts(prompt_tokens=[1025] * 300))
    assert [finding.severity for finding in findings] == [Severity.NOTE]
    assert "align" in str(findings[0]) and "experimental" in str(findings[0])


ERROR, WARNING = Severity.ERROR, Severity.WARNING

BROKEN: list[tuple[Facts, str, Severity, list[str], str]] = [
    (facts(budgets=[783]), "budget below N", ERROR, ["783", "N = 784"], "sweep.budgets=[2N-1], which is 1567"),
    (facts(budgets=[N]), "budget of N", WARNING, ["784", "exactly N", "one after the other"], "sweep.budgets=[2N-1]"),
    (facts(budgets=[2 * N]), "budget of 2N", WARNING, ["1568", "last block of a step"], "sweep.budgets=[2N-1]"),
    (
        facts(budgets=[2 * N], lmcache="0.5.3"),
        "budget outside [N, 2N)",
        ERROR,
        ["1568", "LMCache 0.5.3 refuses"],
        "sweep.budgets=[2N-1]",
    ),
    (
        facts(budgets=[2 * N], lmcache=None),
        "budget outside [N, 2N)",
        ERROR,
        ["LMCache of an unknown release"],
        "sweep.budgets=[2N-1]",
    ),
    (
        facts("model.separate_object_groups=false", budgets=[4 * N]),
        "budget of 2N without object groups",
        ERROR,
        ["3136"],
        "model.separate_object_groups=true",
    ),
    (
        facts("model.separate_object_groups=false"),
        "object groups",
        WARNING,
        ["LMCache 0.5.6 wants"],
        "model.separate_object_groups=true",
    ),
    (facts(chunk_size=256), "chunk size", ERROR, ["256", "N = 784"], "servers.lmcache.chunk_size=784"),
    (facts(chunk_size=1600), "chunk size", ERROR, ["1600"], "servers.lmcache.chunk_size=1568"),
    (facts(prompt_tokens=[784, 1000]), "prompts too short", WARNING, ["1 of 2", "784 tokens"], "task.min_blocks"),
    (facts(prompt_tokens=[200, 784]), "prompts too short", ERROR, ["2 of 2", "shortest has 200"], "task.min_blocks"),
    (
        facts(prompt_tokens=[1000] * 10, targets=[None, 0.97]),
        "hit rate not reachable",
        ERROR,
        ["0.97", "0.784", "more than 0.05"],
        "longer prompts",
    ),
    (
        facts(prompt_tokens=[1000] * 10, targets=[0.001], estimated=True),
        "hit rate not reachable",
        WARNING,
        ["0.001", "nothing would be retrieved"],
        "more questions",
    ),
    (
        facts("servers.lmcache.l1_size_gb=20", prompt_tokens=[1025] * 300),
        "L1 smaller than the working set",
        ERROR,
        ["20 GB", "300 prompts", "77.1 GB", "205.52 MB", "80%"],
        "servers.lmcache.l1_size_gb=78",
    ),
    (
        facts(prompt_tokens=[1025] * 1319, estimated=True),
        "L1 smaller than the working set",
        WARNING,
        ["100 GB", "338.9 GB"],
        "servers.lmcache.l1_size_gb=339",
    ),
    (
        facts("servers.vllm.extra_args=['--max-num-seqs=1024']", kv_bytes=600 * 16 * N * 4096),
        "max_num_seqs above the Mamba blocks",
        WARNING,
        ["1024", "600 blocks"],
        "--max-num-seqs 600",
    ),
    (
        facts("model.vllm_args=[--max_num_seqs,'601']", kv_bytes=600 * 16 * N * 4096),
        "max_num_seqs above the Mamba blocks",
        WARNING,
        ["601", f"{600 * 16 * N * 4096 / GIB:.1f} GiB"],
        "--max-num-seqs 600",
    ),
    (facts("+engine.env.PYTHONHASHSEED=random"), "hash seed", ERROR, ["random"], "~engine.env.PYTHONHASHSEED"),
    (
        facts("model.max_model_len=1000000"),
        "context beyond the native one",
        ERROR,
        ["1000000", "262144"],
        "model.max_model_len=262144",
    ),
    (
        facts('servers.vllm.extra_args=[\'--speculative-config={"method":"mtp"}\']'),
        "support",
        ERROR,
        ["MTP", "not stated", "qwen3_6_27b"],
        "allow_unvalidated=true",
    ),
    (
        facts("servers.lmcache.extra_args=[--l2-serde,cachegen]"),
        "support",
        ERROR,
        ["CacheGen", "not supported"],
        "allow_unvalidated=true",
    ),
    (
        facts("servers.lmcache.extra_args=[--enable-blending]"),
        "support",
        ERROR,
        ["CacheBlend", "not supported"],
        "allow_unvalidated=true",
    ),
    (
        facts("model.vllm_args=[--limit-mm-per-prompt,'{\"video\": 1}']"),
        "support",
        ERROR,
        ["video prompts", "not validated"],
        "allow_unvalidated=true",
    ),
]


@pytest.mark.parametrize(("broken", "rule", "severity", "told", "override"), BROKEN)
def test_a_broken_rule(broken: Facts, rule: str, severity: Severity, told: list[str], override: str) -> None:
    finding = found(broken, rule)
    assert finding.severity is severity
    text = str(finding)
    assert all(each in text for each in told), text
    assert override in text
    assert "\n" not in text and text.endswith(".")
    assert finding.holds_for


def test_workers_below_the_ranks() -> None:
    config = composed("model=qwen3_8_flash_next", "servers.lmcache.max_workers=4")
    sizes = predicted_sizes(config.model, config.engine)
    finding = found(Facts(config, sizes, [799], 400, "0.5.6"), "LMCache workers")
    assert (finding.severity, finding.override) == (ERROR, "servers.lmcache.max_workers=8")
    assert "4" in finding.text and "8 ranks" in finding.text


def test_a_rope_extension_makes_a_longer_context_acceptable() -> None:
    extended = facts(
        "model.max_model_len=1000000", 'model.vllm_args=[\'--hf-overrides={"rope_parameters":{"factor":4.0}}\']'
    )
    assert not [each for each in check_rules(extended) if each.severity is ERROR]


def test_what_is_not_validated_runs_if_it_must() -> None:
    finding = found(facts("allow_unvalidated=true", "servers.lmcache.extra_args=[--enable-blending]"), "support")
    assert (finding.severity, finding.override) == (WARNING, None)


def test_a_seed_of_digits_and_enough_of_everything() -> None:
    fine = facts(
        "+engine.env.PYTHONHASHSEED=7",
        "servers.lmcache.max_workers=1",
        "servers.vllm.extra_args=['--max-num-seqs=600']",
        kv_bytes=600 * 16 * N * 4096,
        prompt_tokens=[785],
        chunk_size=N,
    )
    assert {each.severity for each in check_rules(fine)} == {Severity.NOTE}


def test_errors_come_first_and_stop() -> None:
    findings = check_rules(facts(budgets=[N, 100]))
    assert [each.severity for each in findings] == [ERROR, WARNING, Severity.NOTE]
    with pytest.raises(UsageError, match=r"^A budget of 100 tokens"):
        obeyed(findings)
    (warning,) = obeyed(check_rules(facts(budgets=[N])))
    assert warning.startswith("a budget of 784 tokens is exactly N")


def test_rules_about_prompts_are_a_part() -> None:
    broken = facts(budgets=[1], prompt_tokens=[1])
    assert {each.rule for each in check_rules(broken, PROMPT_RULES)} == {"prompts too short"}


@pytest.mark.parametrize(
    ("release", "below_2n_only"),
    [
        ("0.5.3", True),
        ("0.4", True),
        ("0.5.4", True),
        (None, True),
        ("dev", True),
        ("0.5.6", False),
        ("0.6.0rc1", False),
    ],
)
def test_budget_windows(release: str | None, below_2n_only: bool) -> None:
    assert budget_window(release).below_2n_only is below_2n_only
