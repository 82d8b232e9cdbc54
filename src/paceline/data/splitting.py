"""How many examples of a global batch each replica gets. Pure arithmetic.

One rule everywhere: the parts are consecutive, their sizes lie within one of each other, and the
first ones are the larger. (tf.distribute has two rules; on batches that divide evenly, all agree.)
"""

from __future__ import annotations

from paceline.errors import InvalidArgument


def split_sizes(num_examples: int, num_parts: int) -> tuple[int, ...]:
    """Returns the sizes of `num_parts` balanced parts, as in 7 over 3: (3, 2, 2).

    Raises:
        InvalidArgument: a negative number of examples or no part.
    """
    if num_examples < 0 or num_parts < 1:
        raise InvalidArgument(
            "A batch of 0 or more examples is split into 1 or more parts. Received: "
            f"num_examples={num_examples}, num_parts={num_parts}."
        )
    size, num_larger = divmod(num_examples, num_parts)
    return (size + 1,) * num_larger + (size,) * (num_parts - num_larger)


def split_slices(num_examples: int, num_parts: int) -> tuple[slice, ...]:
    """Returns where the parts of `split_sizes` lie in the batch.

    Raises:
        InvalidArgument: as `split_sizes`.
    """
    return _consecutive(split_sizes(num_examples, num_parts))


def worker_slice(num_examples: int, num_workers: int, num_replicas: int, worker: int) -> slice:
    """Returns where one worker's examples lie in a batch split over all workers' replicas.

    Args:
        num_examples: size of the global batch.
        num_workers: how many workers share it.
        num_replicas: how many replicas each worker has.
        worker: index of the worker.

    Raises:
        InvalidArgument: as `split_sizes`, or a worker that does not exist.
    """
    _check_worker(num_workers, worker)
    parts = split_slices(num_examples, num_workers * num_replicas)
    own = parts[worker * num_replicas : (worker + 1) * num_replicas]
    return slice(own[0].start, own[-1].stop)


def rebatch_sizes(
    global_batch_size: int, num_workers: int, num_replicas: int, worker: int
) -> tuple[int, ...]:
    """Returns the batch sizes into which one worker cuts a dataset that it reads alone.

    Used where every worker has files of its own. The sizes repeat; in each step the workers' sizes
    sum to `global_batch_size`. With 7 over 2 workers of 2 replicas, worker 0 cuts 2, 2, 2, 1 and
    worker 1 cuts 2, 1, 2, 2: in the first step 2+2 and 2+1, in the second 2+1 and 2+2.

    Raises:
        InvalidArgument: as `split_sizes`, or a worker that does not exist.
    """
    _check_worker(num_workers, worker)
    sizes = split_sizes(global_batch_size, num_workers * num_replicas)
    # In step k worker w takes the parts that worker 0 takes in step k + w: every part is taken
    # once a step, and over `num_workers` steps every worker takes each part once.
    first = worker * num_replicas
    return sizes[first:] + sizes[:first]


def _consecutive(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    start, result = 0, []
    for size in sizes:
        result.append(slice(start, start + size))
        start += size
    return tuple(result)


def _check_worker(num_workers: int, worker: int) -> None:
    if not 0 <= worker < num_workers:
        raise InvalidArgument(
            f"A worker's index lies in 0..{num_workers - 1}. Received: worker={worker}."
        )
