"""Videos with Grain's Dataset API, in a PyTorch training: shuffled, decoded in threads, cut at random, resumed."""

import io
from pathlib import Path
from typing import Any, TypedDict

import av
import grain
import made
import numpy as np
from torch.utils.data import default_collate

NUM_FRAMES = 8
WINDOW = 96


class Video(TypedDict):
    frames: Any  # uint8, NUM_FRAMES x height x width x 3
    label: int
    number: int  # in the list of files


class Source:
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


def cut(video: Video, rng: np.random.Generator) -> Video:
    top, left = (rng.integers(side - WINDOW + 1) for side in video["frames"].shape[1:3])
    return {**video, "frames": video["frames"][:, top : top + WINDOW, left : left + WINDOW].copy()}


def make_loader(augment: bool = False, rank: int = 0, num_ranks: int = 1) -> grain.IterDataset:
    dataset = grain.MapDataset.source(Source(made.videos())).seed(7).shuffle()[rank::num_ranks].map(decode)
    if augment:
        dataset = dataset.random_map(cut)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=8)
    return dataset.to_iter_dataset(options).batch(3, batch_fn=default_collate)


def order(rank: int = 0, num_ranks: int = 1) -> list[int]:
    """The indices that the loader has in turn: the same calls, over a range instead of the source."""
    return list(grain.MapDataset.range(len(made.videos())).seed(7).shuffle()[rank::num_ranks])


def main() -> None:
    batches = iter(make_loader(augment=True))
    first = next(batches)
    state = batches.get_state()
    rest = [batch["number"].tolist() for batch in batches]

    resumed = iter(make_loader(augment=True))
    resumed.set_state(state)
    again = [batch["number"].tolist() for batch in resumed]
    print(f"{1 + len(rest)} batches of {tuple(first['frames'].shape)}")
    print(f"after a resume the same: {'yes' if again == rest else 'no'}")


if __name__ == "__main__":
    main()
