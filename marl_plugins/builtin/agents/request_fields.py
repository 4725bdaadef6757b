"""What becomes of the fields of a request, in all dialects.

A field is honoured (its form declares it), refused, or without effect and named by the dry run
(`FATES`). One that nobody knows is refused; inside a message or a tool it is named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

TEXT_ALONE = "roles are shown text alone"
MASKED = "a masked distribution is sampled then, which is not the one that is trained"
PREFILL = (
    "an answer cannot be begun for the model, which would be trained on words that it has not "
    "sampled"
)
FATES = {
    "": "temperature top_p top_k min_p typical_p seed frequency_penalty presence_penalty "
    "repetition_penalty length_penalty reasoning reasoning_effort verbosity text.verbosity "
    "output_config.effort thinking thinking_token_budget include_reasoning prediction include "
    "user safety_identifier service_tier priority request_id inference_geo speed store "
    "cache_control cache_salt prompt_cache_key prompt_cache_retention return_token_ids "
    "return_tokens_as_token_ids spaces_between_special_tokens prompt_cache_options moderation "
    "client_metadata access_programs billing_policy diagnostics user_profile_id workspace_id betas "
    "fallbacks fallback_credit_token media_io_kwargs mm_processor_kwargs session_id "
    "kv_transfer_params ec_transfer_params vllm_xargs stream_interval return_token_offsets "
    "return_prompt_text return_assistant_tokens_mask routed_experts_prompt_start",
    MASKED: "logit_bias bad_words allowed_token_ids min_tokens logits_processors guided_json "
    "guided_regex guided_choice guided_grammar guided_decoding_backend guided_whitespace_pattern "
    "structured_outputs structural_tag",
    f"{MASKED}. Say in the prompt which form is wanted": "response_format text.format "
    "output_format output_config.format",
    "a request has one answer, which is sampled; ask again for another": (
        "n best_of use_beam_search"
    ),
    "the prompt is made by the policy's own chat template": "chat_template chat_template_kwargs "
    "documents add_generation_prompt add_special_tokens truncate_prompt_tokens truncation "
    "truncation_side",
    "nothing that was shown is changed afterwards": "context_management compaction",
    PREFILL: "continue_final_message prefix",
    "an answer ends where the model ends it, or before `stop`": "stop_token_ids ignore_eos "
    "repetition_detection",
    "the content is the text, without special tokens and stop strings; the record has the ids": (
        "include_stop_str_in_output echo skip_special_tokens"
    ),
    "the log-probs of the sampled tokens alone are known (`logprobs`)": (
        "top_logprobs prompt_logprobs logprob_token_ids"
    ),
    "functions are not read; send tools": "functions function_call",
    "only text is shown and sampled": "audio modalities image",
    "nothing is stored here; send the whole conversation and wait for the answer": (
        "previous_response_id conversation background prompt thread"
    ),
    "a service of a provider, which is not here": (
        "web_search_options mcp_servers container max_tool_calls"
    ),
}
"""Why fields are refused, wherever they stand; those with an empty reason are without effect, and
named: sampling is the run's, and nothing is stored or billed."""
REASONS = {name: reason for reason, names in FATES.items() for name in names.split()}
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "response_format": ({}, {"type": "text"}),
    "text.format": ({"type": "text"},),
    "modalities": (["text"],),
    "add_generation_prompt": (True,),
    "skip_special_tokens": (True,),
    "truncation": ("disabled",),
    "context_management": ({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},),
}
"""Values that ask for what is done anyway; of other fields, false and empty ones do."""
ECHOED = frozenset((
    "id", "status", "annotations", "citations", "refusal", "audio", "function_call", "logprobs",
    "reasoning_content", "tool_output", "cache_control", "caller", "summary",
    "encrypted_content",
))  # fmt: skip
"""Fields inside a request that answers have, or that only mark a place for a provider's cache."""


class Sent(pydantic.BaseModel, extra="allow"):
    """A part of a request; what it does not declare is not read, and null says nothing."""

    @pydantic.model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, sent: Any) -> Any:
        if not isinstance(sent, Mapping):
            return sent
        return {name: value for name, value in sent.items() if value is not None}


class SentRequest(Sent):
    """A request."""

    metadata: dict[str, Any] | None = None
    _ignored: dict[str, Any] = pydantic.PrivateAttr(default_factory=dict)

    @property
    def rewards(self) -> Any:
        """What it says of earlier answers' rewards, as it is sent."""
        return (self.metadata or {}).get("marl", [])

    @property
    def ignored(self) -> dict[str, Any]:
        """The fields that have no effect, and their values."""
        return self._ignored


def one_of(*values: str, why: str) -> pydantic.AfterValidator:
    """Returns a check of a field that has one of a few values, and says why it has no other."""

    def check(value: Any) -> Any:
        if value not in values:
            raise ValueError(f"{value!r} is none of {', '.join(values)}; {why}")
        return value

    return pydantic.AfterValidator(check)


def unread(part: Sent, place: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields what a part of a request has and does not declare, as (place, name, value), and takes
    it away, so that two requests are alike if what is read is.

    Args:
        place: Where the part stands, a point at its end; empty: it is the request.
    """
    extra = part.model_extra or {}
    for name in [*extra]:
        yield place, name, extra.pop(name)
    for name, value in vars(part).items():
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, Sent):
                yield from unread(inner, f"{place}{name}.")


def inside(name: str, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the fields of an object in a request as fields of the request, named `NAME.FIELD`."""
    return {f"{name}.{key}": value for key, value in (options or {}).items()}


def refusal_of(request: SentRequest) -> str:
    """Returns why a request is refused, for one of its fields; empty: it is not. Those without
    effect are noted in it."""
    metadata = inside("metadata", request.metadata)
    request._ignored |= {name: metadata[name] for name in metadata if name != "metadata.marl"}
    for place, name, value in unread(request):
        reason = REASONS.get(name)
        says_nothing = not value and (reason != "" or value is False)
        plain = value in PLAIN[name] if name in PLAIN else says_nothing
        if plain or (place and name in ECHOED):
            continue
        if reason:
            return f"{place}{name}: {reason}"
        if reason is None and not place:
            return f"{name}: there is no such field; remove it"
        request._ignored[f"{place}{name}"] = value
    return ""
