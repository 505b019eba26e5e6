"""A run that is cut after any batch goes on in another process with the batches of the uninterrupted run."""

import pytest

from .cases import BATCH_SAMPLERS, CUSTOM, OF_TORCH, STATEFUL, WITHOUT_BATCHES, of_torchdata
from .runs import Case, check_cuts_again, check_every_cut

CASES = {
    **{f"torch: {name}": case for name, case in OF_TORCH.items()},
    **{f"no batches: {name}": case for name, case in WITHOUT_BATCHES.items()},
    **{f"custom: {name}": case for name, case in CUSTOM.items()},
    **{f"state: {name}": case for name, case in STATEFUL.items()},
    **{f"batch sampler: {name}": case for name, case in BATCH_SAMPLERS.items()},
}
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


@every_case
def test_it_goes_on_after_any_batch(case: Case) -> None:
    check_every_cut(case)


@every_case
def test_it_goes_on_again_and_again(case: Case) -> None:
    check_cuts_again(case)


@pytest.mark.parametrize(
    "name",
    [
        *("random", "random, repeated", "random, by the process", "random, no batches"),
        *("batches", "batches in sequence", "distributed", "distributed, epochs not set"),
    ],
)
def test_samplers_of_torchdata_go_on_from_their_own_state(name: str) -> None:
    pytest.importorskip("torchdata")
    case = of_torchdata()[name]
    check_every_cut(case)
    check_cuts_again(case)
