"""Departures of single answers from cold, by hand, and what their bounds are bounds of."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from evidence import failed, pass_of, record
from scipy.stats import entropy

from harness.equivalence.divergence import Answer, Departure, at_divergence, coarse_kl, departure, departures


def answer(*tokens: tuple[int, float, int, float]) -> Answer:
    """Each token as (id, logprob, runner-up's id, runner-up's logprob)."""
    ids, logprobs, runner_up_ids, runner_up_logprobs = zip(*tokens, strict=True)
    return Answer(np.array(ids), np.array(logprobs), np.array(runner_up_ids), np.array(runner_up_logprobs))


COLD = answer((5, -0.10, 6, -3.0), (7, -0.50, 8, -1.0), (9, -0.20, 1, -2.0))


def test_an_equal_answer_departs_by_nothing() -> None:
    assert departure(COLD, COLD) == Departure(3, False, 0.0, 0.0, 0.0, 0.0, None)


def test_differences_before_a_divergence_by_hand() -> None:
    other = answer((5, -0.13, 6, -3.0), (7, -0.45, 8, -1.0), (9, -0.90, 1, -2.0))
    found = departure(COLD, other)
    assert (found.shared, found.diverged, found.gap_nats) == (3, False, None)
    assert found.first_nats == pytest.approx(0.03)
    assert found.max_nats == pytest.approx(0.70)
    assert found.sum_nats == pytest.approx(0.03 + 0.05 + 0.70)


def test_the_first_divergence_is_an_index_and_ends_the_comparison() -> None:
    other = answer((5, -0.10, 6, -3.0), (8, -0.60, 7, -0.80), (9, -9.0, 1, -9.5))
    found = departure(COLD, other)
    assert (found.shared, found.diverged) == (1, True)
    assert found.gap_nats == pytest.approx(-0.50 - -1.0), "how much cold preferred its own token"
    # Token 7: -0.50 and -0.80; token 8: -1.0 and -0.60. The third token, 9 both times, follows different texts.
    assert found.max_nats == pytest.approx(0.40)
    assert found.sum_nats == 0.0


def test_logits_that_are_no_numbers_are_further_than_anything() -> None:
    """NaN compares as not larger than any level, so it must not be what a departure is measured by."""
    same_ids = answer((5, math.nan, 6, math.nan), (7, -0.50, 8, -1.0), (9, -0.20, 1, -2.0))
    found = departure(COLD, same_ids)
    assert (found.max_nats, found.first_nats, found.diverged) == (math.inf, math.inf, False)
    other_ids = departure(COLD, answer((0, math.nan, 1, math.nan)))
    assert (other_ids.max_nats, other_ids.diverged) == (math.inf, True)


def test_another_first_token_is_measured_by_the_runners_up() -> None:
    found = departure(COLD, answer((6, -0.20, 5, -1.90), (7, -0.50, 8, -1.0)))
    assert (found.shared, found.diverged) == (0, True)
    assert found.first_nats == found.max_nats == pytest.approx(2.8)
    assert found.sum_kl_nats == 0.0


def test_a_token_that_is_no_runner_up_has_a_bound() -> None:
    """99 is neither choice nor runner-up of cold, so cold's logprob of it is at most -3.0; that of 5 at most -4."""
    found = departure(COLD, answer((99, -0.05, 98, -4.0)))
    assert found.max_nats == pytest.approx(max(-0.10 + 4.0, -0.05 + 3.0))


def test_a_bound_never_claims_a_difference_that_may_not_be_there() -> None:
    cold, other = answer((1, -0.7, 2, -0.8)), answer((3, -0.9, 4, -1.0))
    assert at_divergence(cold, other, 0) == pytest.approx(0.3)
    # Token 1 could have -1.0 in the other pass: no more than 0.3 is certain. Token 3 could have -0.8 in cold.
    assert at_divergence(answer((1, -1.2, 2, -1.2)), answer((3, -1.2, 4, -1.2)), 0) == 0.0


def test_a_chosen_token_that_became_likelier_does_not_hide_the_other() -> None:
    """Token 1 rose from -1.5 to -1.2; token 3 rose further, from -1.6 to -1.1, and won."""
    assert at_divergence(answer((1, -1.5, 3, -1.6)), answer((3, -1.1, 1, -1.2)), 0) == pytest.approx(0.5)


