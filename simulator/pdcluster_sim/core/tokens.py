"""Text to tokens and back, and the next token from a number.

Pure. The vocabulary holds special tokens, all bytes, pairs of letters and digits, and the words of
``language.py``; any text can be spelt, and what was spelt comes back byte for byte. It is one table
for all simulated engines, whatever model they are asked to serve.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product
from string import ascii_lowercase, digits
from typing import TYPE_CHECKING, Final

from pdcluster_sim.core.language import FOLLOWS, WORDS, WordClass

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "END_TOKEN",
    "VOCABULARY_SIZE",
    "chat_prompt",
    "decode",
    "encode",
    "next_token",
    "token_bytes",
]

_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_TOKEN: Final = _SPECIAL.index("<|im_end|>")
"""The end-of-sequence token."""

_FIRST_BYTE: Final = len(_SPECIAL)
_ROLES: Final = ("user", "assistant", "system", "tool", "developer")


def _pieces() -> tuple[bytes, ...]:
    """List the spelling of every token; a token's id is its index."""
    ordered = dict.fromkeys(name.encode() for name in _SPECIAL)
    ordered.update(dict.fromkeys(bytes((value,)) for value in range(256)))
    for letters in (ascii_lowercase, digits):
        ordered.update(dict.fromkeys("".join(pair).encode() for pair in product(letters, repeat=2)))
    for words in WORDS.values():
        for word in words.spelling:
            bare = word.strip()
            title = bare.capitalize()
            forms = (word, bare, title, f" {title}")
            ordered.update(dict.fromkeys(form.encode() for form in forms))
    ordered.update(dict.fromkeys(name.encode() for name in _ROLES))
    return tuple(ordered)


_PIECES: Final = _pieces()
_IDS: Final = {piece: index for index, piece in enumerate(_PIECES)}
_LONGEST: Final = max(map(len, _PIECES))
VOCABULARY_SIZE: Final = len(_PIECES)
"""Token ids run from 0 to this, exclusive."""

_SPECIAL_PATTERN: Final = "|".join(map(re.escape, _SPECIAL))
_WORDS_PATTERN: Final = re.compile(
    rf"{_SPECIAL_PATTERN}| ?[A-Za-z]+|[0-9]+"
    rf"| ?[^\sA-Za-z0-9]+?(?={_SPECIAL_PATTERN}|[\sA-Za-z0-9]|$)|\s"
)
_CLASS_IDS: Final = {
    each: (END_TOKEN,)
    if each is WordClass.END
    else tuple(_IDS[word.encode()] for word in WORDS[each].spelling)
    for each in WordClass
}
_CLASS_OF: Final = {token: each for each in WordClass for token in _CLASS_IDS[each]}
# After these an answer starts without a space.
_BREAKS: Final = frozenset({*range(_FIRST_BYTE), *(_IDS[bytes((byte,))] for byte in b"\n\t \r")})


def encode(text: str) -> tuple[int, ...]:
    """Spell a text in tokens; special tokens in it count as such, as in real tokenizers."""
    tokens: list[int] = []
    for word in _WORDS_PATTERN.findall(text):
        tokens += _encode_word(word)
    return tuple(tokens)


@lru_cache(maxsize=65_536)
def _encode_word(word: str) -> tuple[int, ...]:
    raw = word.encode(errors="surrogatepass")
    whole = _IDS.get(raw)
    if whole is not None:
        return (whole,)
    tokens: list[int] = []
    start = 0
    while start < len(raw):
        # Pairs and bytes only: a longer match inside an unknown word would make the length of a
        # prompt depend on accidents of spelling.
        pair = _IDS.get(raw[start : start + 2])
        if pair is None:
            tokens.append(_FIRST_BYTE + raw[start])
            start += 1
        else:
            tokens.append(pair)
            start += 2
    return tuple(tokens)


def token_bytes(token: int) -> bytes:
    """Return a token's spelling; special tokens are spelt out."""
    return _PIECES[token]


def decode(tokens: Sequence[int], *, skip_special: bool = True) -> str:
    """Spell tokens as text; bytes that are no UTF-8 become U+FFFD, as in real detokenizers."""
    return b"".join(
        _PIECES[token] for token in tokens if not (skip_special and token < _FIRST_BYTE)
    ).decode(errors="replace")


def chat_prompt(messages: Sequence[tuple[str, str]], *, generate: bool) -> str:
    """Render messages with the one chat template there is, ChatML.

    Args:
        messages: Role and text of each.
        generate: Whether the assistant's turn is opened at the end.
    """
    turns = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages]
    if generate:
        turns.append("<|im_start|>assistant\n")
    return "".join(turns)


def next_token(number: int, *, previous: int, may_end: bool) -> int:
    """Choose the token after ``previous``.

    Args:
        number: 64 bits from KV memory (:func:`~pdcluster_sim.core.digests.choose`).
        previous: The last token before it.
        may_end: Whether the end-of-sequence token is a choice.
    """
    before = _CLASS_OF.get(previous)
    if previous in _BREAKS:
        classes: tuple[WordClass, ...] = (WordClass.OPENING,)
    elif before is None:
        classes = (WordClass.NEXT_OPENING,)
    else:
        classes = FOLLOWS[before]
    if not may_end:
        classes = tuple(each for each in classes if each is not WordClass.END)
    number, which = divmod(number, len(classes))
    choices = _CLASS_IDS[classes[which]]
    return choices[number % len(choices)]
