"""What a request is said to have cost.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Usage"]


@dataclass(slots=True)
class Usage:
    """Tokens of one HTTP request, over all its prompts and choices.

    Attributes:
        num_prompt: Prompt tokens, each prompt counted once.
        num_completion: Generated tokens.
        num_cached: Prompt tokens that were not computed for it, or None while unknown.
    """

    num_prompt: int = 0
    num_completion: int = 0
    num_cached: int | None = None

    def whole(self, *, details: bool) -> dict[str, object]:
        """Return the object of an answer that is not streamed, nulls included."""
        cached = None
        if details and self.num_cached is not None:
            cached = {
                "cached_tokens": self.num_cached,
                "created_cache_tokens": None,
                "multimodal_tokens": None,
            }
        return {
            **self.counts(),
            "prompt_tokens_details": cached,
            "completion_tokens_details": None,
        }

    def streamed(self, *, details: bool) -> dict[str, object]:
        """Return the object of the last chunk of a stream, nulls left out."""
        if not details or self.num_cached is None:
            return dict(self.counts())
        return {**self.counts(), "prompt_tokens_details": {"cached_tokens": self.num_cached}}

    def counts(self) -> dict[str, int]:
        """Return the object of the chunks before the last one."""
        return {
            "prompt_tokens": self.num_prompt,
            "total_tokens": self.num_prompt + self.num_completion,
            "completion_tokens": self.num_completion,
        }
