"""Faults that these tests found and that are not mended yet: what each is, and the tests that it makes fail.

A test that is named here may fail. Run them with ``--runxfail`` to see; take the line out when it is mended.
"""

import re

FAULTS = {
    "what collate_fn changes in the first batch is not looked at": [
        "state_of_a_collate_method",
        "test_a_hidden_counter_is_no_trouble",
    ],
    "a reader made for the first sample and kept in a dict is taken along, but stays in the user's dict": [
        "a_dict_of_readers",
        r"test_ur_071_frames.*CachedFrames",
    ],
    "of a list or dict above 1000 elements only the length is compared": [
        "a_long_list_filled_anew",
        "an_entry_of_a_long_dict",
    ],
    "a cache that first grows and later forgets looks like one that only grows": ["a_cache_that_forgets"],
    "what is set on a class or in a module is not looked at": [
        r"(per_thread_by_hand_says|names_the_suspect).*on_the_class",
        "a_global_of_the_module",
    ],
    "isolation='per_thread' copies no arrays, long containers or variables of closures": [
        r"copy_for_each_thread\[(a_big_scratch|a_patch_of|a_scratch_(array\]|tensor|of_bytes)|an_hdf5_file\]|state_behind)",
        "test_by_hand_as_well",
        r"keeps_its_shape\[Modules-per_thread",
    ],
    "a transform that is put in later is not looked at": ["a_transform_may_be_put_in_between_epochs"],
    "others are let in after a second, and not all is made again": ["may_take_so_long_that_the_others_are_let_in"],
    "two loaders look at one dataset at the same time": ["two_threads_may_begin_at_once"],
    "a generator on a class, as MONAI's, has no copies": [
        "a_generator_on_the_class_is_no_other",
        "test_random_transforms_of_monai",
    ],
    "what is loaded once, or kept in a threading.local, or found out by a Path, counts as changing": [
        r"no_thread_gets_a_copy\[(a_cached_property|a_file_for_each|a_list_of_fresh|an_index_loaded)",
        r"suspects_nothing_there\[(a_list_of_fresh|a_file_for_each)",
        "what_was_loaded_for_the_first_sample_is_kept",
    ],
    "the globals of functions are asked for __self__, which may be code of the user's": [
        "a_stand_in_for_a_missing_package_is_not_asked",
    ],
    "check_thread_safety shares what crashes, and looks only after one thread loaded everything": [
        "test_it_reports_what_crashes_before_training_does",
    ],
    "check_thread_safety makes the samples of one thread in a thread of the loader's": [
        r"test_it_names_the_suspect\[a_sqlite",
    ],
    "check_thread_safety advances torch's generator": ["test_it_leaves_no_trace"],
    "check_thread_safety walks circles for ever": ["cannot_be_compared_with_equals"],
}
SURE = re.compile(  # tests of the stories themselves, and of what sharing shows
    "threads_share_it|is_right_in_one_thread|behind_a_lock|shows_the_differences|by_hand_it_is_silent|needs_no_warning"
)


def why_it_may_fail(name: str) -> str | None:
    """The fault that may make the test of that name fail."""
    if SURE.search(name):
        return None
    return next((why for why, names in FAULTS.items() if any(re.search(one, name) for one in names)), None)
