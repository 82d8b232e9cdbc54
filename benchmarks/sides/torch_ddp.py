"""PyTorch's `DistributedDataParallel` over gloo: one process of one thread per replica."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import common

# Installed in an environment of its own, where the type checker does not look.
import torch  # pyright: ignore[reportMissingImports]
from torch import distributed  # pyright: ignore[reportMissingImports]
from torch.nn.parallel import DistributedDataParallel  # pyright: ignore[reportMissingImports]


def make_model() -> Any:
    """Builds the model with the first weights that all sides share."""
    model = torch.nn.Sequential(
        torch.nn.Linear(common.INPUTS, common.HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(common.HIDDEN, common.CLASSES),
    )
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), common.weights(), strict=True):
            parameter.copy_(torch.from_numpy(value.T))  # torch keeps kernels transposed
    return model


def run_rank(rank: int, steps: int, meeting: str) -> None:
    """Trains as one of the processes; rank 0 reports.

    Args:
        rank: This process's number.
        steps: Timed steps.
        meeting: Address of the file through which the processes find each other.
    """
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=meeting, rank=rank, world_size=common.REPLICAS
    )
    model = DistributedDataParallel(make_model())
    optimizer = torch.optim.Adam(model.parameters(), lr=common.LEARNING_RATE, eps=common.EPSILON)
    mine = slice(
        rank * common.BATCH // common.REPLICAS, (rank + 1) * common.BATCH // common.REPLICAS
    )
    epoch = [
        (torch.from_numpy(x[mine]), torch.from_numpy(y[mine]).long()) for x, y in common.batches()
    ]

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        # The loss of this rank's rows only, as DDP's users have it: over an epoch its mean is
        # close enough to the global one to see that the side trains.
        return loss.detach()

    measurement = common.time_loop(step, epoch, steps=steps, read=float)
    if rank == 0:
        common.report(measurement, "torch", "numpy")
    distributed.destroy_process_group()


def main() -> None:
    """Starts the processes and waits for them."""
    args = common.arguments()
    with tempfile.TemporaryDirectory() as folder:
        meeting = (Path(folder) / "meeting").as_uri()
        torch.multiprocessing.spawn(
            run_rank, args=(args.steps, meeting), nprocs=common.REPLICAS, join=True
        )


if __name__ == "__main__":
    main()
