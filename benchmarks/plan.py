"""The sides, and the ratios between them that the benchmark is about."""

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


SIDES = (
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

RATIOS = (
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
