"""From tokens to text: stop strings are honoured and never shown in part."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdcluster_sim.core.text import TextBuffer
from pdcluster_sim.core.tokens import END_TOKEN, encode


def feed(buffer: TextBuffer, text: str) -> tuple[list[str], str | None]:
    """Push a text's tokens; return the pieces and the stop string that ended it."""
    tokens = encode(text)
    pieces = []
    for index, token in enumerate(tokens):
        piece = buffer.push(token, is_last=index == len(tokens) - 1)
        pieces.append(piece.text)
        if piece.stop is not None:
            return pieces, piece.stop
    return pieces, None


TEXTS = st.text(alphabet="abc é漢\n", max_size=60)


@given(TEXTS)
def test_without_stops_all_text_goes_out(text: str) -> None:
    pieces, stop = feed(TextBuffer(), text)
    assert (text, None) == ("".join(pieces), stop)


@given(TEXTS, st.lists(st.text(alphabet="abc ", min_size=1, max_size=4), max_size=3))
def test_text_goes_out_up_to_the_first_stop_string(text: str, stops: list[str]) -> None:
    pieces, stop = feed(TextBuffer(stops), text)
    ends = [text.find(each) for each in stops if each in text]
    assert (stop is not None) == bool(ends)
    if not ends:
        assert text == "".join(pieces)
    else:
        assert not any(each in "".join(pieces) for each in stops)
        assert text.startswith("".join(pieces))


@given(TEXTS, st.text(alphabet="abc ", min_size=1, max_size=4))
def test_no_piece_ever_shows_a_part_of_the_stop_string_that_follows(text: str, stop: str) -> None:
    pieces, found = feed(TextBuffer([stop]), text)
    if found is not None:
        assert text.index(stop) == len("".join(pieces))


def test_a_stop_string_may_be_part_of_the_answer() -> None:
    pieces, stop = feed(TextBuffer(["river"], include_stop=True), "the old river runs")
    assert ("the old river", "river") == ("".join(pieces), stop)


def test_a_stop_string_across_tokens_is_found() -> None:
    pieces, stop = feed(TextBuffer(["er ca"]), "the engineer carries")
    assert ("the engine", "er ca") == ("".join(pieces), stop)


def test_held_back_text_goes_out_with_the_last_token() -> None:
    buffer = TextBuffer(["riverside"])
    pieces, stop = feed(buffer, "a river")
    assert ("a river", None) == ("".join(pieces), stop)


def test_a_character_of_several_tokens_goes_out_whole() -> None:
    pieces, _ = feed(TextBuffer(), "漢a")
    assert "\ufffd" not in "".join(pieces)
    assert pieces[0] == ""


@pytest.mark.parametrize(("skip", "text"), [(True, ""), (False, "<|im_end|>")])
def test_special_tokens_are_shown_only_if_asked_for(skip: bool, text: str) -> None:
    buffer = TextBuffer(skip_special=skip)
    assert text == buffer.push(END_TOKEN, is_last=True).text
