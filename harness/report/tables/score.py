"""Score and drift: are the answers the same?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.report.forms import NOT_MEASURED, number, p_value
from harness.report.runs import find
from harness.report.table import Column, Table, Value, measured, numbers, without_empty_columns, word_columns, words

Cell = Mapping[str, Any]


def score_table(cells: Sequence[Cell]) -> Table:
    """Paired tests of cold against warm, one row per cell."""
    columns = (
        *word_columns("cell"),
        Column("n", "questions"),
        Column("cold", "share right"),
        Column("warm", "share right"),
        Column("loss", "cold minus warm"),
        Column("interval of the loss", _confidence(cells)),
        Column("margin", "±"),
        Column("broke", "questions"),
        Column("mended", "questions"),
        Column("flip rate", "share"),
        Column("TOST p"),
        Column("McNemar p"),
        Column("loss p"),
        Column("questions needed", "n"),
        Column("power", "at n"),
        *word_columns("LMCache's own rule"),
    )
    rows = tuple(
        (
            words(cell.get("cell")),
            measured(cell, ",", "passes", "cold", "n"),
            measured(cell, ".3f", "passes", "cold", "score"),
            measured(cell, ".3f", "passes", "warm", "score"),
            measured(cell, "+.3f", "paired", "difference"),
            _interval(cell),
            measured(cell, "g", "paired", "margin"),
            measured(cell, ",", "paired", "b"),
            measured(cell, ",", "paired", "c"),
            measured(cell, ".3f", "paired", "flip_rate"),
            *(measured(cell, p_value, "paired", name) for name in ("tost_p", "mcnemar_p", "loss_p")),
            measured(cell, ",", "paired", "needed_n"),
            measured(cell, ".2f", "paired", "power"),
            Value(str(rule), tone=str(rule)) if (rule := find(cell, "lmcache_ci", "verdict")) else words(None),
        )
        for cell in cells
    )
    note = (
        "Broke: right cold and wrong warm; mended: the other way round. TOST p below gate.alpha: equivalent within the "
        "margin. McNemar p or loss p below it, without equivalence: worse. p-values of each cell alone."
    )
    return without_empty_columns(Table("Score, cold against warm", columns, rows, note))


def drift_tables(cells: Sequence[Cell]) -> list[Table]:
    """The drift tests, one row per cell and level, and how far every pass is from cold; empty where none was judged."""
    tables = (_drift_test(cells), _distances(cells), _agreement(cells))
    return [without_empty_columns(table) for table in tables if table.rows]


def reuse_table(cells: Sequence[Cell]) -> Table | None:
    """How much was found of prompts that diverge from what is stored; None for a run without such cells."""
    diverging = [cell for cell in cells if cell.get("reuse")]
    if not diverging:
        return None
    columns = (
        *word_columns("cell"),
        Column("n", "prompts"),
        Column("budget", "tokens"),
        Column("diverges after", "blocks of N"),
        Column("prompt", "blocks of N, mean"),
        Column("shared", "tokens, all prompts"),
        Column("found", "tokens, all prompts"),
        Column("found per prompt", "blocks of N, mean"),
    )
    rows = []
    for cell in diverging:
        hits, size, n = (
            find(cell, "reuse", "hit_tokens"),
            cell.get("unified_block_size"),
            find(cell, "passes", "warm", "n"),
        )
        blocks = hits / (size * n) if hits is not None and size and n else None
        rows.append(
            (
                words(cell.get("cell")),
                measured(cell, ",", "passes", "warm", "n"),
                measured(cell, ",", "budget"),
                measured(cell, "d", "reuse", "diverges_after_blocks"),
                measured(cell, ".3g", "reuse", "blocks"),
                measured(cell, ",.0f", "reuse", "shared_tokens"),
                measured(cell, ",.0f", "reuse", "hit_tokens"),
                numbers(blocks, number(blocks, ".2f")),
            )
        )
    return without_empty_columns(Table("Reuse of prompts that diverge", columns, tuple(rows)))


def _drift_test(cells: Sequence[Cell]) -> Table:
    columns = (
        *word_columns("cell", "judged pass", "against", "result"),
        Column("n", "answers"),
        Column("level", "nats"),
        Column("beyond", "answers"),
        Column("beyond in the other", "answers"),
        Column("only here", "answers"),
        Column("only in the other", "answers"),
        Column("p of the level"),
        Column("p over levels"),
        Column("seen from", "damaged answers"),
    )
    rows = []
    for cell in cells:
        for name, against, judged, fails in _judged(cell):
            rows += [
                (
                    words(cell.get("cell")),
                    words(name),
                    words(against),
                    Value("drifts", tone="missed") if fails else Value("does not drift", tone="ok"),
                    measured(judged, ",", "n"),
                    measured(level, "g", "nats"),
                    measured(level, ",", "beyond"),
                    measured(level, ",", "null_beyond"),
                    measured(level, ",", "only"),
                    measured(level, ",", "only_null"),
                    measured(level, p_value, "p"),
                    measured(judged, p_value, "p"),
                    measured(level, ",", "detectable"),
                )
                for level in judged.get("levels") or []
            ]
    note = (
        "Beyond: answers with a token whose log-probability is further from cold's than the level. Warm is judged "
        "against local_warm, vLLM's own cache without LMCache. 1 nat changes a probability by a factor of 2.7."
    )
    return Table("Drift test", columns, tuple(rows), note)


def _confidence(cells: Sequence[Cell]) -> str:
    found = {find(cell, "paired", "interval", "confidence") for cell in cells} - {None}
    return ", ".join(f"{100 * each:.4g} %" for each in sorted(found))


def _interval(cell: Cell) -> Value:
    low, high = (find(cell, "paired", "interval", side) for side in ("low", "high"))
    return numbers(low, NOT_MEASURED if low is None else f"{number(low, '+.4f')} to {number(high, '+.4f')}")


def _judged(cell: Cell) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    """Name of a pass that was judged, what it was judged against, its numbers, and whether it drifts."""
    drift = cell.get("drift") or {}
    if drift.get("levels"):
        yield "warm", "local_warm", drift, bool(drift.get("fails"))
    null = drift.get("local_warm") or {}
    if null.get("levels"):
        against = "exact repetition" if null.get("against") == "exactness" else str(null.get("against"))
        yield "local_warm", against, null, bool(null.get("drifts"))


def _distances(cells: Sequence[Cell]) -> Table:
    columns = (
        *word_columns("cell", "pass"),
        Column("n", "answers"),
        Column("beyond the margin", "answers"),
        Column("other tokens", "answers"),
        Column("of these near ties", "answers"),
        Column("first other token", "index, median"),
        *(Column(f"first token, {name}", "nats") for name in ("p50", "p95", "max")),
        *(Column(f"largest, {name}", "nats") for name in ("p50", "p95", "max")),
        Column("mean", "nats per token"),
        Column("mean KL", "nats per token"),
    )
    rows = [
        (
            words(cell.get("cell")),
            words(name),
            measured(each, ",", "n"),
            measured(each, ",", "beyond"),
            measured(each, ",", "diverged"),
            measured(each, ",", "near_ties"),
            measured(each, ".0f", "first_divergence_p50"),
            *(measured(each, ".2g", "first_token_nats", part) for part in ("p50", "p95", "max")),
            *(measured(each, ".2g", "max_nats", part) for part in ("p50", "p95", "max")),
            measured(each, ".2g", "mean_nats"),
            measured(each, ".2g", "mean_kl_nats"),
        )
        for cell in cells
        for name, each in (find(cell, "drift", "passes") or {}).items()
    ]
    return Table("How far passes are from cold", columns, tuple(rows), "|Δlogprob| up to the first token that differs.")


def _agreement(cells: Sequence[Cell]) -> Table:
    columns = (
        *word_columns("cell", "pass"),
        Column("n", "answers"),
        Column("same text", "share"),
        Column("same tokens", "share"),
        Column("same first token", "share"),
        Column("first logprob exact", "share"),
        Column("first logprob differs by", "nats, at most"),
    )
    shares = ("same_text", "same_tokens", "same_first_token", "first_token_logprob_exact")
    rows = [
        (
            words(cell.get("cell")),
            words(name),
            measured(each, ",", "n"),
            *(measured(each, ".3f", share) for share in shares),
            measured(each, ".2g", "first_token_logprob_max_difference"),
        )
        for cell in cells
        for name, each in (cell.get("agreement") or {}).items()
    ]
    return Table("Agreement with cold: shown, not judged", columns, tuple(rows), folded=True)
