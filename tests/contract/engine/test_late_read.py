"""A read after the lease's end: nothing rejects it, and nobody but P can tell."""

from __future__ import annotations

from tests.contract.engine.shared_engines import (
    LATE_READS,
    SLACK_S,
    Engines,
    ask,
    fresh_prompt,
    nudge,
    prefill,
    settled,
    tokens_of,
    wait_free,
)

NUM_OTHER_PROMPTS = 30
"""Each takes five of P's 63 blocks, so that every freed block is reused."""


def test_a_late_read_answers_200_with_wrong_tokens_and_poisons_ds_prefix_cache(
    engines: Engines,
) -> None:
    engine, decoder = engines.prefill, engines.decode
    nudge(engine)
    late = engine.metrics()[LATE_READS]
    prompt = fresh_prompt(90)
    right = tokens_of(ask(engines.single, prompt))
    params = prefill(engine, prompt)
    wait_free(engine, within_s=engines.timing.duration_s + SLACK_S)
    for _ in range(NUM_OTHER_PROMPTS):
        ask(engine, fresh_prompt(90), max_tokens=1)

    answer = ask(decoder, prompt, params=params)
    assert answer.status_code == 200
    assert right != tokens_of(answer)
    # D keeps what it read under the prompt's name, and serves it to whoever comes next.
    assert right != tokens_of(ask(decoder, prompt))
    nudge(engine)
    assert late + 1 == settled(engine, LATE_READS, late + 1)


def test_params_used_twice_are_a_late_read(engines: Engines) -> None:
    engine, decoder = engines.prefill, engines.decode
    nudge(engine)
    late = engine.metrics()[LATE_READS]
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    tokens_of(ask(decoder, prompt, params=params))
    wait_free(engine)
    tokens_of(ask(decoder, prompt, params=params))
    nudge(engine)
    assert late + 1 == settled(engine, LATE_READS, late + 1)
