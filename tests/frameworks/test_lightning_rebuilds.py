"""Lightning rebuilds: it makes a loader anew for predict and for overfit_batches, and what we were told is still there.

It replays the arguments of a loader that was made in a hook, and takes the public attributes of one made elsewhere.
"""

import threading
from typing import Any

import pytest

pytest.importorskip("lightning")

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from torchstage import StageLoader

from .fed import CLASSES, OF_ITERABLE, Augmented, Named, Stream, arguments_of, assert_kept, init_worker, numbers_of
from .training import QUIET, Recorder, loader_used, new_trainer, run

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:You requested to overfit but enabled:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator:UserWarning"),
    pytest.mark.filterwarnings("ignore:pin_memory_device is deprecated:UserWarning"),
    pytest.mark.filterwarnings("ignore:StageLoader. prefetch_epochs=True begins no epoch early:UserWarning"),
]
REBUILDS = {"predict": {}, "fit": {"overfit_batches": 2}}
on_each_rebuild = pytest.mark.parametrize("stage", REBUILDS)
in_both_places = pytest.mark.parametrize("where", ["outside", "inside"])


def rebuilt(stage: str, where: str, made: list[Any], loader_class: Any, *positional: Any, **arguments: Any) -> Any:
    """The loader that Lightning made of one of this class."""

    def make() -> Any:
        made.append(loader_class(*positional, **arguments))
        return made[-1]

    _, trainer = run(stage, make, where, **REBUILDS[stage])
    loader = loader_used(trainer, stage)
    assert loader is not made[-1], "it was not rebuilt: this test looks at nothing"
    return loader


@pytest.mark.parametrize("loader_class", CLASSES)
@in_both_places
@on_each_rebuild
def test_every_argument_is_kept(stage: str, where: str, loader_class: type[StageLoader]) -> None:
    arguments = arguments_of(loader_class)
    # Named takes them as keywords that Lightning cannot see: it then counts on torch's alone.
    if loader_class is Named and where == "outside":
        arguments = {name: arguments[name] for name in ("batch_size", "num_workers", "collate_fn", "name")}
    loader = rebuilt(stage, where, [], loader_class, Augmented(12), shuffle=True, **arguments)
    assert type(loader) is loader_class
    # predict puts a batch sampler of its own in the place of these two, and asks it for every sample.
    assert_kept(loader, arguments, *(("batch_size", "drop_last") if stage == "predict" else ()))
    loader.close()


@in_both_places
def test_every_argument_of_an_iterable_is_kept(where: str) -> None:
    arguments = {**OF_ITERABLE, "worker_init_fn": None}
    loader = rebuilt("predict", where, [], StageLoader, Stream(12), **arguments)
    assert_kept(loader, arguments)
    loader.close()


@in_both_places
@on_each_rebuild
def test_what_was_not_given_stays_at_its_default(stage: str, where: str) -> None:
    loader = rebuilt(stage, where, [], StageLoader, Augmented(4), shuffle=True)
    assert (loader.lanes, loader.isolation, loader.seed, loader.sample_rng) == (None, "auto", None, True)
    assert (loader.num_workers, loader.in_order, loader.prefetch_factor) == (0, True, None)


@in_both_places
@on_each_rebuild
def test_what_was_set_after_it_was_made_is_kept(stage: str, where: str) -> None:
    class Altered(StageLoader):
        """Stands for code in a hook that goes on to alter the loader."""

    def make(*positional: Any, **arguments: Any) -> Any:
        loader = Altered(*positional, **arguments)
        loader.isolation = "shared"
        loader.seed = 5
        loader.worker_init_fn = init_worker
        return loader

    loader = rebuilt(stage, where, [], make, Augmented(4), shuffle=True, num_workers=2)
    assert (loader.isolation, loader.seed, loader.worker_init_fn) == ("shared", 5, init_worker)


def test_positional_arguments_in_a_hook_are_kept_where_lightning_can() -> None:
    """Overfitting replays them; for predict it adds a batch size of its own, which fails for DataLoader, too."""
    loader = rebuilt("fit", "inside", [], StageLoader, Augmented(12), 3, shuffle=True, num_workers=2, seed=11)
    assert (loader.batch_size, loader.num_workers, loader.seed) == (3, 2, 11)
    for loader_class in (DataLoader, StageLoader):
        with pytest.raises(Exception, match="more than one `__init__` argument"):
            rebuilt("predict", "inside", [], loader_class, Augmented(12), 3)


class Pairs(BatchSampler):
    """A batch sampler of the user's."""

    def __init__(self, sampler: Any, batch_size: int = 2, drop_last: bool = False) -> None:
        super().__init__(sampler, batch_size, drop_last)


@in_both_places
def test_a_batch_sampler_of_the_users_goes_on(where: str) -> None:
    seen: dict[Any, list[Any]] = {}
    for loader_class in (DataLoader, StageLoader):

        def make(loader_class: Any = loader_class) -> Any:
            order = RandomSampler(Augmented(8), generator=torch.Generator().manual_seed(1))
            return loader_class(Augmented(8), batch_sampler=Pairs(order), num_workers=2)

        model, trainer = run("predict", make, where)
        seen[loader_class] = [numbers_of(batch) for batch in model.seen_in("predict")]
        assert loader_used(trainer, "predict").batch_sampler.batch_size == 2
    assert seen[StageLoader] == seen[DataLoader]
    assert sorted(index for batch in seen[StageLoader] for index in batch) == list(range(8))


@in_both_places
@on_each_rebuild
def test_the_loader_it_was_made_of_starts_no_thread(stage: str, where: str) -> None:
    made: list[Any] = []
    before = set(threading.enumerate())
    rebuilt(stage, where, made, StageLoader, Augmented(4), shuffle=True, num_workers=2).close()
    assert made[0]._pools == []
    assert {thread for thread in threading.enumerate() if thread not in before and not thread.daemon} == set()


def test_a_loader_that_was_looked_into_in_its_hook_gives_all_batches() -> None:
    """Lightning replays what is assigned in the hook, our private attributes among it."""
    made: list[StageLoader[Any]] = []

    def make() -> Any:
        loader = StageLoader(Augmented(8), batch_size=2, num_workers=2)
        made.append(loader)
        next(iter(loader))
        return loader

    model, trainer = run("predict", make, "inside")
    assert [numbers_of(batch) for batch in model.seen_in("predict")] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    loader_used(trainer, "predict").close()
    assert [numbers_of(batch) for batch in made[0]] == [[0, 1], [2, 3], [4, 5], [6, 7]]


def test_a_rebuilt_loader_and_its_origin_close_apart() -> None:
    """The one that was made in the hook is in the middle of an epoch when the other one ends its threads."""
    held: list[Any] = []

    def make() -> Any:
        loader = StageLoader(Augmented(64), batch_size=2, num_workers=2)
        held.extend((loader, iter(loader)))
        next(held[1])
        return loader

    _, trainer = run("predict", make, "inside")
    loader_used(trainer, "predict").close()
    assert [numbers_of(batch)[0] for batch in held[1]] == list(range(2, 64, 2))


@pytest.mark.parametrize("persistent", [False, True])
def test_threads_end_with_the_trainer(persistent: bool) -> None:
    before = set(threading.enumerate())
    model, trainer = Recorder(), new_trainer()
    trainer.fit(model, StageLoader(Augmented(8), num_workers=2, persistent_workers=persistent))
    workers = [t for t in threading.enumerate() if t not in before and t.name.startswith("torchstage-")]
    del model, trainer
    for worker in workers:
        worker.join(2.0)
    assert not any(worker.is_alive() for worker in workers)
