"""Jobs: one small real job with torchstage and one extra, and what is said where an extra is missing.

    python jobs.py core image            # these jobs
    python jobs.py missing image video   # these extras are not installed: each says how to install it

It is run by interpreters that have pytest or not, so it imports nothing but torchstage and what the job is about.
"""

import asyncio
import importlib
import io
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import torchstage
from torchstage import Stage, StageLoader

LENGTH, BATCH_SIZE = 22, 4


class Squares(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index * index)


class Vectors(Squares):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), float(index))


class Counter(IterableDataset[int]):
    """Its state is its own: torchdata's workers keep it."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        while self.at < LENGTH:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def add_one(value: torch.Tensor) -> torch.Tensor:
    return value + 1


def core() -> None:
    """Every way to load, with DataLoader's batches; statistics, a state, both commands' help."""
    expected = [batch.tolist() for batch in DataLoader(Squares(), batch_size=BATCH_SIZE)]
    for arguments in ({}, {"num_workers": 2}, {"num_workers": 2, "worker_method": "multiprocessing"}):
        with StageLoader(Squares(), batch_size=BATCH_SIZE, **arguments) as loader:
            assert [batch.tolist() for batch in loader] == expected, arguments
            assert loader.stats().samples == LENGTH
    stages = [Stage(add_one), Stage(add_one, name="more", executor="process")]
    with StageLoader(Squares(), batch_size=BATCH_SIZE, num_workers=2, stages=stages) as loader:
        batches = iter(loader)
        given = [next(batches).tolist()]
        state = loader.state_dict()
        given += [batch.tolist() for batch in batches]
    assert given == [[value + 2 for value in batch] for batch in expected]
    with StageLoader(Squares(), batch_size=BATCH_SIZE, num_workers=1, stages=stages) as resumed:
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == given[1:]
    with StageLoader(Counter(), batch_size=BATCH_SIZE, num_workers=2) as loader:
        assert sorted(number for batch in loader for number in batch.tolist()) == sorted([*range(LENGTH)] * 2)
    assert Path(torchstage.__file__).with_name("py.typed").exists()


def image() -> None:
    from PIL import Image

    from torchstage.decode import decode_image

    file = io.BytesIO()
    Image.new("RGB", (40, 30), (200, 100, 50)).save(file, "PNG")
    pixels = decode_image(file.getvalue(), size=(8, 8))
    assert pixels.shape == (3, 8, 8), pixels.shape
    assert pixels[:, 4, 4].tolist() == [200, 100, 50]


def video() -> None:
    import av
    import numpy as np

    from torchstage.decode import decode_video

    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream: Any = output.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(0, 250, 25):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), level, np.uint8), format="rgb24")))
        output.mux(stream.encode(None))
    clip = decode_video(file.getvalue(), num_frames=4)
    assert clip.frames.shape == (4, 3, 48, 64), clip.frames.shape
    brightness = clip.frames.float().mean(dim=(1, 2, 3)).tolist()
    assert brightness == sorted(brightness)
    assert brightness[-1] - brightness[0] > 100


class _Answer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *words: Any) -> None:
        """Nothing."""


def remote() -> None:
    import fsspec

    from torchstage.remote import fetch_bytes, read_bytes

    server = HTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/file"
        assert read_bytes(url) == asyncio.run(fetch_bytes(url)) == b"hello"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    with fsspec.open("memory://folder/file", "wb") as file:
        file.write(b"by fsspec")
    assert read_bytes("memory://folder/file") == b"by fsspec"


def stateful() -> None:
    """An iterable dataset with a state, in worker processes."""
    warnings.filterwarnings("ignore", message=".set_vital. is deprecated")  # torchdata calls it
    arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": 1, "worker_method": "multiprocessing"}
    with StageLoader(Counter(), **arguments) as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
        rest = [batch.tolist() for batch in batches]
    with StageLoader(Counter(), **arguments) as resumed:
        resumed.load_state_dict(state)
        assert [batch.tolist() for batch in resumed] == rest


def lightning() -> None:
    import lightning.pytorch as pl

    from torchstage.lightning import StageDataModule, StageStatsMonitor

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)
            self.num_seen = 0

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            self.num_seen += len(batch)
            return self.layer(batch).sum()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    warnings.filterwarnings("ignore")  # of Lightning: that there is no checkpoint, no logger and no accelerator
    data = StageDataModule.from_datasets(train_dataset=Vectors(), batch_size=BATCH_SIZE, num_workers=2)
    with tempfile.TemporaryDirectory() as folder:
        quiet: dict[str, Any] = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="cpu",
            default_root_dir=folder,
            enable_checkpointing=False,
            callbacks=[StageStatsMonitor()],
            **quiet,
        )
        module = Module()
        trainer.fit(module, data)
    assert module.num_seen == LENGTH


def prometheus() -> None:
    from prometheus_client import CollectorRegistry, generate_latest

    from torchstage.observe import PrometheusCollector

    registry = CollectorRegistry()
    with StageLoader(Squares(), batch_size=BATCH_SIZE, num_workers=2) as loader:
        registry.register(PrometheusCollector({"train": loader}))
        list(loader)
        assert f'torchstage_samples_total{{loader="train",rank="0"}} {LENGTH}.0' in generate_latest(registry).decode()


def accelerate() -> None:
    from accelerate import Accelerator

    from torchstage.integrations.accelerate import keep_stage_loaders

    accelerator = keep_stage_loaders(Accelerator(cpu=True))
    with accelerator.prepare(StageLoader(Squares(), batch_size=BATCH_SIZE, num_workers=2)) as loader:
        assert isinstance(loader, StageLoader)
        assert [batch.tolist() for batch in loader] == [batch.tolist() for batch in DataLoader(Squares(), BATCH_SIZE)]


def transformers() -> None:
    from transformers import Trainer, TrainingArguments

    from torchstage.integrations.transformers import StageTrainerMixin

    class Samples(Dataset[dict[str, torch.Tensor]]):
        def __len__(self) -> int:
            return LENGTH

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            return {"sample": torch.tensor([float(index)])}

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(()))
            self.seen: list[float] = []

        def forward(self, sample: torch.Tensor) -> dict[str, torch.Tensor]:
            self.seen += sample.flatten().tolist()
            return {"loss": (self.weight * sample).mean()}

    class StageTrainer(StageTrainerMixin, Trainer):
        """With StageLoaders."""

    warnings.filterwarnings("ignore", message=".*(pin_memory|pin memory)")
    model = Model()
    with tempfile.TemporaryDirectory() as folder:
        options = TrainingArguments(
            output_dir=folder,
            max_steps=3,
            per_device_train_batch_size=BATCH_SIZE,
            dataloader_num_workers=2,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = StageTrainer(model=model, args=options, train_dataset=Samples())
        assert type(trainer.get_train_dataloader()).__name__ == "StageLoader"
        trainer.train()
    assert len(set(model.seen)) == 3 * BATCH_SIZE


JOBS: dict[str, Callable[[], None]] = {
    job.__name__: job for job in (core, image, video, remote, stateful, lightning, prometheus, accelerate, transformers)
}


# What a user meets who has not installed an extra


def use_image() -> None:
    from torchstage.decode import decode_image

    decode_image(b"no picture")


def use_video() -> None:
    from torchstage.decode import decode_video

    decode_video(b"no clip")


def use_remote() -> None:
    from torchstage.remote import read_bytes

    read_bytes("http://127.0.0.1:9/")


def use_stateful() -> None:
    arguments: dict[str, Any] = {"batch_size": BATCH_SIZE, "num_workers": 1, "worker_method": "multiprocessing"}
    with StageLoader(Counter(), **arguments) as loader:
        next(iter(loader))
        loader.state_dict()


def use_prometheus() -> None:
    from torchstage.observe import PrometheusCollector

    PrometheusCollector()


USES: dict[str, Callable[[], Any]] = {
    "image": use_image,
    "video": use_video,
    "remote": use_remote,
    "stateful": use_stateful,
    "prometheus": use_prometheus,
    "lightning": lambda: importlib.import_module("torchstage.lightning"),
    "accelerate": lambda: importlib.import_module("torchstage.integrations.accelerate"),
    "transformers": lambda: importlib.import_module("torchstage.integrations.transformers"),
}


def missing(extra: str) -> None:
    """An ImportError that shows the command which mends it."""
    words, command = "nothing", f"pip install 'torchstage[{extra}]'"
    try:
        USES[extra]()
    except ImportError as error:
        words = str(error)
    if command not in words or "\n" in words:
        raise AssertionError(f"without {extra}, {words!r} is said, and not in a line: {command}")


def main(words: list[str]) -> None:
    if words[:1] == ["missing"]:
        for extra in words[1:]:
            missing(extra)
            print(f"without {extra}: said")
        return
    for name in words:
        JOBS[name]()
        print(f"{name}: done")


if __name__ == "__main__":
    main(sys.argv[1:])
