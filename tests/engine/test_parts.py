"""Parts: samples of a batch on their way from one segment to the next, and home, where the batch is finished."""

from fakes import (
    Elsewhere,
    chain_of_segments,
    next_of,
    pool_of,
    rest_of,
    run_of,
    segment_of,
    wait_for,
)


def test_a_batch_that_begins_elsewhere_is_finished_by_the_pools_own_threads():
    elsewhere = Elsewhere()
    with pool_of(2) as pool:
        run = run_of(pool, [[1, 2], [3]], chain_of_segments(segment_of("fetch", str, elsewhere), home=pool))
        for _ in range(3):
            elsewhere.make_one()
        assert [batch.value for batch in rest_of(run)] == [["1", "2"], ["3"]]


def test_a_sample_goes_home_and_elsewhere_and_home_again():
    elsewhere = Elsewhere()
    with pool_of(1) as pool:
        fetch, decode, transform = (
            segment_of("fetch", lambda index: [index]),
            segment_of("decode", lambda value: [*value, "decoded"], elsewhere),
            segment_of("transform", tuple),
        )
        run = run_of(pool, [[7]], chain_of_segments(fetch, decode, transform, home=pool))
        wait_for(lambda: elsewhere.called)
        elsewhere.make_one()
        assert next_of(run).value == [(7, "decoded")]
