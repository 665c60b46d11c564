"""Text to tokens and back; and that answers read like sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_sim.core.language import FOLLOWS, WORDS, WordClass
from pdcluster_sim.core.tokens import (
    END_TOKEN,
    VOCABULARY_SIZE,
    chat_prompt,
    decode,
    encode,
    next_token,
    token_bytes,
)

NUMBERS = st.integers(0, 2**64 - 1)


@given(st.text(st.characters(codec="utf-8"), max_size=200))
def test_any_text_comes_back_as_it_went(text: str) -> None:
    assert text == decode(encode(text), skip_special=False)


@pytest.mark.parametrize(
    ("text", "num_tokens"),
    [
        ("the engineer carries a letter", 5),
        (" river river river", 3),
        ("<|im_start|>user\nhi<|im_end|>", 5),
        ("0123456789", 5),
        ("", 0),
    ],
)
def test_known_words_are_single_tokens(text: str, num_tokens: int) -> None:
    assert num_tokens == len(encode(text))


@given(st.text(max_size=100), st.text(max_size=100))
def test_equal_texts_have_equal_tokens_and_different_ones_do_not(first: str, second: str) -> None:
    assert (encode(first) == encode(second)) == (first == second)


def test_special_tokens_are_left_out_of_answers_but_not_of_detokenize() -> None:
    tokens = (*encode("hello"), END_TOKEN)
    assert decode(tokens) == "hello"
    assert decode(tokens, skip_special=False) == "hello<|im_end|>"


def test_half_a_character_becomes_the_replacement_character() -> None:
    assert decode(encode("é")[:1]) == "\ufffd"


def test_the_chat_template_is_chatml() -> None:
    messages = [("system", "be brief"), ("user", "hello")]
    assert chat_prompt(messages, generate=True) == (
        "<|im_start|>system\nbe brief<|im_end|>\n"
        "<|im_start|>user\nhello<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert chat_prompt(messages, generate=False).endswith("hello<|im_end|>\n")


@given(NUMBERS, st.integers(0, VOCABULARY_SIZE - 1))
def test_the_next_token_is_always_one_of_the_vocabulary(number: int, previous: int) -> None:
    token = next_token(number, previous=previous, may_end=True)
    assert 0 <= token < VOCABULARY_SIZE


@given(NUMBERS, st.integers(0, VOCABULARY_SIZE - 1))
def test_an_answer_that_may_not_end_does_not(number: int, previous: int) -> None:
    assert next_token(number, previous=previous, may_end=False) != END_TOKEN


@given(st.lists(NUMBERS, min_size=60, max_size=60))
def test_an_answer_is_made_of_sentences(numbers: list[int]) -> None:
    previous = encode("<|im_start|>assistant\n")[-1]
    tokens = []
    for number in numbers:
        previous = next_token(number, previous=previous, may_end=False)
        tokens.append(previous)
    text = decode(tokens)
    assert text[0].isupper()
    for sentence in text.split(". ")[:-1]:
        assert sentence[0].isupper()
        assert len(sentence.split()) >= 4
    assert "  " not in text
    assert text == decode(encode(text))


def test_every_class_of_words_leads_on_and_the_end_is_reached() -> None:
    assert set(WordClass) == set(FOLLOWS)
    assert set(WORDS) | {WordClass.END} == set(WordClass)
    reached = {WordClass.OPENING}
    while True:
        more = reached | {after for each in reached for after in FOLLOWS[each]}
        if more == reached:
            break
        reached = more
    assert reached == set(WordClass)


def test_words_of_one_class_have_different_tokens() -> None:
    for words in WORDS.values():
        spelt = [encode(word) for word in words.spelling]
        assert all(len(tokens) == 1 for tokens in spelt)
        assert len(set(spelt)) == len(spelt)


def test_a_token_spells_what_it_was_made_from() -> None:
    (token,) = encode(" river")
    assert token_bytes(token) == b" river"
