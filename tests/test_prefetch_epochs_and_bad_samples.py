"""prefetch_epochs and samples that fail: what is begun early is left out or replaced as in its own epoch."""

import warnings

import pytest
import torch
from epochs import Noted, Notes, both, loader_of

from torchstage import SkipSample

LENGTH = 11


class Bad(Noted):
    def __getitem__(self, index):
        row = super().__getitem__(index)
        if index in (0, 4):
            raise LookupError(index)
        if index == 7:
            raise SkipSample("not wanted")
        return row


POLICIES = {
    "skip": {"on_error": "skip"},
    "replace": {"on_error": "replace"},
    "a function": {"on_error": lambda bad: torch.zeros(7, dtype=torch.float64)},
    "skip, short": {"on_error": "skip", "in_order": False, "num_workers": 1},
    "skip, dropped": {"on_error": "skip", "drop_last": True},
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("worker_method", ["thread", "multiprocessing"])
def test_batches_reports_and_states_are_the_same(policy, worker_method):
    if worker_method == "multiprocessing" and policy == "a function":
        pytest.skip("a lambda")
    notes = Notes()

    def make(prefetch_epochs):
        generator = torch.Generator().manual_seed(5)
        return loader_of(
            Bad(LENGTH, None if worker_method == "multiprocessing" else notes),
            prefetch_epochs=prefetch_epochs,
            shuffle=True,
            generator=generator,
            worker_method=worker_method,
            **POLICIES[policy],
        )

    def story(loader):
        notes.clear()
        epochs, states, words = [], [], []
        for _ in range(4):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                for batch in loader:
                    epochs.append(batch.tolist())
                    states.append(loader.state_dict())
            states.append(loader.state_dict())
            words.append([str(one.message) for one in told])
        return epochs, states, words

    _epochs, _, words = both(make, story)
    assert len(words) == 4
    assert all(words)
    assert not any("in vain" in word for told in words for word in told)
