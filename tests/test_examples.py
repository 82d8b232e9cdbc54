"""The programs of `examples/` run and reach what they promise."""

from __future__ import annotations

import importlib.util
import pathlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from types import ModuleType

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_aggregated_variable_moves_by_one_adam_step() -> None:
    # Adam's first step is the learning rate times the sign of the gradient.
    assert load("aggregation").main() == pytest.approx(-0.001, rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize("compile_inside", [True, False])
def test_mirrored_fit_learns_mnist(compile_inside: bool) -> None:
    assert load("mirrored_fit").main(compile_inside=compile_inside) >= 0.97


@pytest.mark.parametrize("distributed", [True, False])
def test_custom_loop_learns_the_digits(distributed: bool) -> None:
    assert load("custom_loop").main(distributed=distributed) >= 0.9


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mnist")
def test_central_storage_learns_mnist() -> None:
    assert load("central_storage").main() >= 0.97


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("mnist")
@pytest.mark.parametrize(
    ("with_coordinator", "pushes"),
    [(False, "2 workers made 1,876"), (True, "2 workers made 1,874")],
)
def test_asynchronous_loop_learns_mnist(
    with_coordinator: bool, pushes: str, capsys: pytest.CaptureFixture[str]
) -> None:
    accuracy = load("asynchronous_loop").main(epochs=2, with_coordinator=with_coordinator)
    assert accuracy >= 0.94
    assert pushes in capsys.readouterr().out  # none was lost, and the report counts each


@pytest.mark.parametrize("with_fit", [False, True])
def test_parameter_servers_learn_baskets(
    with_fit: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load("parameter_server").main(with_fit=with_fit) >= 0.95
    assert "embedding/embeddings/part_1" in capsys.readouterr().out  # the table is divided