def test_bound_holds_for_random_distributions() -> None:
    """Against the true logprobs of both tokens, known here; and never below half of the two gaps together."""
    rng = np.random.default_rng(1)
    diverged = 0
    for _ in range(500):
        logits = rng.normal(0, 2, 6)
        both = [logits, logits + rng.normal(0, 1, 6)]
        logprobs = [each - np.logaddexp.reduce(each) for each in both]
        order = [np.argsort(-each) for each in logprobs]
        first, second = (
            answer((int(best[0]), each[best[0]], int(best[1]), each[best[1]]))
            for each, best in zip(logprobs, order, strict=True)
        )
        if first.ids[0] != second.ids[0]:
            diverged += 1
            told = at_divergence(first, second, 0)
            true = max(abs(logprobs[0][token] - logprobs[1][token]) for token in (order[0][0], order[1][0]))
            gaps = sum(float(each.logprobs[0] - each.runner_up_logprobs[0]) for each in (first, second))
            assert gaps / 2 - 1e-9 <= told <= true + 1e-9
    assert diverged > 100


def test_an_answer_that_ends_earlier_has_diverged() -> None:
    shorter = answer((5, -0.10, 6, -3.0), (7, -0.50, 8, -1.0))
    found = departure(COLD, shorter)
    assert (found.shared, found.diverged, found.max_nats) == (2, True, 0.0)
    assert found.gap_nats == pytest.approx(1.8)
    longer = departure(shorter, COLD)
    assert (longer.shared, longer.diverged, longer.gap_nats) == (2, True, None)


# --- Kullback-Leibler --------------------------------------------------------------------------------------


def test_kl_of_three_tokens_is_exact() -> None:
    """With three tokens in all, chosen, runner-up and rest are the whole distribution."""
    p, q = np.array([0.6, 0.3, 0.1]), np.array([0.5, 0.2, 0.3])
    cold, other = (answer((0, math.log(each[0]), 1, math.log(each[1]))) for each in (p, q))
    assert coarse_kl(cold, other, 1) == pytest.approx([entropy(p, q)], abs=1e-9)


def test_kl_without_a_common_runner_up_knows_only_the_chosen_token() -> None:
    cold, other = answer((0, math.log(0.6), 1, math.log(0.3))), answer((0, math.log(0.5), 2, math.log(0.3)))
    assert coarse_kl(cold, other, 1) == pytest.approx([entropy([0.6, 0.4], [0.5, 0.5])], abs=1e-9)


def test_kl_is_a_lower_bound_and_never_negative() -> None:
    rng = np.random.default_rng(2)
    estimates, truths = [], []
    for _ in range(300):
        p, q = rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
        best = int(np.argmax(p))
        ups = [int(np.argsort(-np.where(np.arange(8) == best, -1, each))[0]) for each in (p, q)]
        cold, other = (
            answer((best, math.log(each[best]), up, math.log(each[up]))) for each, up in zip((p, q), ups, strict=True)
        )
        estimates.append(float(coarse_kl(cold, other, 1)[0]))
        truths.append(float(entropy(p, q)))
    assert all(0 <= estimate <= truth + 1e-9 for estimate, truth in zip(estimates, truths, strict=True))
    assert sum(estimates) > 0.2 * sum(truths)


def test_kl_of_a_certain_token_is_finite() -> None:
    certain = answer((0, 0.0, 1, -9999.0))
    assert coarse_kl(certain, certain, 1) == pytest.approx([0.0])
    assert math.isfinite(float(coarse_kl(certain, answer((0, -3.0, 1, -0.06)), 1)[0]))


# --- passes ------------------------------------------------------------------------------------------------


def test_departures_are_of_documents_answered_in_both_passes() -> None:
    cold = pass_of("cold", 5).requests
    moved = replace(record("warm", 3), logprobs=[-0.53 - 0.25, *record("warm", 3).logprobs[1:]])
    records = [record("warm", 0), failed("warm", 1), replace(record("warm", 2), token_ids=[], logprobs=[]), moved]
    found = departures(cold, pass_of("warm", 4, records=reversed(records)).requests)
    assert found.index.tolist() == [0, 3]
    assert found.loc[0, "max_nats"] == 0.0
    assert found.loc[3, "first_nats"] == pytest.approx(0.25)
    assert found["shared"].tolist() == [17, 17]


def test_of_a_document_that_was_sent_twice_the_first_answer_counts() -> None:
    again = replace(record("warm", 0), logprobs=[-9.0] * 17)
    found = departures(pass_of("cold", 1).requests, pass_of("warm", 1, records=[record("warm", 0), again]).requests)
    assert found["max_nats"].tolist() == [0.0]


def test_no_common_document_leaves_an_empty_table() -> None:
    nothing = departures(pass_of("cold", 2).requests, pass_of("warm", 2, records=[failed("warm", 0)]).requests)
    assert nothing.empty
    assert list(nothing.columns) == list(Departure.__dataclass_fields__)
