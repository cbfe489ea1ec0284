"""What a check that consists of others would do: the plan of every arm, and what they come to together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.config import RunConfig
from harness.errors import UsageError
from harness.plan import Plan, as_json, make_plan


@dataclass(frozen=True, slots=True)
class ArmPlan:
    """The plan of one arm."""

    arm: str
    plan: Plan | None
    """None where its configuration leaves nothing to plan."""
    refused: str
    """Why it can't be done; empty where it can."""


@dataclass(frozen=True, slots=True)
class ArmsPlan:
    """The plans of all arms."""

    arms: list[ArmPlan]

    @property
    def done(self) -> list[Plan]:
        """Plans of the arms that a run would measure; it goes on without the others."""
        return [each.plan for each in self.arms if each.plan is not None and not each.refused]

    @property
    def launches(self) -> int:
        """Starts of both servers, over all arms that can be done."""
        return sum(len(plan.launches) for plan in self.done)

    @property
    def requests(self) -> int:
        """Requests, over all arms that can be done."""
        return sum(plan.passes * plan.questions for plan in self.done)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts of these requests."""
        return sum(plan.passes * sum(plan.prompt_tokens) for plan in self.done)

    @property
    def estimated(self) -> bool:
        """Whether prompt lengths are an estimate."""
        return any(plan.estimated for plan in self.done)


def plan_arms(arms: Iterable[tuple[str, RunConfig | UsageError]]) -> ArmsPlan:
    """Works out every arm; one that can't be done is told with its reason, as a run goes on without it."""
    return ArmsPlan([_arm_plan(arm, config) for arm, config in arms])


def arms_as_json(plans: ArmsPlan) -> dict[str, Any]:
    """All plans for programs (``format=json``)."""
    return {
        "arms": [
            {"arm": each.arm, "refused": each.refused or None, "plan": each.plan and as_json(each.plan)}
            for each in plans.arms
        ],
        "launches": plans.launches,
        "requests": plans.requests,
        "prompt_tokens": plans.prompt_tokens,
        "prompt_tokens_estimated": plans.estimated,
    }


def _arm_plan(arm: str, config: RunConfig | UsageError) -> ArmPlan:
    if isinstance(config, UsageError):
        return ArmPlan(arm, None, str(config))
    try:
        plan = make_plan(config)
    except UsageError as error:
        return ArmPlan(arm, None, str(error))
    return ArmPlan(arm, plan, "; ".join(str(finding) for finding in plan.errors))
