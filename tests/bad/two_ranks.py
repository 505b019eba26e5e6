"""Two ranks: a script that is one rank of two, joined by gloo on the CPU, whose ranks meet after every step.

In: a folder and the rank. Out: rank_0.json or rank_1.json there: what each loader below gave this rank, step by step.
"""

import json
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from torch.utils.data import DistributedSampler, Subset

from tests.bad.broken import ERROR, FILTERED, GOOD, Moody
from torchstage import StageLoader, TooManyBadSamples
from torchstage.samplers import ElasticSampler

LENGTH, BATCH_SIZE = 32, 4
FEW, WHOLE = (0, 2, 4), (0, 2, 4, 6)  # rank 0 has the even ones: some of its first batch, and all of it
PLACES: dict[str, dict[str, Any]] = {
    "inline": {"num_workers": 0},
    "threads": {"num_workers": 2, "worker_method": "thread"},
    "processes": {"num_workers": 2, "worker_method": "multiprocessing"},
}
SAMPLERS = ("DistributedSampler", "ElasticSampler", "no sampler")
LOOKED_AT = [*((place, SAMPLERS[0]) for place in PLACES), ("threads", SAMPLERS[1]), ("threads", SAMPLERS[2])]
POLICIES: dict[str, tuple[str, tuple[int, ...], int]] = {  # what is done, with which samples, and how they fail
    "skip a few": ("skip", FEW, ERROR),
    "skip a batch": ("skip", WHOLE, ERROR),
    "replace a batch": ("replace", WHOLE, ERROR),
    "filter a few": ("raise", FEW, FILTERED),
    "filter a batch": ("raise", WHOLE, FILTERED),
}
NOTHING_LEFT = "no sample of a batch is left, and other ranks wait"
MAX_WAIT = timedelta(seconds=60)


def loader_of(rank: int, sampler: str, policy: str, place: str) -> StageLoader[Any]:
    on_error, failing, mood = POLICIES[policy]
    moods = [mood if index in failing else GOOD for index in range(LENGTH)]
    data: Any = Moody(moods)
    given: dict[str, Any] = {"batch_size": BATCH_SIZE, "on_error": on_error, **PLACES[place]}
    if sampler == "no sampler":  # the user's own way to share
        return StageLoader(Subset(data, range(rank, LENGTH, 2)), **given)
    shared: Any = DistributedSampler(data, shuffle=False)
    if sampler == "ElasticSampler":
        shared = ElasticSampler(data, shuffle=False)
    return StageLoader(data, sampler=shared, **given)


def steps_of(loader: StageLoader[Any]) -> list[Any]:
    """What each step of an epoch gave, while the other rank takes a step, too."""
    seen: list[Any] = []
    with loader:
        batches = iter(loader)
        while True:
            try:
                seen.append(next(batches).tolist())
            except StopIteration:
                break
            except TooManyBadSamples as error:
                seen.append(NOTHING_LEFT if NOTHING_LEFT in str(error) else str(error))
            torch.distributed.all_reduce(torch.ones(1))
    return seen


def main(folder: Path, rank: int) -> None:
    warnings.filterwarnings("ignore", "StageLoader: [0-9]+ bad samples", UserWarning)
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=2, timeout=MAX_WAIT
    )
    found: dict[str, Any] = {}
    for place, sampler in LOOKED_AT:
        for policy in POLICIES:
            found[f"{place}, {sampler}, {policy}"] = steps_of(loader_of(rank, sampler, policy, place))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
