"""Elastic: a dataset's length, a seed and an epoch in, one rank's part of one global order out, from any place of it.

The position in the order counts the samples of all ranks, so it says the same on each, and any other number of ranks
can go on from there.

Guarantees: at a position, the ranks together yield what is left of the epoch's order exactly once (``tail`` says
otherwise if asked), in global batches that do not depend on their number; constant memory and time to start anywhere;
nothing is read or decided before the first index is drawn, except where to begin.
"""

import operator
from collections.abc import Iterator, Mapping, Sized
from itertools import chain
from typing import Any, cast

import torch.distributed
from torch.utils.data import DistributedSampler

from torchstage.samplers.share import TAILS, Pass, Share, Tail

VERSION = 1
MAX_RANKS = 2**31 - 1  # torch.distributed counts them in a C int


class ElasticSampler(DistributedSampler[int]):
    """Samples of a map-style dataset for one rank of any number: exactly once over all ranks, across a resume too.

    Args:
        dataset: only its length is asked for, at the first index of each epoch and by ``len``; it must be the same on
            all ranks.
        num_replicas: how many processes share each epoch. None: as many as torch.distributed has, asked for when it is
            needed, so the sampler may be made before the process group; 1 without one.
        rank: which of them this is, from 0. None: likewise.
        shuffle: an order that depends on seed, epoch and length alone; otherwise 0, 1, 2, ...
        seed: from 0 to 2**63 - 1; the same on all ranks.
        drop_last: ``tail="drop"`` in torch's words.
        tail: "exact": each sample once; ranks' counts differ by at most 1. "pad": the first samples of the epoch's
            order come again at its end until all ranks have as many. "drop": the last samples of the order, fewer than
            there are ranks, are left out. None: "drop" with ``drop_last``, else "exact".

    Raises:
        TypeError, ValueError: for arguments that cannot be meant.
    """

    # DistributedSampler has plain attributes, fixed when it is made; these follow the dataset and the process group.
    # Its __init__ would set them, and is not called: all that it does beside is done here.
    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        tail: Tail | None = None,
    ) -> None:
        self.dataset = cast(Any, dataset)
        self._num_replicas = None if num_replicas is None else _integer("num_replicas", num_replicas, 1, MAX_RANKS)
        self._rank = None if rank is None else _integer("rank", rank, 0, MAX_RANKS - 1)
        self.shuffle = _boolean("shuffle", shuffle)
        self.seed = _integer("seed", seed, 0, 2**63 - 1)
        self.tail: Tail = _tail(tail, _boolean("drop_last", drop_last))
        self.drop_last = self.tail == "drop"
        self.epoch = 0
        self._start = _Start(0)
        self._running: Pass | None = None
        self._group()
        self._length()

    @property
    def num_replicas(self) -> int:
        """How many processes share an epoch."""
        return self._group()[0]

    @property
    def rank(self) -> int:
        """Which of them this is, from 0."""
        return self._group()[1]

    @property
    def num_samples(self) -> int:
        """How many indices the next ``iter()`` of this rank yields."""
        return self._share().num_samples

    @property
    def total_size(self) -> int:
        """How many indices the next ``iter()`` of all ranks together yields."""
        return self.num_total - self._start.position

    @property
    def num_total(self) -> int:
        """Where the next ``iter()`` ends in the global order: at the dataset's length, or, padded or dropped, beside it
        by less than the number of ranks."""
        return self._share().num_total

    @property
    def position(self) -> int:
        """How many samples of the global order lie before the first one of the next ``iter()``; 0 but for a resume."""
        return self._start.position

    def __len__(self) -> int:
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order is next. A place from ``start_at`` holds in any, a state's in its own alone."""
        self.epoch = _integer("epoch", epoch)
        if self._running is not None and (self._running.has_ended or self._running.epoch != self.epoch):
            self._running = None

    def start_at(self, position: int) -> None:
        """Let the next ``iter()`` begin behind that many samples of the global order; the one after it begins at 0.

        It is used up by the first index drawn, not by ``iter()``. Raises ValueError beyond the dataset's length.
        """
        self._start = _Start(_integer("position", position, 0, self._length()))
        self._running = None

    def __iter__(self) -> Iterator[int]:
        self._running = None
        return chain.from_iterable(self._blocks(self._start))

    def _blocks(self, start: "_Start") -> Iterator[Iterator[int]]:
        """What an iterator draws from. Runs from the first index on: Lightning sets the epoch after ``iter()``."""
        if start.position and start.epoch not in (None, self.epoch):
            raise ValueError(
                f"ElasticSampler: the loaded state is at position {start.position} of epoch {start.epoch}, but "
                f"epoch {self.epoch} was set since. Go on with epoch {start.epoch}, or call start_at(0)."
            )
        self._running = Pass(self._share(start), self.epoch)
        if self._start is start:
            self._start = _Start(0)
        yield from self._running.blocks(self.seed if self.shuffle else None)

    # State ------------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is: plain values, the same on all ranks that have taken as many steps.

        Counts the indices drawn, so a loader that draws ahead keeps a count of its own. An epoch whose last index was
        drawn reads "0 of the next".
        """
        running = self._running
        if running is None:
            return self._state(self.epoch, self._start.position, self._length())
        if running.has_ended:
            return self._state(running.epoch + 1, self._start.position, self._length())
        return self._state(running.epoch, running.position, running.share.length)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Let the next ``iter()`` go on where the state was taken, on this number of ranks and with this tail.

        Raises ValueError for the state of another order (length, seed or shuffle differ), TypeError for no state.
        """
        _check_state(state_dict, self._state(self.epoch, 0, self._length()))
        epoch = _integer("epoch", state_dict["epoch"])
        self.start_at(state_dict["position"])
        self._start.epoch = self.epoch = epoch

    def _state(self, epoch: int, position: int, length: int) -> dict[str, Any]:
        return {
            "version": VERSION,
            "epoch": int(epoch),  # not a subclass that somebody gave: plain
            "position": position,
            "seed": self.seed,
            "length": length,
            "shuffle": self.shuffle,
        }

    # What is asked of others ------------------------------------------------------------------------------------

    def _share(self, start: "_Start | None" = None) -> Share:
        length, (num_replicas, rank) = self._length(), self._group()
        position = (self._start if start is None else start).position
        if position > length:
            raise ValueError(
                f"ElasticSampler: it was told to start at {position}, but the dataset has only {length} samples now. "
                "Give it the dataset that the position was counted in."
            )
        return Share(length, position, num_replicas, rank, self.tail)

    def _length(self) -> int:
        try:
            return len(self.dataset)
        except TypeError as error:
            raise TypeError(
                f"ElasticSampler: the dataset must have a length, got {type(self.dataset).__name__}. An iterable "
                "dataset has no order to share out."
            ) from error

    def _group(self) -> tuple[int, int]:
        """The number of ranks and this one. They are asked for anew: a process group may begin after the sampler."""
        num_replicas, rank = self._num_replicas, self._rank
        has_group = torch.distributed.is_available() and torch.distributed.is_initialized()
        if num_replicas is None:
            num_replicas = torch.distributed.get_world_size() if has_group else 1
        if rank is None:
            if num_replicas > 1 and not has_group:
                raise ValueError(
                    f"ElasticSampler: num_replicas is {num_replicas}, but which of them is this process? Give rank "
                    "too, or neither of them, and call torch.distributed.init_process_group before the first epoch."
                )
            rank = torch.distributed.get_rank() if has_group else 0
        if rank >= num_replicas:
            raise ValueError(
                f"ElasticSampler: rank must be from 0 to {num_replicas - 1} with {num_replicas} replicas, got {rank}."
            )
        return num_replicas, rank


