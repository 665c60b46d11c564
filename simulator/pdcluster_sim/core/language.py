"""The engine's language: which words follow which.

Pure. Sentences are built from word classes, so that an answer reads like English; which word of a
class comes next is decided by a number that the caller takes from KV memory. Leading spaces belong
to the words, as in the vocabularies of real models.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FOLLOWS", "WORDS", "WordClass", "Words"]


class WordClass(StrEnum):
    """Where in a sentence a word may stand."""

    OPENING = "opening"
    """Begins an answer or a paragraph: no leading space."""
    NEXT_OPENING = "next-opening"
    """Begins another sentence."""
    SUBJECT_ADJECTIVE = "subject-adjective"
    SUBJECT = "subject"
    VERB = "verb"
    DETERMINER = "determiner"
    OBJECT_ADJECTIVE = "object-adjective"
    OBJECT = "object"
    ADVERB = "adverb"
    PREPOSITION = "preposition"
    FULL_STOP = "full-stop"
    END = "end"
    """The end-of-sequence token."""


@dataclass(frozen=True, slots=True)
class Words:
    """The members of one class, as they are spelt in text."""

    spelling: tuple[str, ...]


def _words(text: str, *, before: str = " ") -> Words:
    return Words(tuple(before + word for word in text.split()))


_OPENINGS: Final = "The A Every This One Each Another Some That No Our Your"

WORDS: Final[Mapping[WordClass, Words]] = MappingProxyType(
    {
        WordClass.OPENING: _words(_OPENINGS, before=""),
        WordClass.NEXT_OPENING: _words(_OPENINGS),
        WordClass.SUBJECT_ADJECTIVE: _words(
            "old young careful patient busy curious quiet clever gentle proud tired honest hungry "
            "friendly modest nervous stubborn wise brave cheerful"
        ),
        WordClass.SUBJECT: _words(
            "engineer fox river teacher sailor farmer clerk pilot writer doctor gardener traveller "
            "child neighbour musician baker captain student painter crowd dog owl librarian miner "
            "scholar shepherd tailor weaver hunter judge nurse poet"
        ),
        WordClass.VERB: _words(
            "carries keeps finds follows builds repairs paints reads remembers watches gathers "
            "measures opens closes sells buys draws shares studies mends hides lifts brings counts "
            "guards leaves moves needs offers prepares receives returns"
        ),
        WordClass.DETERMINER: _words("the a this every another one that some its each no our"),
        WordClass.OBJECT_ADJECTIVE: _words(
            "bright small heavy broken wooden silver narrow empty distant ancient green cold warm "
            "simple golden hidden open round sharp soft tall thin wide white"
        ),
        WordClass.OBJECT: _words(
            "letter bridge garden lantern boat map clock window basket mountain road harbour story "
            "table coat key ladder mirror needle orchard parcel quilt rope saddle tower umbrella "
            "valley wagon well yard book barrel candle drum engine fence gate hammer island jar"
        ),
        WordClass.ADVERB: _words(
            "slowly again early quietly often today together twice gladly alone yesterday "
            "carefully rarely soon always tomorrow"
        ),
        WordClass.PREPOSITION: _words(
            "near under behind beside over across inside above along beyond below through against "
            "before after without"
        ),
        WordClass.FULL_STOP: Words((".",)),
    }
)
"""Every word the engine can say, by class; END is a special token and not spelt."""

FOLLOWS: Final[Mapping[WordClass, tuple[WordClass, ...]]] = MappingProxyType(
    {
        WordClass.OPENING: (WordClass.SUBJECT_ADJECTIVE, WordClass.SUBJECT),
        WordClass.NEXT_OPENING: (WordClass.SUBJECT_ADJECTIVE, WordClass.SUBJECT),
        WordClass.SUBJECT_ADJECTIVE: (WordClass.SUBJECT,),
        WordClass.SUBJECT: (WordClass.VERB,),
        WordClass.VERB: (WordClass.DETERMINER, WordClass.DETERMINER, WordClass.PREPOSITION),
        WordClass.DETERMINER: (WordClass.OBJECT_ADJECTIVE, WordClass.OBJECT),
        WordClass.OBJECT_ADJECTIVE: (WordClass.OBJECT,),
        WordClass.OBJECT: (
            WordClass.FULL_STOP,
            WordClass.FULL_STOP,
            WordClass.PREPOSITION,
            WordClass.ADVERB,
        ),
        WordClass.ADVERB: (WordClass.FULL_STOP,),
        WordClass.PREPOSITION: (WordClass.DETERMINER,),
        # One sentence in five is the last one.
        WordClass.FULL_STOP: (WordClass.END, *(WordClass.NEXT_OPENING,) * 4),
        WordClass.END: (WordClass.OPENING,),
    }
)
"""What may stand after a word of a class; a class named twice is twice as likely."""
