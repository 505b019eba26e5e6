"""Bar: tqdm's bar over a loader, which changes nothing about the loader."""

import gc
import io
import re
import sys
import weakref

import pytest
import torch

pytest.importorskip("tqdm")

from torch.utils.data import IterableDataset

from torchstage import Stage, StageLoader, observe
from torchstage.observe import bar as module

from .feeding import Numbers, as_it_is, decode, loader_of, take_all


class Loader(StageLoader):
    """Keeps how often it was begun, and its latest iterator weakly."""

    num_begun = 0

    def __iter__(self):
        self.num_begun += 1
        iterator = super().__iter__()
        self.latest = weakref.ref(iterator)
        return iterator


def begun_of(**arguments):
    return Loader(Numbers(), batch_size=4, num_workers=2, stages=[Stage(decode)], collate_fn=as_it_is, **arguments)


def last_of(out):
    return out.getvalue().rstrip("\n").split("\r")[-1]


@pytest.fixture
def out():
    return io.StringIO()


def test_the_bar_tells_how_long_training_waits_and_for_what(out):
    with loader_of() as loader:
        batches = list(observe.progress(loader, file=out, desc="train"))
    assert batches == take_all(loader_of())
    assert re.match(r"train: 100%\|#+\| 10/10 \[.*, wait=\d+%, bottleneck=decode\]$", last_of(out))


def test_what_is_told_is_since_the_bar_was_made(out):
    loader = loader_of()
    take_all(loader)
    assert "wait=" not in str(observe.progress(loader, file=out))


def test_a_loader_without_a_length_has_a_bar_without_an_end(out):
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(range(12))

    with StageLoader(Stream(), batch_size=4, num_workers=1) as loader:
        assert len(list(observe.progress(loader, file=out))) == 3
    assert re.match(r"3it \[.*, wait=\d+%.*\]$", last_of(out))


def test_a_postfix_of_ones_own_stands_before_it(out):
    with loader_of() as loader:
        bar = observe.progress(loader, file=out)
        for _ in bar:
            bar.set_postfix(loss=0.5)
    assert ", loss=0.5, wait=" in last_of(out)


def test_a_postfix_that_is_no_text_is_left_as_it_is(out):
    """tqdm hands it to a bar_format of one's own, which looks into it."""
    with loader_of() as loader:
        form = {"bar_format": "{n_fmt} {postfix[0]}={postfix[1][value]}", "postfix": ["loss", {"value": 7}]}
        assert len(list(observe.progress(loader, file=out, **form))) == 10
    assert last_of(out).rstrip() == "10 loss=7"


def test_making_the_bar_begins_no_epoch_and_draws_nothing(out):
    with begun_of(shuffle=True) as loader:
        state = torch.get_rng_state()
        bar = observe.progress(loader, file=out)
        assert loader.num_begun == 0
        assert torch.equal(torch.get_rng_state(), state)
        assert len(bar) == len(loader) == 10
        list(bar)
        assert loader.num_begun == 1


def test_shuffled_batches_are_those_that_come_without_a_bar(out):
    torch.manual_seed(3)
    plain = [take_all(loader_of(shuffle=True)) for _ in range(2)]
    torch.manual_seed(3)
    with_bars = []
    for _ in range(2):
        with loader_of(shuffle=True) as loader:
            with_bars.append(list(observe.progress(loader, file=out)))
    assert with_bars == plain


def test_after_a_break_the_loader_goes_on_exactly(out):
    torch.manual_seed(3)
    whole = take_all(loader_of(shuffle=True))
    torch.manual_seed(3)
    loader = loader_of(shuffle=True)
    cut = []
    with loader:
        for batch in observe.progress(loader, file=out):
            cut.append(batch)
            if len(cut) == 3:
                break
        state = loader.state_dict()
    assert state["position"] == 3 * 4
    resumed = loader_of(shuffle=True)
    resumed.load_state_dict(state)
    with resumed:
        rest = list(observe.progress(resumed, file=out, initial=3))
    assert cut + rest == whole
    assert "| 10/10 [" in last_of(out)


def test_the_iterator_ends_with_a_break_and_the_bar_is_closed(out):
    loader = begun_of()
    bar = observe.progress(loader, file=out)
    for _ in bar:
        break
    gc.collect()
    assert loader.latest() is None
    assert bar.disable  # as tqdm calls a bar that is closed
    assert out.getvalue().endswith("\n")


def test_the_iterator_ends_with_an_error_and_the_bar_is_closed(out):
    loader = begun_of()

    def train():
        for batch in observe.progress(loader, file=out):
            if batch[0]:
                raise RuntimeError("diverged")

    with pytest.raises(RuntimeError, match="diverged") as caught:
        train()
    del caught
    gc.collect()
    assert loader.latest() is None
    assert out.getvalue().endswith("\n")


def test_an_error_of_the_dataset_comes_through(out):
    def refuse(value):
        raise KeyError(value)

    with loader_of(8, Stage(refuse)) as loader, pytest.raises(KeyError, match="0"):
        list(observe.progress(loader, file=out))
    assert out.getvalue().endswith("\n")


def test_a_bar_that_is_turned_off_asks_for_nothing(out):
    with loader_of() as loader:
        bar = observe.progress(loader, file=out, disable=True)
        loader.stats = None  # who asks fails
        assert len(list(bar)) == 10
    assert out.getvalue() == ""


def test_the_numbers_are_asked_for_once_a_second_and_at_the_end(out, monkeypatch):
    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

    clock, asked = Clock(), []
    monkeypatch.setattr(module, "time", clock)
    with loader_of() as loader:
        stats = loader.stats
        bar = observe.progress(loader, file=out, mininterval=0, miniters=1)
        loader.stats = lambda since: asked.append(clock.now) or stats(since)
        for _ in bar:
            clock.now += 0.3
            bar.refresh()
    assert asked[:-1] == pytest.approx([1.2, 2.4])  # and when it was made
    assert asked[-1] == pytest.approx(3.0)


def test_what_is_no_single_stage_loader_is_refused(out):
    with pytest.raises(TypeError, match="got a mapping"):
        observe.progress({"train": loader_of()})
    with pytest.raises(TypeError, match="got a list"):
        observe.progress([1, 2])


def test_an_argument_that_tqdm_does_not_know_is_its_own_error(out):
    with pytest.raises(KeyError, match="colour_of_bar"):
        observe.progress(loader_of(), file=out, colour_of_bar="red")


def test_without_tqdm_it_says_what_to_install(monkeypatch):
    for name in ("tqdm", "tqdm.autonotebook"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="needs tqdm: pip install tqdm"):
        observe.progress(loader_of())
