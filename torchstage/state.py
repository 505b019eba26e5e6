"""State: a loader of a map-style dataset in, its place in its sampler's order as plain values out, and back.

A state is a dict of dicts, lists, strings, integers, booleans and None; its size does not grow with the place. What a
sampler's own ``state_dict`` gives is in it as it is.

Guarantees: the state counts what was handed out, not what was made ahead; one that does not fit the loader is refused,
with what differs and what may differ.
"""

import copy
from collections import deque
from dataclasses import replace
from typing import Any, cast

from torchstage.draws import States
from torchstage.epoch import Epoch, Resume, Snapshot, Told
from torchstage.sampling import Sampling

VERSION = 1
MAP = "map"  # the kind of state that this is
ALLOWED = (
    "What may change: num_workers, threads or processes, prefetch_factor, device, stages' executors, and "
    "batch_size where the loader makes the batches; the number of ranks with torchstage.samplers.ElasticSampler."
)
NAMES = {
    "loader_seed": "seed",
    "length": "the sampler's length",
    "seed": "the sampler's seed",
    "sampler": "the sampler",
}


def state_of(loader: Any, epoch: Epoch | None) -> dict[str, Any]:
    """Where the loader's latest epoch is; between two epochs, where the next one begins."""
    if epoch is not None and not epoch.is_ordered:
        raise RuntimeError(
            "StageLoader.state_dict: worker processes with in_order=False do not tell which batches were handed out. "
            "Use in_order=True, or threads (worker_method='thread')."
        )
    if epoch is not None and epoch.resume is not None and epoch.is_pending:
        return copy.deepcopy(epoch.resume.raw)
    sampling = Sampling.of(loader) if epoch is None else epoch.sampling
    # The sampler may draw for the last time when it is asked whether it has more.
    is_boundary = epoch is None or not epoch.has_begun or epoch.is_finished()
    kinds = sampling.kinds if epoch is None or is_boundary else epoch.drawn
    now = {**sampling.own_states(), **loader.stream.states(kinds)}
    if epoch is not None and epoch.was_left and sampling.draws_at_its_end:
        now |= _own_states_at_the_end(sampling, epoch)
    if epoch is not None and not epoch.has_begun:  # as if its iterator had not been made: the next one draws the same
        now = epoch.before_iter or epoch.begun or now
    state = _boundary(loader, sampling, epoch) if epoch is None or is_boundary else _inside(sampling, epoch, now)
    if epoch is None or is_boundary:
        fingerprint = fingerprint_of(loader, sampling)
    elif epoch.fingerprint is None:
        fingerprint = epoch.fingerprint = fingerprint_of(loader, sampling, epoch.length)
    else:
        fingerprint = epoch.fingerprint
    return {"version": VERSION, "kind": MAP, **state, "generators_now": now, "fingerprint": dict(fingerprint)}


def _own_states_at_the_end(sampling: Sampling, epoch: Epoch) -> States:
    """Where the sampler's own generators would be if the loop had not been left at the last batch."""
    real = sampling.own_states()
    try:
        sampling.restore(epoch.pulled)
        deque(iter(sampling.sampler), maxlen=0)
        return sampling.own_states()
    finally:
        sampling.restore(real)


def _inside(sampling: Sampling, epoch: Epoch, now: States) -> dict[str, Any]:
    position, snapshot, start = epoch.position, epoch.snapshot, epoch.snapshot_of_start
    state = dict(epoch.constant or _constant(sampling, epoch))  # which takes longer than all the rest
    if sampling.is_elastic:
        state["position"] = epoch.elastic_position()
    else:
        state["position"], state["last_index"] = position.low, position.last
        state["sampler_state"] = None if snapshot is None else _plain_snapshot(snapshot)
    shift = position.low if sampling.is_elastic else 0
    state["beyond"] = above = [[begin - shift, end - shift] for begin, end in position.above]
    if epoch.is_own and (above or sampling.num_replicas != 1):
        state["rank"] = sampling.ranks
    state["sampler_state_at_start"] = None if start is None or start is snapshot else _plain_snapshot(start)
    state["generators"] = epoch.begun or now
    if (bad := epoch.bad.plain()) is not None:
        state["bad_samples"] = bad
    return state


def _constant(sampling: Sampling, epoch: Epoch) -> dict[str, Any]:
    """What every state inside an epoch has, with room for what changes from batch to batch."""
    constant: dict[str, Any] = {
        "position": None,
        "counts": "batches" if sampling.has_own_batches else "samples",
        "beyond": None,
        "rank": None,
        "last_index": None,
        "last_of": None if sampling.is_elastic else sampling.ranks,
        "is_boundary": False,
        "is_finished": False,
        "epoch": sampling.epoch if epoch.number is None else epoch.number,
        "repeat": epoch.repeat,
        "base_seed": epoch.base_seed,
        "sampler_state": None,
        "sampler_state_at_start": None,
        "generators": None,
        "generators_of_first": None if epoch.pulled == epoch.begun else epoch.pulled,
    }
    if epoch.position.num_batches:  # from here on it does not change
        epoch.constant = constant
    return constant


