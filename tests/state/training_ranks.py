"""Training ranks: a script whose processes are the ranks of a training with DistributedDataParallel over gloo.

In: a folder, the name of this run, the number of ranks, batch size, number of epochs, the step to stop in. Out, there:
RUN_RANK.jsonl with the epoch, step, indices and draws of each batch, written before the model sees it; checkpoint.pt,
which rank 0 replaces every third step and which every rank goes on from. In the step to stop in (-1: none), rank 0 says
so and waits to be killed; the others then wait for it in the next step.
"""

import json
import multiprocessing
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # else the optimizer of each rank imports it, which takes seconds
import torch.distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from torchstage import StageLoader
from torchstage.samplers import ElasticSampler

LENGTH, SEED, STEPS_PER_CHECKPOINT = 90, 5, 3


class Noisy(Dataset[Any]):
    """Its samples have a number, and something random that belongs to the sample."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> Any:
        return index, torch.rand(4)


def saved(checkpoint: Any, path: Path) -> None:
    """There is a whole checkpoint at any time, whenever this process ends."""
    torch.save(checkpoint, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)  # noqa: PTH105  # what it is: one step


def train(folder: Path, run: str, rank: int, batch_size: int, num_epochs: int, last_step: int) -> None:
    torch.manual_seed(rank)  # as most scripts do, so that ranks draw differently
    path = folder / "checkpoint.pt"
    model = torch.nn.Linear(4, 1)
    loader = StageLoader(Noisy(), batch_size, sampler=ElasticSampler(Noisy(), seed=SEED), num_workers=2)
    epoch = step = 0
    if path.exists():
        checkpoint = torch.load(path, weights_only=True)
        model.load_state_dict(checkpoint["model"])
        loader.load_state_dict(checkpoint["loader"])
        epoch, step = checkpoint["epoch"], checkpoint["step"]
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    with loader, (folder / f"{run}_{rank}.jsonl").open("w") as log:
        for epoch in range(epoch, num_epochs):  # noqa: B020
            loader.sampler.set_epoch(epoch)  # pyright: ignore[reportAttributeAccessIssue]
            for indices, noise in loader:
                step += 1
                drawn = noise.double().sum(1).tolist()
                print(json.dumps([epoch, step, indices.tolist(), drawn]), file=log, flush=True)
                optimizer.zero_grad()
                wrapped(noise).square().mean().backward()  # waits for all ranks
                optimizer.step()
                if rank == 0 and step % STEPS_PER_CHECKPOINT == 0:
                    state = {"model": model.state_dict(), "loader": loader.state_dict(), "epoch": epoch, "step": step}
                    saved(state, path)
                if rank == 0 and step == last_step:
                    print("kill me", flush=True)
                    signal.pause()


def rank_of(folder: Path, run: str, rank: int, num_ranks: int, *arguments: int) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/{run}", rank=rank, world_size=num_ranks)
    train(folder, run, rank, *arguments)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def main(folder: str, run: str, *numbers: str) -> int:
    num_ranks, *arguments = map(int, numbers)
    fork = multiprocessing.get_context("fork")  # torch, imported once, has no threads yet
    ranks = [
        fork.Process(target=rank_of, args=(Path(folder), run, rank, num_ranks, *arguments)) for rank in range(num_ranks)
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return sum(process.exitcode != 0 for process in ranks)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
