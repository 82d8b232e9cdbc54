"""The public surface: what is exported, and that every name of it is documented."""

from __future__ import annotations

import importlib
import inspect
import pickle

import pytest
import reference

import paceline
from paceline import errors


def test_root_exports() -> None:
    assert sorted(paceline.__all__) == [
        "GradientTape",
        "IndexedSlices",
        "UnconnectedGradients",
        "Variable",
        "VariableAggregation",
        "VariableSynchronization",
        "checkpoint",
        "cluster",
        "config",
        "data",
        "datasets",
        "distribute",
        "errors",
        "function",
        "keras",
        "monitor",
        "nn",
        "optimizers",
        "pace",
        "placing",
        "testing",
        "train",
        "update_rules",
        "virtual",
    ]


@pytest.mark.parametrize("name", paceline.__all__)
def test_every_export_can_be_reached(name: str) -> None:
    assert getattr(paceline, name) is not None
    assert name in dir(paceline)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'Session'$"):
        _ = paceline.Session  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"keras\.ops\.cast, or those of jax\.numpy"):
        _ = paceline.cast  # pyright: ignore[reportAttributeAccessIssue]


def test_second_names_of_tensorflow() -> None:
    assert paceline.losses is paceline.keras.losses  # pyright: ignore[reportAttributeAccessIssue]
    assert paceline.metrics is paceline.keras.metrics  # pyright: ignore[reportAttributeAccessIssue]
    assert errors.OutOfRangeError is errors.EndOfData
    assert errors.CancelledError is errors.Cancelled
    assert errors.UnavailableError is errors.Unavailable
    assert errors.DeadlineExceededError is errors.WaitTimeout
    assert errors.InvalidArgumentError is errors.InvalidArgument
    coordinator = paceline.distribute.coordinator
    assert paceline.distribute.experimental.coordinator is coordinator
    assert coordinator.PerWorkerValue is coordinator.PerWorkerValues
    experimental = paceline.distribute.experimental
    assert experimental.ParameterServerStrategy is paceline.distribute.ParameterServerStrategy


@pytest.mark.parametrize("path", reference.NAMESPACES)
def test_every_public_name_has_a_docstring(path: str) -> None:
    namespace = importlib.import_module(path)
    bare = []
    for name in reference.public_names(namespace):
        value = getattr(namespace, name)
        if (inspect.isclass(value) or callable(value)) and not inspect.getdoc(value):
            bare.append(name)
    assert bare == []


ERRORS = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, errors.PacelineError)
]


@pytest.mark.parametrize("error", ERRORS)
def test_errors_survive_pickling_and_stand_in_the_drawn_tree(
    error: type[errors.PacelineError],
) -> None:
    copied = pickle.loads(pickle.dumps(error("rule. Received: x=1. Do y.")))
    assert type(copied) is error
    assert str(copied) == "rule. Received: x=1. Do y."
    assert errors.__doc__ is not None
    assert error.__name__ in errors.__doc__
