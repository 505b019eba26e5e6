"""accelerate: prepare keeps a StageLoader, its arguments and its state; on two ranks it shares it out."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState, PartialState
from frameworks.fed import EVERY, Named, Stream
from torch.utils.data import DataLoader, Dataset

from torchstage import StageLoader
from torchstage.integrations.accelerate import keep_stage_loaders
from torchstage.samplers import ElasticSampler

from .ranks import run_on_two_ranks
from .two_ranks import CUTS, LENGTH, LENGTH_OF_PART, PATIENT

pytestmark = pytest.mark.filterwarnings("ignore:.*(pin_memory|non_blocking|pin memory).*:UserWarning")


class Numbers(Dataset[torch.Tensor]):
    def __init__(self, length: int = 10) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, int(torch.randint(1000, ()))])


@pytest.fixture(autouse=True)
def _states_of_its_own() -> Any:
    yield
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def new_accelerator(**options: Any) -> Accelerator:
    return keep_stage_loaders(Accelerator(cpu=True, **options))


def indices(batches: Any) -> list[list[int]]:
    return [batch[:, 0].tolist() for batch in batches]


def test_prepare_keeps_the_class_and_every_argument() -> None:
    given = {name: value for name, value in EVERY.items() if name not in ("batch_size", "drop_last")}
    loader = Named(Numbers(), name="mine", batch_size=3, drop_last=True, **given)
    made = new_accelerator().prepare(loader)
    assert isinstance(made, Named)
    assert {name: getattr(made, name) for name in given} == given
    assert (made.name, made.batch_size, made.drop_last) == ("mine", 3, True)
    made.close()


def test_the_batches_and_epochs_are_those_of_the_loader() -> None:
    order = torch.Generator().manual_seed(3)
    made = new_accelerator().prepare(StageLoader(Numbers(), 3, True, generator=order, num_workers=2))
    order = torch.Generator().manual_seed(3)
    alone = StageLoader(Numbers(), 3, True, generator=order, num_workers=2)
    assert [indices(made) for _ in range(2)] == [indices(alone) for _ in range(2)]


@pytest.mark.parametrize("dataset", [Numbers(), Stream(10)])
def test_accumulation_steps_at_the_end_of_an_epoch(dataset: Any) -> None:
    accelerator = new_accelerator(gradient_accumulation_steps=3)
    model = torch.nn.Linear(1, 1)
    made = accelerator.prepare(StageLoader(dataset, batch_size=2, num_workers=2, lanes=1))
    synced = []
    for _ in made:
        with accelerator.accumulate(model):
            synced.append(accelerator.sync_gradients)
    assert synced == [False, False, True, False, True]
    assert not accelerator.gradient_state.in_dataloader


@pytest.mark.parametrize("dataset", [Numbers(), Stream(10)])
@pytest.mark.parametrize("cut", [1, 4, 5, 7])
@pytest.mark.filterwarnings("ignore:.*the dataset has no state, so .* are read once more:UserWarning")
def test_a_saved_state_is_gone_on_with(dataset: Any, cut: int, tmp_path: Path) -> None:
    def new_loader() -> Any:
        return StageLoader(dataset, batch_size=2, num_workers=2, lanes=1, seed=5)

    accelerator = new_accelerator()
    made = accelerator.prepare(new_loader())
    whole = [batch.tolist() for _ in range(2) for batch in made]
    accelerator.free_memory()

    made = accelerator.prepare(new_loader())
    before = []
    while len(before) < cut:
        for batch in made:
            before.append(batch.tolist())
            if len(before) == cut:
                accelerator.save_state(str(tmp_path))
                break
    accelerator.free_memory()

    made = accelerator.prepare(new_loader())
    accelerator.load_state(str(tmp_path))
    assert made.iteration == cut // 5
    rest = [batch.tolist() for _ in range(2 - made.iteration) for batch in made]
    assert before + rest == whole


def new_elastic(dataset: Any) -> Any:
    return StageLoader(dataset, batch_size=2, sampler=ElasticSampler(dataset, seed=4), num_workers=2)


def test_a_state_saved_after_the_loop_begins_the_next_epoch(tmp_path: Path) -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(new_elastic(Numbers()))
    whole = [[batch.tolist() for batch in made] for _ in range(3)]
    assert whole[0] != whole[1] != whole[2]
    accelerator.free_memory()

    made = accelerator.prepare(new_elastic(Numbers()))
    for _ in made:
        pass
    accelerator.save_state(str(tmp_path))
    accelerator.free_memory()

    made = accelerator.prepare(new_elastic(Numbers()))
    accelerator.load_state(str(tmp_path))
    assert made.iteration == 1
    assert [[batch.tolist() for batch in made] for _ in range(2)] == whole[1:]


@pytest.mark.parametrize("cut", [2, 5])
@pytest.mark.filterwarnings("ignore:.*the dataset has no state, so .* are read once more:UserWarning")
def test_nothing_of_a_stream_is_lost_when_its_loop_is_left(cut: int, tmp_path: Path) -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(StageLoader(Stream(10), batch_size=2, num_workers=2, lanes=1))
    for number, _ in enumerate(made, start=1):
        if number == cut:
            break
    accelerator.save_state(str(tmp_path))
    accelerator.free_memory()

    made = accelerator.prepare(StageLoader(Stream(10), batch_size=2, num_workers=2, lanes=1))
    accelerator.load_state(str(tmp_path))
    assert made.iteration == cut // 5
    expected = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert indices(made) == expected[cut % 5 :]
    assert indices(made) == expected


LOADERS = {
    "elastic": lambda: new_elastic(Numbers()),
    "shuffled": lambda: StageLoader(Numbers(), 2, True, num_workers=2, generator=torch.Generator().manual_seed(3)),
    "a stream": lambda: StageLoader(Stream(10), batch_size=2, num_workers=2, lanes=1),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.filterwarnings("ignore:.*the dataset has no state, so .* are read once more:UserWarning")
def test_what_is_skipped_after_a_resume_is_skipped_once(kind: str, tmp_path: Path) -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(LOADERS[kind]())
    whole = [indices(made) for _ in range(2)]
    accelerator.free_memory()

    made = accelerator.prepare(LOADERS[kind]())
    batches = iter(made)
    assert [next(batches)[:, 0].tolist() for _ in range(3)] == whole[0][:3]
    accelerator.save_state(str(tmp_path))
    batches.close()
    accelerator.free_memory()

    made = accelerator.prepare(LOADERS[kind]())
    accelerator.load_state(str(tmp_path))
    with pytest.raises(ValueError, match=r"behind 3 batches, and skip_first_batches says 2\. Leave"):
        accelerator.skip_first_batches(made, 2)
    assert indices(accelerator.skip_first_batches(made, 3)) == whole[0][3:]
    assert indices(made) == whole[1]


@pytest.mark.parametrize("kind", LOADERS)
def test_batches_are_skipped_without_a_state(kind: str) -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(LOADERS[kind]())
    whole = [indices(made) for _ in range(2)]
    again = accelerator.prepare(LOADERS[kind]())
    skipping = accelerator.skip_first_batches(again, 3)
    assert isinstance(skipping, StageLoader)
    assert [indices(skipping), indices(again)] == [whole[0][3:], whole[1]]


def test_a_checkpoint_without_a_state_is_told_of(tmp_path: Path) -> None:
    Accelerator(cpu=True).save_state(str(tmp_path))
    accelerator = new_accelerator()
    made = accelerator.prepare(StageLoader(Numbers(), batch_size=5))
    with pytest.warns(UserWarning, match="has no state of loader 0, which begins an epoch"):
        accelerator.load_state(str(tmp_path))
    assert indices(made) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_a_loader_may_be_registered_too(tmp_path: Path) -> None:
    accelerator = new_accelerator()
    alone = StageLoader(Numbers(), batch_size=2, num_workers=2)  # not prepared
    accelerator.register_for_checkpointing(alone)
    batches = iter(alone)
    assert next(batches)[:, 0].tolist() == [0, 1]
    accelerator.save_state(str(tmp_path))
    accelerator.load_state(str(tmp_path))
    assert indices(alone) == [[2, 3], [4, 5], [6, 7], [8, 9]]


def test_loaders_of_others_are_prepared_as_always() -> None:
    made = new_accelerator().prepare(DataLoader(Numbers(), batch_size=5))
    assert not isinstance(made, StageLoader)
    converting = keep_stage_loaders(Accelerator(cpu=True), convert=True, loader_arguments=lambda: {"num_workers": 2})
    made = converting.prepare(DataLoader(Numbers(), batch_size=5))
    assert isinstance(made, StageLoader)
    assert made.num_workers == 2
    assert indices(made) == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_what_is_prepared_already_stays() -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(StageLoader(Numbers()))
    assert accelerator.prepare(made) is made


def test_split_batches_are_refused() -> None:
    from accelerate.utils import DataLoaderConfiguration

    accelerator = new_accelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    with pytest.raises(ValueError, match="split_batches and dispatch_batches need its own loaders"):
        accelerator.prepare(StageLoader(Numbers()))


def test_a_loop_that_is_left_early_is_over_for_the_accelerator() -> None:
    accelerator = new_accelerator()
    made = accelerator.prepare(StageLoader(Numbers(), batch_size=2, num_workers=2))
    for _ in made:
        break
    assert not accelerator.gradient_state.in_dataloader


# Two ranks ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return [{**found, "folder": str(folder)} for found in run_on_two_ranks("two_ranks.py", folder)]


NAMES = ["shuffled", "in order", "a subset", "a part", "a stream", "a shuffled stream"]
IS_IN_ONE_ORDER = ("in order", "a stream")


@pytest.mark.distributed
@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_share_each_epoch(ranks: list[dict[str, Any]], name: str) -> None:
    length = LENGTH_OF_PART if name == "a part" else LENGTH
    num_batches = len(ranks[0][name]["whole"]) // PATIENT
    orders = []
    for epoch in range(PATIENT):
        batches = [rank[name]["whole"][epoch * num_batches :][:num_batches] for rank in ranks]
        both = [sample[0] for of_rank in batches for batch in of_rank for sample in batch]
        assert len(both) == (length if name in ("shuffled", "a part") else 16)  # else in whole batches
        assert set(both) == set(range(length))
        orders.append(both)
    assert (orders[0] == orders[1]) is (name in IS_IN_ONE_ORDER)


@pytest.mark.distributed
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cut", CUTS)
def test_two_ranks_go_on_where_they_were(ranks: list[dict[str, Any]], name: str, cut: int) -> None:
    for rank in ranks:
        assert rank[name]["resumed"][str(cut)] == rank[name]["whole"]


@pytest.mark.distributed
def test_another_number_of_ranks_needs_an_elastic_sampler(ranks: list[dict[str, Any]], tmp_path: Path) -> None:
    state = torch.load(ranks[0]["folder"] + "/shuffled 2/stage_loader_0_rank_0.pt", weights_only=True)
    accelerator = new_accelerator()
    with pytest.raises(ValueError, match="saved by 2 ranks and there are 1"):
        accelerator.prepare(StageLoader(Numbers(LENGTH), batch_size=2, shuffle=True)).load_state_dict(state)
    elastic = ElasticSampler(Numbers(LENGTH), seed=20)
    made = accelerator.prepare(StageLoader(Numbers(LENGTH), batch_size=2, sampler=elastic))
    made.load_state_dict(state)
    before = [sample[0] for rank in ranks for batch in rank["shuffled"]["whole"][:2] for sample in batch]
    assert sorted(before + [index for batch in indices(made) for index in batch]) == list(range(LENGTH))


@pytest.mark.distributed
def test_metrics_are_gathered_without_what_was_padded(ranks: list[dict[str, Any]]) -> None:
    gathered = [sample[0] for batch in ranks[0]["in order"]["gathered"] for sample in batch]
    assert gathered == list(range(LENGTH))
