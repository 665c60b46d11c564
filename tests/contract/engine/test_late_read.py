"""A read after the lease's end: nothing refuses it, and nobody but P can tell."""

from __future__ import annotations

from tests.contract.engine.fleet import (
    LEASE_S,
    SLACK_S,
    Fleet,
    ask,
    fresh_prompt,
    prefill,
    settled,
    tokens_of,
    wait_free,
)

NUM_OTHER_PROMPTS = 30
"""Each takes five of P's 63 blocks, so that every freed block is reused."""


def test_a_late_read_answers_200_with_wrong_tokens_and_poisons_ds_prefix_cache(
    fleet: Fleet,
) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    late = engine.metrics()["nixl_num_notifications_after_expiry_total"]
    prompt = fresh_prompt(90)
    right = tokens_of(ask(fleet.single, prompt))
    params = prefill(engine, prompt)
    wait_free(engine, within_s=LEASE_S + SLACK_S)
    for _ in range(NUM_OTHER_PROMPTS):
        ask(engine, fresh_prompt(90), max_tokens=1)

    answer = ask(decoder, prompt, params=params)
    assert answer.status_code == 200
    assert right != tokens_of(answer)
    # D keeps what it read under the prompt's name, and serves it to whoever comes next.
    assert right != tokens_of(ask(decoder, prompt))
    # vLLM looks at notifications only when it steps.
    ask(engine, fresh_prompt(), max_tokens=1)
    name = "nixl_num_notifications_after_expiry_total"
    assert settled(engine, name, late + 1) == late + 1


def test_params_used_twice_are_a_late_read(fleet: Fleet) -> None:
    engine, decoder = fleet.prefill, fleet.decode
    late = engine.metrics()["nixl_num_notifications_after_expiry_total"]
    prompt = fresh_prompt()
    params = prefill(engine, prompt)
    tokens_of(ask(decoder, prompt, params=params))
    wait_free(engine)
    tokens_of(ask(decoder, prompt, params=params))
    ask(engine, fresh_prompt(), max_tokens=1)
    name = "nixl_num_notifications_after_expiry_total"
    assert settled(engine, name, late + 1) == late + 1
