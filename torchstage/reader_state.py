"""Reader state: a loader of an iterable dataset in, what all its states have in common out, and back.

A state is a dict of dicts, lists, strings, integers, booleans and None; what the user's ``state_dict`` gives is in it
as it is.

Guarantees: a state that does not fit the loader is refused, with what differs and what may differ.
"""

import copy
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch

from torchstage.bad import BadSamples
from torchstage.draws import States, Stream, restore, text_of
from torchstage.marks import Mark, Start, keeper_of

VERSION = 1
LANES, INLINE, WORKERS = "lanes", "inline", "workers"  # the kinds of state
WORDS = {
    "map": "of a map-style dataset",
    LANES: "of lanes, threads that each read a copy of the dataset",
    INLINE: "of num_workers=0, where the caller's thread reads the dataset itself",
    WORKERS: "of worker processes",
}
ALLOWED = (
    "What may change: prefetch_factor, persistent_workers, in_order, timeout, snapshot_every_n_steps, device, "
    "pin_memory. num_workers (or lanes), batch_size, drop_last and seed say who has read what, and must stay."
)


@dataclass(frozen=True, slots=True)
class Resume:
    """A state that was loaded, checked."""

    raw: dict[str, Any]  # as it was given
    kind: str
    is_boundary: bool  # between two epochs
    num_batches: int  # handed out
    num_epochs: int  # of lanes, begun by then
    base_seed: int | None
    shared_seed: int | None  # of a data pipe
    now: States  # the generators that base seeds are drawn from, when the state was saved
    readers: list[Start] | None
    next_lane: int
    own: Any  # of worker processes: torchdata's state
    bad: dict[str, Any] | None = None  # samples of the epoch that were bad
    num_samples: int = 0  # handed out, as far as that is known: what the batches may hold
    repeat: int = 0  # of no meaning here

    def check_kind(self, kind: str) -> None:
        """Raise for a state of readers of another kind."""
        if self.kind != kind and not (self.is_boundary and self.readers is None and self.own is None):
            raise ValueError(
                f"StageLoader: this state is {WORDS.get(self.kind, self.kind)}; this loader's would be {WORDS[kind]}. "
                f"{ALLOWED}"
            )


class Pending:
    """A loaded state that no iterator has taken yet."""

    is_started = False
    is_pending = True

    def __init__(self, resume: Resume) -> None:
        self.resume = resume


def kind_of(loader: Any) -> str:
    """The kind of readers that the loader has; whether its dataset can be copied shows later."""
    if loader.num_workers == 0:
        return INLINE
    return WORKERS if loader.is_in_processes else LANES


def num_readers(loader: Any) -> int:
    return 1 if loader.num_workers == 0 else loader.lanes or loader.num_workers


def fingerprint_of(loader: Any) -> dict[str, Any]:
    return {
        "dataset": type(keeper_of(loader.dataset) or getattr(loader.dataset, "_datapipe", loader.dataset)).__qualname__,
        "num_readers": num_readers(loader),
        "batch_size": loader.batch_size,
        "drop_last": loader.drop_last,
        "seed": loader.seed,
    }


def state_with(loader: Any, kind: str, *, bad: dict[str, Any] | None = None, **state: Any) -> dict[str, Any]:
    """What a state of any kind consists of. ``bad``: samples of the epoch that were bad, if any were."""
    head = {
        "version": VERSION,
        "kind": kind,
        "is_boundary": False,
        "num_batches": 0,
        "num_epochs": 0,
        "base_seed": None,
        "shared_seed": None,
        "readers": None,
        "next_lane": 0,
        "own": None,
    }
    told = {"bad_samples": bad} if bad is not None and not state.get("is_boundary") else {}
    return {**head, **state, **told, "generators_now": _now(loader), "fingerprint": fingerprint_of(loader)}


def _now(loader: Any) -> States:
    return loader.stream.states(("torch",)) if loader.generator is None else {"loader": text_of(loader.generator)}


def bad_of(resume: Resume | None) -> BadSamples:
    """Bad samples of the epoch that begins, or goes on."""
    if resume is None or resume.is_boundary:
        return BadSamples()
    return BadSamples.of_plain(resume.bad, resume.num_samples)


def loaded(loader: Any, state: dict[str, Any]) -> Pending:
    """What the loader's next iterator is to go on with. Raises ValueError for the state of another loader."""
    fits_any = state["is_boundary"] and state["readers"] is None and state["own"] is None
    here, saved = fingerprint_of(loader), cast("dict[str, Any]", state["fingerprint"])
    names = {"num_readers": "the number of readers (lanes or num_workers)", "dataset": "the dataset's type"}
    differing = [name for name in here if saved.get(name) != here[name]]
    if state["kind"] not in (LANES, INLINE, WORKERS) or (INLINE in (state["kind"], kind_of(loader)) and not fits_any):
        _parsed(state).check_kind(kind_of(loader))
    if differing:
        words = [f"{names.get(name, name)} was {saved.get(name)!r} and is {here[name]!r}" for name in differing]
        raise ValueError(f"StageLoader: this state does not fit this loader: {'; '.join(words)}. {ALLOWED}")
    return Pending(_parsed(copy.deepcopy(state)))


def _parsed(state: dict[str, Any]) -> Resume:
    readers = state.get("readers")
    base_seed = state.get("base_seed")
    return Resume(
        raw=state,
        kind=state["kind"],
        is_boundary=state.get("is_boundary", False),
        num_batches=state.get("num_batches", 0),
        num_epochs=state.get("num_epochs", 0),
        base_seed=base_seed,
        shared_seed=state.get("shared_seed"),
        now=state.get("generators_now", {}),
        readers=None if readers is None else [_start(reader, base_seed or 0) for reader in readers],
        next_lane=state.get("next_lane", 0),
        own=state.get("own"),
        bad=state.get("bad_samples"),
        num_samples=state.get("num_batches", 0) * (state["fingerprint"].get("batch_size") or 1),
    )


def _start(reader: dict[str, Any], base_seed: int) -> Start:
    num_read = reader.get("num_read", 0)
    mark = Mark(reader["num_batches"], reader["dataset"], reader["iterator"], reader["draws"], num_read=num_read)
    at_start = reader["draws_at_start"]
    return Start(mark, reader["num_since"], reader["has_ended"], at_start, base_seed, reader["has_state"])


# The draw of the base seed ------------------------------------------------------------------------------------


def follow(loader: Any, resume: Resume) -> None:
    """Have the generators that base seeds are drawn from go on from where they were."""
    if loader.generator is not None and "loader" in resume.now:
        restore(loader.generator, resume.now["loader"])
    if loader.generator is None and "torch" in resume.now:
        loader.stream.follow({"torch": resume.now["torch"]})


def drawing_base_seed(
    stream: Stream, base_seed: int | None, generator: torch.Generator | None
) -> AbstractContextManager[None]:
    """Around the draw of an iterator's base seed, which a resumed run has made before."""
    return stream.drawing() if base_seed is None else unmoved(generator or torch.default_generator)


@contextmanager
def unmoved(generator: torch.Generator) -> Generator[None]:
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)