def _boundary(loader: Any, sampling: Sampling, epoch: Epoch | None) -> dict[str, Any]:
    number = sampling.epoch
    start = sampling.sampler.position if sampling.is_elastic else 0  # as its own start_at has it
    base_seed, repeat = loader.next_base_seed()
    if epoch is not None and not epoch.has_begun:
        base_seed, repeat = None if epoch.before_iter else base_seed, max(repeat - 1, 0)
    has_seed = loader.seed is not None or sampling.number("seed") is not None  # else the base seed is all there is
    has_state = callable(getattr(sampling.sampler, "state_dict", None)) and not sampling.is_elastic
    own = copy.deepcopy(sampling.sampler.state_dict()) if has_state else None
    return {
        "position": start,
        "counts": "batches" if sampling.has_own_batches else "samples",
        "beyond": [],
        "rank": None,
        "last_index": None,
        "last_of": None,
        "is_boundary": not start,
        "is_finished": not start and epoch is not None and epoch.number is not None and epoch.number == number,
        "epoch": number,
        "repeat": loader.num_begun[number or 0] if has_seed else repeat,
        "base_seed": base_seed,
        "sampler_state": None if own is None else _plain_snapshot(Snapshot(0, own, None)),
        "sampler_state_at_start": None,
        "generators": {},
        "generators_of_first": None,
    }


def _plain_snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {"at": snapshot.at, "sampler": snapshot.sampler, "iterator": snapshot.iterator}


def fingerprint_of(loader: Any, sampling: Sampling, length: int | None = None) -> dict[str, Any]:
    """What a state must fit. ``length``: that of an epoch that has begun, if the sampler says another one later."""
    return {
        "sampler": type(sampling.sampler).__qualname__,
        "length": sampling.length if length is None else length,
        "seed": sampling.number("seed"),
        "shuffle": sampling.number("shuffle"),
        "loader_seed": loader.seed,
        "batch_size": sampling.batch_size,
        "num_replicas": None if sampling.is_elastic else sampling.num_replicas,
    }


# Back ----------------------------------------------------------------------------------------------------------


def refuse_others(state: Any, *, is_map: bool) -> None:
    """Raise for what is no state of a StageLoader of this version or older, for a dataset of this kind."""
    if not isinstance(state, dict):
        raise TypeError(f"StageLoader: a state is a dict, got {type(state).__name__}.")
    known = cast(dict[str, Any], state)
    if "_snapshot" in known or "_sampler_iter_yielded" in known:
        raise ValueError(
            "StageLoader: this state was saved by torchdata's StatefulDataLoader, which counts otherwise. Finish that "
            "epoch with StatefulDataLoader, and begin the next one with StageLoader."
        )
    version: Any = known.get("version")
    if not isinstance(version, int) or "kind" not in known:
        raise ValueError(f"StageLoader: this is no state of a StageLoader; its keys are {sorted(map(str, known))}.")
    if (known["kind"] == MAP) != is_map:
        saved, here = ("a map-style", "an iterable") if known["kind"] == MAP else ("an iterable", "a map-style")
        raise ValueError(f"StageLoader: this state is of {saved} dataset, and this loader's is {here} one.")
    if version > VERSION:
        raise ValueError(
            f"StageLoader: this state is of version {version}, and this torchstage knows up to {VERSION}. Update it."
        )


def parsed(loader: Any, state: dict[str, Any]) -> Resume:
    """What the loader goes on with. Raises ValueError for the state of another loader."""
    sampling = Sampling.of(loader)
    _refuse_mismatch(fingerprint_of(loader, sampling), state, sampling)
    state = copy.deepcopy(state)
    snapshot, start = state["sampler_state"], state["sampler_state_at_start"]
    elastic = sampling.is_elastic
    return Resume(
        raw=state,
        is_boundary=state["is_boundary"],
        position=state["position"],
        low=0 if elastic else state["position"],
        above=[(begin, end) for begin, end in state["beyond"]],
        last=state["last_index"] if state["last_of"] == sampling.ranks else None,  # ranks may share a state
        begun=state["generators"],
        pulled=state["generators_of_first"] or {},
        now=state["generators_now"],
        epoch=state["epoch"],
        is_finished=state["is_finished"],
        repeat=state["repeat"],
        base_seed=state["base_seed"],
        sampler=None if snapshot is None else Snapshot(**snapshot),
        sampler_at_start=None if start is None else Snapshot(**start),
        bad=state.get("bad_samples"),
    )


def _refuse_mismatch(here: dict[str, Any], state: dict[str, Any], sampling: Sampling) -> None:
    saved = cast(dict[str, Any], state["fingerprint"])
    counts = "batches" if sampling.has_own_batches else "samples"
    free = {"batch_size"} if state["counts"] == counts == "samples" else set[str]()
    differing = [name for name in here if name not in free and saved.get(name) != here[name]]
    words = [f"{NAMES.get(name, name)} was {saved.get(name)!r} and is {here[name]!r}" for name in differing]
    if state["rank"] is not None and state["rank"] != sampling.ranks:
        words.append(
            f"with in_order=False the state of an epoch is each rank's own, [rank, ranks] was {state['rank']} and is "
            f"{sampling.ranks}"
        )
    if words:
        raise ValueError(f"StageLoader: this state does not fit this loader: {'; '.join(words)}. {ALLOWED}")


def loaded(loader: Any, state: dict[str, Any]) -> Epoch:
    """The epoch that the loader is to go on with; its sampler is told which one it is."""
    resume, sampling = parsed(loader, state), Sampling.of(loader)
    if resume.epoch is not None:
        # In a way that shows whether anybody sets it afterwards.
        shows = sampling.set_epoch(Told(resume.epoch))
        resume = replace(resume, is_finished=resume.is_finished and shows)
    if resume.is_boundary:  # now: whoever seeds them later means it
        sampling.restore(resume.now)
        loader.stream.follow({kind: resume.now[kind] for kind in sampling.kinds if kind in resume.now})
    return Epoch(sampling, loader.stream, loader.num_begun, resume)
