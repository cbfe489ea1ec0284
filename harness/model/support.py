"""What a run may ask for besides a plain vLLM with LMCache, and how its request is recognised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FEATURES = {
    "vllm": "vLLM",
    "sglang": "SGLang",
    "trt_llm": "TRT-LLM",
    "cacheblend": "CacheBlend",
    "cachegen": "CacheGen",
    "mtp": "MTP and other speculative decoding",
    "text_image": "text and image prompts",
    "video": "video prompts",
}
"""Feature -> its name for people; models state the status of each (``model.support``)."""

STATUSES = ("validated", "supported", "not validated", "not supported", "not stated", "unknown")
"""As published. What a model says nothing about is unknown, which is not yes."""

RUNNABLE = ("validated", "supported")

OTHER_ENGINES = {"sglang": "sglang", "trt_llm": "trt_llm", "trtllm": "trt_llm", "tensorrt_llm": "trt_llm"}
"""Engines that somebody may ask for with ``engine=…`` -> the feature they are."""

EXPERIMENTAL = ("vLLM's prefix caching of recurrent layers (--mamba-cache-mode align) is experimental",)
"""What every run rests on and its makers call experimental."""

_IN_LMCACHE_ARGUMENTS = {"cacheblend": "blend", "cachegen": "cachegen"}
_IN_VLLM_ARGUMENTS = {"mtp": "--speculative", "video": '"video"', "text_image": '"image"'}


def status(support: Mapping[str, str], feature: str) -> str:
    """Status of a feature in a model's own words."""
    return support.get(feature, "unknown")


def requested_features(vllm_arguments: Sequence[str], lmcache_arguments: Sequence[str]) -> list[str]:
    """Features that server arguments ask for, in the order of ``FEATURES``."""
    asked = {"vllm"}
    for arguments, signs in ((vllm_arguments, _IN_VLLM_ARGUMENTS), (lmcache_arguments, _IN_LMCACHE_ARGUMENTS)):
        text = " ".join(arguments).lower().replace("_", "-").replace("'", '"')
        asked |= {feature for feature, sign in signs.items() if sign in text}
    return [feature for feature in FEATURES if feature in asked]
