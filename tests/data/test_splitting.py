"""The one rule by which batches are split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.data.splitting import rebatch_sizes, split_sizes, split_slices, worker_slice
from paceline.errors import InvalidArgument

COUNTS = st.integers(1, 12)
BATCHES = st.integers(0, 500)


@given(BATCHES, COUNTS)
def test_parts_are_balanced_and_the_first_are_the_larger(batch: int, parts: int) -> None:
    sizes = split_sizes(batch, parts)
    assert len(sizes) == parts
    assert sum(sizes) == batch
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(BATCHES, COUNTS)
def test_slices_cover_the_batch_in_order(batch: int, parts: int) -> None:
    slices = split_slices(batch, parts)
    assert slices[0].start == 0
    assert slices[-1].stop == batch
    assert all(left.stop == right.start for left, right in pairwise(slices))
    assert tuple(s.stop - s.start for s in slices) == split_sizes(batch, parts)


@given(BATCHES, COUNTS, COUNTS)
def test_workers_share_a_batch_as_their_replicas_would(batch: int, workers: int, per: int) -> None:
    slices = [worker_slice(batch, workers, per, w) for w in range(workers)]
    assert [i for s in slices for i in range(s.start, s.stop)] == list(range(batch))
    sizes = split_sizes(batch, workers * per)
    assert [s.stop - s.start for s in slices] == [
        sum(sizes[w * per : (w + 1) * per]) for w in range(workers)
    ]


@given(BATCHES, COUNTS, COUNTS)
def test_rebatched_steps_make_up_the_global_batch(batch: int, workers: int, per: int) -> None:
    sizes = [rebatch_sizes(batch, workers, per, w) for w in range(workers)]
    for step in range(workers):
        taken = [s[step * per : (step + 1) * per] for s in sizes]
        assert sum(map(sum, taken)) == batch
    # Over the whole pattern every worker reads the same number of examples.
    assert {sum(s) for s in sizes} == {batch}


@pytest.mark.contract(80)
@pytest.mark.case("R38")
def test_seven_examples_over_two_workers_with_two_replicas() -> None:
    assert rebatch_sizes(7, 2, 2, 0) == (2, 2, 2, 1)
    assert rebatch_sizes(7, 2, 2, 1) == (2, 1, 2, 2)


@pytest.mark.contract(80)
def test_two_workers_share_a_short_last_batch() -> None:
    last = list(range(8, 14))
    assert [last[worker_slice(6, 2, 1, w)] for w in range(2)] == [[8, 9, 10], [11, 12, 13]]


@pytest.mark.case("R38")
def test_four_examples_over_three_replicas() -> None:
    assert split_sizes(4, 3) == (2, 1, 1)


@pytest.mark.parametrize(("batch", "parts"), [(-1, 2), (3, 0), (3, -1)])
def test_impossible_splits_are_refused(batch: int, parts: int) -> None:
    with pytest.raises(InvalidArgument, match=f"num_examples={batch}, num_parts={parts}"):
        split_sizes(batch, parts)


@pytest.mark.parametrize("worker", [-1, 2])
def test_a_worker_that_does_not_exist_is_refused(worker: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"index lies in 0\.\.1\. Received: worker={worker}"):
        rebatch_sizes(7, 2, 2, worker)
