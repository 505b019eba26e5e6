"""Tokens: English text in, a tokenizer in plain Python and texts for it out: work that holds the GIL throughout.

The text is the Python documentation that every interpreter brings along. The tokenizer is a byte-pair encoder of the
kind that language models use: a regular expression cuts the text into words, each word's bytes are merged pair by pair,
the best-ranked pair first, and a dict gives each piece its number. Guarantees: the same texts and the same numbers in
every process of one interpreter; nothing is imported but the standard library and torch.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from itertools import pairwise

import torch
from torch.utils.data import Dataset

WORDS = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")
NUM_MERGES = 300
NUM_COMMON_WORDS = 600  # which the merges are learned from
TEXT_CHARACTERS = 420  # about 1 ms
NUM_TOKENS = 256  # of each sample, cut or filled up
FILL = 0

Pair = tuple[str, str]


class Tokenizer:
    """Text in, token numbers out; each word anew, as where a text has few words twice."""

    def __init__(self, ranks: dict[Pair, int]) -> None:
        self.ranks = ranks
        pieces = [chr(byte) for byte in range(256)] + [left + right for left, right in ranks]
        self.numbers = {piece: number for number, piece in enumerate(pieces, start=1)}

    def __call__(self, text: str) -> list[int]:
        return [
            self.numbers[piece]
            for word in WORDS.findall(text)
            for piece in merged(word.encode().decode("latin-1"), self.ranks)
        ]


class Texts(Dataset[torch.Tensor]):
    """int64 of NUM_TOKENS, from a text of so many characters."""

    def __init__(self, num_samples: int, num_characters: int = TEXT_CHARACTERS) -> None:
        self.texts = texts(num_samples, num_characters)
        self.tokenizer = Tokenizer(learned())

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> torch.Tensor:
        return filled(self.tokenizer(self.texts[index]))


def filled(numbers: list[int]) -> torch.Tensor:
    return torch.tensor((numbers + [FILL] * NUM_TOKENS)[:NUM_TOKENS])


def merged(word: str, ranks: dict[Pair, int]) -> list[str]:
    """The pieces of a word, when no pair of neighbours has a rank any more."""
    pieces = list(word)
    while len(pieces) > 1:
        best = min(pairwise(pieces), key=lambda pair: ranks.get(pair, NUM_MERGES))
        if best not in ranks:
            break
        pieces = joined(pieces, best)
    return pieces


def joined(pieces: list[str], pair: Pair) -> list[str]:
    """The pieces, with each such pair of neighbours as one."""
    made: list[str] = []
    at = 0
    while at < len(pieces):
        if at + 1 < len(pieces) and (pieces[at], pieces[at + 1]) == pair:
            made.append(pieces[at] + pieces[at + 1])
            at += 2
        else:
            made.append(pieces[at])
            at += 1
    return made


@functools.cache
def learned() -> dict[Pair, int]:
    """The merges and their ranks: time and again, the pair that the common words have most often becomes one piece."""
    counts = Counter(WORDS.findall(corpus())).most_common(NUM_COMMON_WORDS)
    words = [(list(word.encode().decode("latin-1")), count) for word, count in counts]
    ranks: dict[Pair, int] = {}
    for rank in range(NUM_MERGES):
        pairs: Counter[Pair] = Counter()
        for pieces, count in words:
            for pair in pairwise(pieces):
                pairs[pair] += count
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        ranks[best] = rank
        words = [(joined(pieces, best), count) for pieces, count in words]
    return ranks


@functools.cache
def corpus() -> str:
    from pydoc_data.topics import topics

    return "".join(topics[name] for name in sorted(topics))


def texts(num_samples: int, num_characters: int) -> list[str]:
    """Pieces of the documentation, one behind the other, and again from its beginning."""
    whole = corpus()
    begins = (number * num_characters % (len(whole) - num_characters) for number in range(num_samples))
    return [whole[begin : begin + num_characters] for begin in begins]
