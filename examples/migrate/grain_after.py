"""The same with StageLoader: shuffled, decoded in threads, cut at random, resumed."""

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypedDict

import av
import made
import numpy as np
from torch.utils.data import Dataset

from torchstage import Stage, StageLoader, sample_rng
from torchstage.samplers import ElasticSampler

NUM_FRAMES = 8
WINDOW = 96


class Video(TypedDict):
    frames: Any  # uint8, NUM_FRAMES x height x width x 3
    label: int
    number: int  # in the list of files


class Source(Dataset):
    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[int, bytes]:
        return index, Path(self.paths[index]).read_bytes()


def decode(item: tuple[int, bytes]) -> Video:
    number, data = item
    with av.open(io.BytesIO(data)) as container:
        container.streams.video[0].thread_count = 1
        every = made.NUM_FRAMES // NUM_FRAMES
        pictures = [frame for at, frame in enumerate(container.decode(video=0)) if at % every == 0]
        frames = np.stack([picture.to_ndarray(format="rgb24") for picture in pictures])
    return {"frames": frames, "label": number // 2, "number": number}


def cut(video: Video) -> Video:
    rng = sample_rng().numpy
    top, left = (rng.integers(side - WINDOW + 1) for side in video["frames"].shape[1:3])
    return {**video, "frames": video["frames"][:, top : top + WINDOW, left : left + WINDOW].copy()}


def make_loader(
    augment: bool = False, rank: int = 0, num_ranks: int = 1, num_workers: int = 2, order: Iterable[int] | None = None
) -> StageLoader:
    dataset = Source(made.videos())
    if order is None:
        order = ElasticSampler(dataset, num_ranks, rank, seed=7)
    return StageLoader(
        dataset,
        batch_size=3,
        sampler=order,
        num_workers=num_workers,
        stages=[Stage(decode), *([Stage(cut)] if augment else [])],
        seed=7,
    )


def main() -> None:
    loader = make_loader(augment=True)
    batches = iter(loader)
    first = next(batches)
    state = loader.state_dict()
    rest = [batch["number"].tolist() for batch in batches]

    resumed = make_loader(augment=True)
    resumed.load_state_dict(state)
    again = [batch["number"].tolist() for batch in resumed]
    print(f"{1 + len(rest)} batches of {tuple(first['frames'].shape)}")
    print(f"after a resume the same: {'yes' if again == rest else 'no'}")


if __name__ == "__main__":
    main()
