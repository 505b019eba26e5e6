"""``docs/migrate-from-webdataset.md``: as a stream the same batches; indexed, the same samples."""

import pytest

from .scripts import assert_same_batches, assert_same_samples, run, samples_of, script

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("torchvision")
pytest.importorskip("webdataset")

KEY = 2  # the third field of a sample

# WebDataset leaves it to Python to close the shards that it read.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file .*photographs-:ResourceWarning")
ITS_OWN = ("-W", "ignore:unclosed file:ResourceWarning")


def test_the_script_before_runs():
    assert "7 batches, 48 photographs, astronaut-01 first" in run("webdataset_before")


def test_the_script_after_runs():
    printed = run("webdataset_after", "-W", "error", *ITS_OWN)
    assert "indexed: 6 batches, 48 photographs" in printed
    assert "as a stream: 7 batches, 48 photographs, astronaut-01 first" in printed


@pytest.fixture
def indexed():
    """Makes indexed loaders, and closes their files."""
    made = []

    def make(**arguments):
        made.append(script("webdataset_after").make_loader(**arguments))
        return made[-1]

    yield make
    for loader in made:
        loader.close()
        loader.dataset.close()


def test_as_a_stream_in_two_lanes_the_batches_are_those_of_two_workers():
    before, after = script("webdataset_before"), script("webdataset_after")
    assert_same_batches(before.make_loader(), after.make_stream_loader())


def test_kept_lanes_shuffle_the_shards_anew_each_epoch_as_kept_workers_do():
    loader = script("webdataset_after").make_stream_loader(persistent_workers=True)
    first, second = ([key for *_, keys in loader for key in keys] for _ in range(2))
    assert first != second
    assert sorted(first) == sorted(second)


def test_a_stream_that_was_cut_goes_on_after_reading_once_more_what_was_handed_out():
    after = script("webdataset_after")
    loader = after.make_stream_loader()
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    rest = list(batches)
    again = after.make_stream_loader()
    again.load_state_dict(state)
    with pytest.warns(UserWarning, match="1 batches that were handed out before are read once more"):
        assert_same_batches(rest, list(again))


def test_one_lane_reads_each_shard_once_and_four_threads_decode():
    after = script("webdataset_after")
    expected = samples_of(after.make_stream_loader())
    loader = after.make_stream_loader(num_workers=4, lanes=1)
    assert [len(keys) for *_, keys in loader] == [8] * 6
    assert_same_samples(expected, samples_of(loader), KEY)


def test_indexed_shards_give_the_same_samples(indexed):
    before = script("webdataset_before")
    assert_same_samples(samples_of(before.make_loader()), samples_of(indexed()), KEY)


@pytest.mark.usefixtures("short_switch_interval")
def test_each_thread_reads_indexed_shards_with_files_of_its_own(indexed):
    inline, threads = indexed(num_workers=0), indexed(num_workers=8)
    assert_same_batches(inline, threads)
    assert all(file.tell() == 0 for file in threads.dataset.files)  # nobody read with these


def test_indexed_shards_are_shuffled_whole_anew_each_epoch_and_resumed_on_three_ranks_where_two_stopped(indexed):
    whole = indexed()
    orders = []
    for epoch in range(2):
        whole.sampler.set_epoch(epoch)
        orders.append([key for *_, keys in whole for key in keys])
    assert orders[0] != orders[1]
    seen = []
    for rank in range(2):
        loader = indexed(rank=rank, num_ranks=2)
        seen += next(iter(loader))[KEY]
        state = loader.state_dict()
    for rank in range(3):
        loader = indexed(rank=rank, num_ranks=3)
        loader.load_state_dict(state)
        seen += [key for *_, keys in loader for key in keys]
    assert len(seen) == 48
    assert set(seen) == set(orders[0])
