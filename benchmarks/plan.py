"""What each benchmark runs side by side: its sides, and the ratios between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Side:
    """One program that is measured.

    Attributes:
        name: How the side is called on the command line and in the results.
        script: File name under `sides/`, without its ending.
        environment: Key of `environments.REQUIREMENTS`.
        options: Further arguments of the script.
        keras_backend: The Keras backend, where the script imports Keras.
    """

    name: str
    script: str
    environment: str = "project"
    options: tuple[str, ...] = ()
    keras_backend: str = "jax"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Steps a second of one side over another's.

    Attributes:
        side: Name of the side above the line.
        against: Name of the side below the line.
        at_least: The target; None where the ratio is only for information.
    """

    side: str
    against: str
    at_least: float | None = None


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One benchmark.

    Attributes:
        name: of the file with the results.
        title: what the help text says.
        sides: the programs, in the order in which they run.
        ratios: what is compared.
        reference: name of the side whose loss all others must have.
        loss_tolerance: greatest relative difference of that loss.
        checks: scripts that are run after the rounds, each with a target of its own.
    """

    name: str
    title: str
    sides: tuple[Side, ...]
    ratios: tuple[Ratio, ...]
    reference: str
    loss_tolerance: float
    checks: tuple[str, ...] = ()


_LOCKSTEP_SIDES = (
    Side(name="handwritten", script="handwritten"),
    Side(name="paceline_loop", script="paceline_loop"),
    Side(name="paceline_fit", script="paceline_fit"),
    Side(name="paceline_fit_10", script="paceline_fit", options=("--steps-per-execution", "10")),
    Side(
        name="tensorflow_loop",
        script="tensorflow_loop",
        environment="tensorflow",
        keras_backend="tensorflow",
    ),
    Side(
        name="tensorflow_fit",
        script="tensorflow_fit",
        environment="tensorflow",
        keras_backend="tensorflow",
    ),
    Side(name="torch_ddp", script="torch_ddp", environment="torch"),
    Side(name="keras_fit_one_device", script="keras_fit"),
)

_LOCKSTEP_RATIOS = (
    Ratio(side="paceline_loop", against="handwritten", at_least=0.9),
    Ratio(side="paceline_loop", against="tensorflow_loop", at_least=4.0),
    Ratio(side="paceline_fit", against="handwritten", at_least=0.8),
    Ratio(side="paceline_fit", against="tensorflow_fit", at_least=6.0),
    Ratio(side="paceline_fit_10", against="paceline_fit", at_least=1.3),
    Ratio(side="paceline_loop", against="torch_ddp"),
    Ratio(side="paceline_fit", against="keras_fit_one_device"),
    Ratio(side="tensorflow_loop", against="handwritten"),
    Ratio(side="torch_ddp", against="handwritten"),
)

LOCKSTEP = Plan(
    name="lockstep",
    title="Paceline in lockstep against a hand-written JAX loop, TensorFlow and PyTorch.",
    sides=_LOCKSTEP_SIDES,
    ratios=_LOCKSTEP_RATIOS,
    reference="handwritten",
    # torch_ddp reports one process's half of the rows, so this cannot be much smaller.
    loss_tolerance=0.01,
    checks=("import_time.py", "live_arrays.py"),
)

_SERVER_SIDES = (
    Side(name="handwritten_1", script="handwritten_store", options=("--workers", "1")),
    Side(name="handwritten_2", script="handwritten_store", options=("--workers", "2")),
    Side(
        name="handwritten_2_devices",
        script="handwritten_store",
        options=("--workers", "2", "--cpu-devices", "2"),
    ),
    Side(name="paceline_1", script="paceline_coordinator", options=("--workers", "1")),
    Side(name="paceline_2", script="paceline_coordinator", options=("--workers", "2")),
    Side(
        name="paceline_2_devices",
        script="paceline_coordinator",
        options=("--workers", "2", "--cpu-devices", "2"),
    ),
    Side(name="paceline_fit", script="paceline_server_fit", options=("--workers", "2")),
    Side(name="paceline_central", script="paceline_central_loop", options=("--workers", "2")),
    Side(
        name="tensorflow",
        script="tensorflow_coordinator",
        environment="tensorflow",
        options=("--workers", "2"),
        keras_backend="tensorflow",
    ),
)

_SERVER_RATIOS = (
    Ratio(side="paceline_2", against="tensorflow", at_least=5.0),
    Ratio(side="paceline_2_devices", against="tensorflow", at_least=5.0),
    Ratio(side="paceline_1", against="handwritten_1", at_least=0.8),
    Ratio(side="paceline_2", against="handwritten_2"),
    Ratio(side="paceline_2_devices", against="handwritten_2_devices"),
    Ratio(side="paceline_2", against="paceline_1"),
    Ratio(side="handwritten_2", against="handwritten_1"),
    Ratio(side="paceline_fit", against="paceline_2"),
    Ratio(side="paceline_fit", against="tensorflow"),
    Ratio(side="paceline_central", against="paceline_2"),
)

PARAMETER_SERVER = Plan(
    name="parameter_server",
    title="Paceline's parameter servers against a hand-written JAX store and TensorFlow's.",
    sides=_SERVER_SIDES,
    ratios=_SERVER_RATIOS,
    reference="handwritten_1",
    # Random orders and stale pushes change the fourth digit; without training it is 2.53, not 2.29.
    loss_tolerance=0.01,
    checks=("scheduling.py", "store_memory.py"),
)
