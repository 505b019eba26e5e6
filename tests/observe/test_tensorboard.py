"""TensorBoard: event files of the real writers, read back with TensorBoard's own reader."""

import gc
import time
import weakref

import pytest
from torch.utils.data import DataLoader

pytest.importorskip("tensorboard")

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from torchstage import observe

from .feeding import Numbers, loader_of, take_all


def torchs(folder):
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder))


def tensorboardxs(folder):
    return pytest.importorskip("tensorboardX").SummaryWriter(str(folder))


@pytest.fixture(params=[torchs, tensorboardxs])
def writer(request, tmp_path):
    return request.param(tmp_path)


class Told:
    """A writer that keeps what it is told."""

    def __init__(self):
        self.scalars, self.texts = [], []

    def add_scalar(self, tag, value, step):
        self.scalars.append((tag, value, step))

    def add_text(self, tag, text, step):
        self.texts.append((tag, text, step))

    def steps_of(self, tag):
        return [step for name, _, step in self.scalars if name == tag]


def read(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def test_real_event_files_have_each_window_at_its_step(writer, tmp_path):
    board, loader = observe.TensorBoard(writer), loader_of()
    with loader:
        for step, _ in enumerate(loader, start=1):
            if step % 5 == 0:
                board.write({"train": loader}, step)
    writer.close()  # flush() of tensorboardX leaves what its thread has not come to yet
    events = read(tmp_path)
    assert [event.step for event in events.Scalars("data/train/wait_share")] == [5, 10]
    assert all(0 < event.value <= 1 for event in events.Scalars("data/train/wait_share"))
    assert sum(event.value for event in events.Scalars("data/train/decode/samples")) == 40
    assert "data/train/advice/text_summary" in events.Tags()["tensors"]


def test_tags_are_written_as_they_are(writer, tmp_path):
    """Neither writer changes them: what a user looks for in the documents is what stands in TensorBoard."""
    loader = loader_of()
    take_all(loader)
    observe.TensorBoard(writer).write({"tr ain/1": loader}, 1)
    writer.close()
    assert set(read(tmp_path).Tags()["scalars"]) == set(observe.metrics_of(loader.stats(), "data/tr_ain_1"))


def test_tags_are_the_same_from_the_first_write_to_the_last():
    told, loader = Told(), loader_of()
    board = observe.TensorBoard(told)
    for step in range(3):
        take_all(loader)
        board.write(loader, step)
    tags = [{tag for tag, _, at in told.scalars if at == step} for step in range(3)]
    assert tags[0] == tags[1] == tags[2]
    assert "data/decode/busy_share" in tags[0]


def test_a_loader_that_handed_out_nothing_is_left_out():
    told, train, val = Told(), loader_of(), loader_of()
    board = observe.TensorBoard(told)
    for step in range(4):
        take_all(train)
        if step == 2:
            take_all(val)
        board.write({"train": train, "val": val}, step)
    assert told.steps_of("data/train/wait_share") == [0, 1, 2, 3]
    assert told.steps_of("data/val/wait_share") == [2]


def test_loaders_whose_names_become_the_same_tag_are_told_apart():
    told, loaders = Told(), {"a b": loader_of(8), "a/b": loader_of(12)}
    for loader in loaders.values():
        take_all(loader)
    observe.TensorBoard(told).write(loaders, 1)
    samples = [(tag, value) for tag, value, _ in told.scalars if tag.endswith("fetch/samples")]
    assert samples == [("data/a_b/fetch/samples", 8), ("data/a_b_2/fetch/samples", 12)]


def test_two_boards_have_windows_of_their_own():
    often, seldom, loader = Told(), Told(), loader_of()
    boards = observe.TensorBoard(often), observe.TensorBoard(seldom, prefix="")
    take_all(loader)
    boards[0].write(loader, 1)
    take_all(loader)
    boards[0].write(loader, 2)
    boards[1].write(loader, 2)
    assert [value for tag, value, _ in often.scalars if tag == "data/fetch/samples"] == [40, 40]
    assert [value for tag, value, _ in seldom.scalars if tag == "fetch/samples"] == [80]


def test_the_advice_is_written_when_the_bottleneck_is_another_one():
    told, loader = Told(), loader_of(80)
    board = observe.TensorBoard(told)
    for step, step_seconds in enumerate([0, 0, 0.02]):
        with loader:
            for _ in loader:
                time.sleep(step_seconds)
        board.write(loader, step)
    assert [(tag, step) for tag, _, step in told.texts] == [("data/advice", 0), ("data/advice", 2)]
    assert told.texts[0][1].startswith("decode is ")
    assert told.texts[1][1].startswith("training is the limit")


@pytest.mark.parametrize("writer", [None, "runs/first", Told])
def test_what_cannot_write_is_refused(writer):
    with pytest.raises(TypeError, match="writer must be a SummaryWriter, got "):
        observe.TensorBoard(writer)


def test_what_is_no_stage_loader_is_refused():
    with pytest.raises(TypeError, match=r"observe\.TensorBoard\.write needs a StageLoader.* 'val' is a DataLoader"):
        observe.TensorBoard(Told()).write({"train": loader_of(), "val": DataLoader(Numbers())}, 1)


def test_a_board_keeps_no_loader():
    board, loader = observe.TensorBoard(Told()), loader_of()
    take_all(loader)
    board.write(loader, 1)
    there = weakref.ref(loader)
    del loader
    gc.collect()
    assert there() is None
