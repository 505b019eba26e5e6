"""Two ranks: a script for torchrun's environment: what two ranks of accelerate are given, before a cut and after it.

Each rank seeds itself otherwise, and before it goes on otherwise again. In: a folder. Out: rank_0.json and rank_1.json
there.
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import Dataset, IterableDataset, RandomSampler, SubsetRandomSampler

from torchstage import StageLoader
from torchstage.integrations.accelerate import keep_stage_loaders

LENGTH, LENGTH_OF_PART = 14, 8
CUTS = (2, 4)  # inside an epoch; after one
PATIENT = 3  # epochs that are compared


class Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(torch.randint(1000, ()))])


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.arange(LENGTH)[:, None])


class ShuffledStream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Any:
        return iter(torch.randperm(LENGTH)[:, None])


def loaders() -> dict[str, StageLoader[Any]]:
    part: Any = RandomSampler(range(LENGTH_OF_PART))
    return {
        "shuffled": StageLoader(Noisy(), batch_size=2, shuffle=True, num_workers=2),
        "in order": StageLoader(Noisy(), batch_size=2, num_workers=2),
        "a subset": StageLoader(Noisy(), batch_size=2, sampler=SubsetRandomSampler(range(LENGTH)), num_workers=2),
        "a part": StageLoader(Noisy(), batch_size=2, sampler=part, num_workers=2),
        "a stream": StageLoader(Stream(), batch_size=2, num_workers=2, lanes=1),
        "a shuffled stream": StageLoader(ShuffledStream(), batch_size=2, num_workers=2, lanes=1),
    }


def new_accelerator() -> Accelerator:
    return keep_stage_loaders(Accelerator(cpu=True))


def epochs(loader: Any, number_of: int) -> list[Any]:
    return [batch.tolist() for _ in range(number_of) for batch in loader]


def main(folder: Path) -> None:
    warnings.simplefilter("ignore")
    accelerator = new_accelerator()
    rank = accelerator.process_index
    found: dict[str, Any] = {}
    for name in loaders():
        torch.manual_seed(20 + rank)
        made = accelerator.prepare(loaders()[name])
        whole = epochs(made, PATIENT)
        gathered = [accelerator.gather_for_metrics(batch).tolist() for batch in made]
        accelerator.free_memory()
        resumed = {str(cut): cut_and_gone_on(accelerator, name, cut, folder / f"{name} {cut}") for cut in CUTS}
        found[name] = {"whole": whole, "gathered": gathered, "resumed": resumed}
    (folder / f"rank_{rank}.json").write_text(json.dumps(found))
    accelerator.end_training()


def cut_and_gone_on(accelerator: Accelerator, name: str, cut: int, folder: Path) -> list[Any]:
    torch.manual_seed(20 + accelerator.process_index)
    made = accelerator.prepare(loaders()[name])
    before = []
    for batch in made:
        before.append(batch.tolist())
        if len(before) == cut < CUTS[-1]:
            break
    accelerator.save_state(str(folder))
    accelerator.free_memory()

    torch.manual_seed(70 + accelerator.process_index)
    made = accelerator.prepare(loaders()[name])
    accelerator.load_state(str(folder))
    after = epochs(made, PATIENT - made.iteration)
    accelerator.free_memory()
    return before + after


if __name__ == "__main__":
    main(Path(sys.argv[1]))
