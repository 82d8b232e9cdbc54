"""What is trained under every mode: a model, data, and how good a model is."""

from __future__ import annotations

import dataclasses
import runpy
from typing import TYPE_CHECKING, Any

import jax
import keras
import numpy as np

from paceline.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_SCRIPT = "make_model() -> compiled model, and make_data() -> ((x, y), (x_test, y_test))"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A training, without the question who does it.

    Args:
        title: of the page.
        make_model: makes a compiled Keras model; called under the strategy, after the seed is set.
        train: arrays `x[examples, ...]`, `y[examples, ...]`.
        test: the same, for the curves.
        batch_size: examples of a step of one worker.
        examples: how many to train on in all; the training data are repeated. Default: 5 times all.
        evaluate: returns figures by name for a model, on the coordinator and without virtual time.
            Default: the model's loss on the test data, and accuracy where it classifies.
        source: the text of the program that it came from: runs of another text are not taken for
            runs of this one.

    Raises:
        InvalidArgument: no examples, or sizes that do not fit.
    """

    title: str
    make_model: Callable[[], Any]
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    batch_size: int = 32
    examples: int = 0
    evaluate: Callable[[Any], dict[str, float]] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        num_train = len(self.train[0])
        if not self.examples:
            object.__setattr__(self, "examples", 5 * num_train)
        if not 1 <= self.batch_size <= min(num_train, self.examples):
            raise InvalidArgument(
                "A batch has at least 1 example, and no more than there are. Received: "
                f"batch_size={self.batch_size} of {num_train} examples, of which "
                f"{self.examples} are trained on."
            )
        for name, (x, y) in (("train", self.train), ("test", self.test)):
            if len(x) != len(y) or not len(x):
                raise InvalidArgument(
                    f"Every example has a target. Received: {len(x)} examples and {len(y)} targets "
                    f"in {name!r}."
                )

    @classmethod
    def from_script(cls, path: Path) -> Experiment:
        """Reads an experiment from a Python file.

        The file defines `make_model` and `make_data`, and may define `BATCH_SIZE`, `EXAMPLES` and
        `evaluate`.

        Raises:
            InvalidArgument: something is missing.
        """
        if not path.is_file():
            raise InvalidArgument(f"A script is a Python file. Received: {str(path)!r}.")
        names = runpy.run_path(str(path), run_name="__paceline_compare__")
        missing = [name for name in ("make_model", "make_data") if not callable(names.get(name))]
        if missing:
            raise InvalidArgument(
                f"A script to compare modes with defines {_SCRIPT}. Received: {str(path)!r} "
                f"without {' and '.join(missing)}."
            )
        train, test = names["make_data"]()
        return cls(
            title=path.stem,
            make_model=names["make_model"],
            train=train,
            test=test,
            batch_size=names.get("BATCH_SIZE", 32),
            examples=names.get("EXAMPLES", 0),
            evaluate=names.get("evaluate"),
            source=path.read_text(encoding="utf-8"),
        )

    def batches(self, seed: int) -> Any:
        """The batches of the training, each epoch in another order: `(x, y)`."""
        rng, (x, y), left = np.random.default_rng(seed), self.train, self.examples
        while left > 0:
            order = rng.permutation(len(x))
            for start in range(0, len(x) - self.batch_size + 1, self.batch_size):
                rows = order[start : start + min(self.batch_size, left)]
                yield x[rows], y[rows]
                left -= len(rows)
                if left <= 0:
                    return


class Judge:
    """Tells how good a model is at a moment, without a worker.

    Args:
        experiment: what is trained.
        model: the model.
    """

    def __init__(self, experiment: Experiment, model: Any) -> None:
        self._model, self._evaluate = model, experiment.evaluate
        self._x, self._y = experiment.test
        self._loss = None if self._evaluate else keras.losses.get(model.loss)
        if self._evaluate is None and self._loss is None:
            raise InvalidArgument(
                "A model is judged by its loss, or by a function of one's own. Received: "
                f"{model.name!r}, compiled without a loss, and no `evaluate`."
            )
        # As Keras's own steps do: not every model takes the argument.
        options = {"training": False} if model._call_has_training_arg else {}
        self._predict = jax.jit(
            lambda weights, state, x: model.stateless_call(weights, state, x, **options)[0]
        )

    def __call__(self) -> dict[str, float]:
        """Returns the figures by name."""
        model = self._model
        if self._evaluate is not None:
            return {name: float(value) for name, value in self._evaluate(model).items()}
        weights = [variable.value for variable in model.trainable_variables]
        state = [variable.value for variable in model.non_trainable_variables]
        predicted = np.asarray(self._predict(weights, state, self._x))
        loss: Any = self._loss
        figures = {"loss": float(np.mean(np.asarray(loss(self._y, predicted))))}
        if "crossentropy" in str(getattr(loss, "name", loss)).lower():
            classes = _classes(predicted, _middle(loss))
            figures["accuracy"] = float(np.mean(classes == self._true_classes()))
        return figures

    def _true_classes(self) -> np.ndarray:
        y = np.asarray(self._y)
        is_one_hot = y.ndim == 2 and y.shape[1] > 1
        return y.argmax(-1) if is_one_hot else y.reshape(len(y))


def _middle(loss: Any) -> float:
    """The output of a model that cannot tell two classes apart."""
    config = loss.get_config() if hasattr(loss, "get_config") else {}
    return 0.0 if config.get("from_logits") else 0.5


def _classes(predicted: np.ndarray, middle: float) -> np.ndarray:
    """The class that is predicted for each example; one column is the second of two."""
    if predicted.ndim == 2 and predicted.shape[1] > 1:
        return predicted.argmax(-1)
    return (predicted.reshape(len(predicted)) > middle).astype(int)


def digits() -> Experiment:
    """The 8x8 digits that come with Paceline, and a network of 64-64-10."""
    from paceline.datasets import digits as data

    (x, y), (x_test, y_test) = data.load_data()

    def make_model() -> Any:
        model = keras.Sequential(
            [keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
        )
        model.compile(
            optimizer=keras.optimizers.SGD(0.1),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        return model

    def prepared(images: np.ndarray) -> np.ndarray:
        return (images.reshape(len(images), -1) / 16).astype("float32")

    return Experiment(
        title="digits",
        make_model=make_model,
        train=(prepared(x), y.astype("int32")),
        test=(prepared(x_test), y_test.astype("int32")),
        batch_size=16,
        examples=51_200,
    )
