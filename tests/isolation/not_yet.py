"""Faults that these tests found and that are not mended yet: what each is, and the tests that it makes fail.

A test that is named here may fail. Run them with ``--runxfail`` to see; take the line out when it is mended.
"""

import re

FAULTS = {
    "what collate_fn changes in the first batch is not looked at": [
        "state_of_a_collate_method",
        "test_a_hidden_counter_is_no_trouble",
    ],
    "a cache that first grows and later forgets looks like one that only grows": ["a_cache_that_forgets"],
    "what is set on a class or in a module is found by a trial alone": [
        r"(per_thread_by_hand_says|names_the_suspect).*on_the_class",
        "names_the_suspect.*a_global_of_the_module",
    ],
    "isolation='per_thread' copies no long containers": [
        r"copy_for_each_thread\[(a_patch_of|an_hdf5_file\]|a_dict_of_readers)",
        "test_by_hand_as_well",
        r"keeps_its_shape\[Modules-per_thread",
    ],
    "a reader that was made for the first sample and kept in a dict stays in the user's dict, seen now and then": [
        "a_dict_of_readers",
        r"test_ur_071_frames.*CachedFrames",
    ],
    "two loaders look at one dataset at the same time": ["two_threads_may_begin_at_once"],
    "what is loaded once counts as changing: it looks like the last shard, which is loaded again": [
        r"no_thread_gets_a_copy\[(an_index_loaded)",
        "what_was_loaded_for_the_first_sample_is_kept",
    ],
    "check_thread_safety suspects the cache of a function": [r"suspects_nothing_there\[a_pure_function"],
}
SURE = re.compile(  # tests of the stories themselves, and of what sharing shows
    "threads_share_it|is_right_in_one_thread|behind_a_lock|shows_the_differences|by_hand_it_is_silent|needs_no_warning"
)


def why_it_may_fail(name: str) -> str | None:
    """The fault that may make the test of that name fail."""
    if SURE.search(name):
        return None
    return next((why for why, names in FAULTS.items() if any(re.search(one, name) for one in names)), None)
