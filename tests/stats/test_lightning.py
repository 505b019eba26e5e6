"""Lightning makes loaders anew, from arguments or in hooks: the user's own loader tells what the other one did."""

import copy

import pytest

pytest.importorskip("lightning")

from tests.frameworks.fed import Augmented
from tests.frameworks.training import QUIET, loader_used, run
from torchstage import Stage, StageLoader

pytestmark = [
    *QUIET,
    pytest.mark.filterwarnings("ignore:You requested to overfit but enabled:UserWarning"),
]


def as_it_is(sample):
    return sample


@pytest.mark.parametrize("stages", [(), [Stage(as_it_is)]])
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize(("stage", "options"), [("predict", {}), ("fit", {"overfit_batches": 2})])
def test_the_users_loader_and_the_rebuilt_one_tell_the_same(stage, options, where, stages):
    made = []

    def make():
        made.append(StageLoader(Augmented(12), batch_size=2, shuffle=stage == "fit", num_workers=1, stages=stages))
        return made[-1]

    model, trainer = run(stage, make, where, **options)
    used = loader_used(trainer, stage)
    assert used not in made, "it was not rebuilt: this test looks at nothing"
    num_batches = len(model.seen_in(stage))
    used.close()
    assert num_batches > 0
    assert used.stats().batches >= num_batches
    (origin,) = [loader for loader in made if loader.ledger is used.ledger]  # another one is for validation
    assert origin.stats() == used.stats()
    assert str(origin.stats()) == str(used.stats())


def test_a_loader_that_is_rebuilt_twice_has_the_counters_of_the_first():
    """Made in a hook, rebuilt by Lightning, and that one by whoever knows attributes alone."""
    made = []

    def make():
        made.append(StageLoader(Augmented(12), batch_size=2, num_workers=1))
        return made[-1]

    _, trainer = run("predict", make, "inside")
    used = loader_used(trainer, "predict")
    public = {name: value for name, value in vars(used).items() if not name.startswith("_")}
    for name in ("batch_size", "sampler", "drop_last"):
        del public[name]
    with StageLoader(**public) as again:
        for _ in again:
            pass
    used.close()
    assert made[0].stats().batches == again.stats().batches == 12


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_loaders_of_two_runs_count_apart(where):
    made = []

    def make():
        made.append(StageLoader(Augmented(8), batch_size=2, num_workers=1))
        return made[-1]

    for _ in range(2):
        run("predict", make, where)
    assert [loader.stats().batches for loader in made] == [4, 4]
    for loader in made:
        loader.close()


def test_a_loader_that_was_made_and_read_in_a_hook_can_be_copied():
    """Lightning notes all that is set on it there, and it keeps what it noted."""
    from lightning.fabric.utilities.data import _replace_dunder_methods

    with _replace_dunder_methods(StageLoader, "dataset"):
        loader = StageLoader(range(6), 2, num_workers=1)
        expected = [batch.tolist() for batch in loader]
    assert [batch.tolist() for batch in copy.deepcopy(loader)] == expected