class _Start:
    """Where an iterator begins. Told apart by identity: of two equal ones each can be used up by itself."""

    def __init__(self, position: int, epoch: int | None = None) -> None:
        self.position = position
        self.epoch = epoch  # None: any


# What may be given ----------------------------------------------------------------------------------------------


def _integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """The value as an int, numpy's integers too. The bounds are included."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"ElasticSampler: {name} must be an integer, got {value!r}.")
    number = operator.index(value)
    if (least is not None and number < least) or (most is not None and number > most):
        bounds = f"at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"ElasticSampler: {name} must be {bounds}, got {number}.")
    return number


def _boolean(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"ElasticSampler: {name} must be True or False, got {value!r}.")
    return value


def _tail(tail: Any, drop_last: bool) -> Tail:
    if tail is None:
        return "drop" if drop_last else "exact"
    if tail not in TAILS:
        raise ValueError(f"ElasticSampler: tail must be one of {', '.join(map(repr, TAILS))} or None, got {tail!r}.")
    if drop_last and tail != "drop":
        raise ValueError(f"ElasticSampler: drop_last=True means tail='drop', got tail={tail!r} too. Give one of them.")
    return tail


def _check_state(state: Any, mine: Mapping[str, Any]) -> None:
    """Refuse what is not the state of an order like mine. Epoch and position are free."""
    if not isinstance(state, Mapping):
        raise TypeError(f"ElasticSampler: a state is what state_dict() returned, got {type(state).__name__}.")
    theirs = cast("Mapping[str, Any]", state)
    if missing := [name for name in mine if name not in theirs]:
        raise ValueError(
            f"ElasticSampler: this is not a state of an ElasticSampler: it has {sorted(map(str, theirs))}, without "
            f"{', '.join(missing)}. Give it what state_dict() returned."
        )
    if theirs["version"] != mine["version"]:
        raise ValueError(
            f"ElasticSampler: the state has version {theirs['version']!r}, this torchstage reads version "
            f"{mine['version']}. Load it with the torchstage that saved it."
        )
    others = [name for name in ("length", "seed", "shuffle") if theirs[name] != mine[name]]
    if others:
        raise ValueError(
            "ElasticSampler: the state belongs to another order: "
            + ", ".join(f"{name} was {theirs[name]!r} and is {mine[name]!r}" for name in others)
            + ". Its position means nothing in this one. Make the sampler as it was when the state was saved "
            "(num_replicas, rank and tail may differ), or begin an epoch without the state."
        )
