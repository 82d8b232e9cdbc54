"""fit, evaluate and predict by workers that push: the numbers, and the data that they read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import pytest

import paceline as tf
from keras_oracle import classifier, examples
from message_models import (
    BATCH,
    STRATEGIES,
    compiled,
    evaluated,
    history_of,
    parameter_servers,
)
from paceline.errors import ContextError, InvalidArgument
from paceline.testing import GOLDEN, REFERENCE, assert_close

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

X, Y = examples(37)  # five batches, the last one short
BATCHES = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in range(0, 32, BATCH)]
WEIGHTS = np.linspace(0.2, 2.0, len(X), dtype="float32")


def adam(k: Any) -> dict[str, Any]:
    loss = "sparse_categorical_crossentropy"
    return {"optimizer": k.optimizers.Adam(0.01), "loss": loss, "metrics": ["accuracy"]}


def frozen(k: Any) -> dict[str, Any]:
    """With a rate of 0 what is reported does not depend on the order of updates."""
    return adam(k) | {"optimizer": k.optimizers.SGD(0.0), "weighted_metrics": ["accuracy"]}


def with_statistics(k: Any) -> Any:
    return classifier(k, k.layers.BatchNormalization(), k.layers.Dropout(0.3))


@pytest.fixture(params=STRATEGIES)
def make_strategy(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return STRATEGIES[request.param]


def applied(strategy: Any) -> int:
    return strategy.monitor.report().applied


# Numbers --------------------------------------------------------------------------------------


def test_one_worker_equals_plain_keras(make_strategy: Callable[..., Any]) -> None:
    plain = compiled(None, with_statistics, adam)
    model = compiled(make_strategy(1), with_statistics, adam)
    options = {"validation_data": (X[:BATCH], Y[:BATCH]), "epochs": 3}
    expected = history_of(plain, X, Y, **options)
    assert_close(history_of(model, X, Y, **options), expected, GOLDEN)
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
    assert int(model.optimizer.iterations) == 15


def test_every_batch_is_one_update(make_strategy: Callable[..., Any]) -> None:
    strategy = make_strategy()
    model = compiled(strategy, with_statistics, adam)
    losses = history_of(model, X[:32], Y[:32], epochs=5)["loss"]
    assert int(model.optimizer.iterations) == 20
    report = strategy.monitor.report()
    assert (report.applied, report.examples, report.dropped) == (20, 160, 0)
    assert np.isfinite(losses).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())


def test_what_fit_reports_counts_every_example_once() -> None:
    plain = compiled(None, classifier, frozen)
    model = compiled(parameter_servers(), classifier, frozen)
    options: list[dict[str, Any]] = [
        {"sample_weight": WEIGHTS},
        {"class_weight": {0: 0.5, 1: 2.0, 2: 1.0}},
        {"validation_split": 0.3},
    ]
    for option in options:
        expected = history_of(plain, X, Y, **option)
        assert_close(history_of(model, X, Y, **option), expected, REFERENCE)
    assert_close(model.get_weights(), plain.get_weights(), REFERENCE)


def test_evaluate_is_exact_and_predict_keeps_the_order(make_strategy: Callable[..., Any]) -> None:
    plain = compiled(None, with_statistics, frozen)
    model = compiled(make_strategy(), with_statistics, frozen)
    history_of(plain, X[:32], Y[:32])  # moves the statistics
    model.set_weights(plain.get_weights())
    for option in ({"sample_weight": WEIGHTS}, {"steps": 2}):
        assert_close(evaluated(model, X, Y, **option), evaluated(plain, X, Y, **option), REFERENCE)
    for size in (BATCH, 64):
        predicted = model.predict(X, batch_size=size, verbose=0)
        assert_close(predicted, plain.predict(X, batch_size=size, verbose=0), REFERENCE)
    assert_close(model.predict_on_batch(X), plain.predict_on_batch(X), REFERENCE)


@pytest.mark.case("R31")
def test_a_step_by_hand_reports_its_own_batch() -> None:
    plain = compiled(None, classifier, adam)
    model = compiled(parameter_servers(1), classifier, adam)
    buffer = np.empty_like(BATCHES[0][0])
    for x, y in BATCHES[:3]:
        buffer[:] = x
        actual = model.train_on_batch(buffer, y, return_dict=True)
        buffer[:] = np.nan  # the batch was used by then
        assert_close(actual, plain.train_on_batch(x, y, return_dict=True), REFERENCE)
        expected = plain.test_on_batch(x, y)
        assert_close(model.test_on_batch(x, y), expected, REFERENCE)
    assert_close(model.get_weights(), plain.get_weights(), REFERENCE)


@pytest.mark.parametrize("pace", [tf.pace.Synchronous(), tf.pace.BoundedStaleness(0)], ids=repr)
def test_lockstep_equals_one_device_with_the_whole_batch(pace: Any) -> None:
    plain = compiled(None, classifier, adam)
    strategy = parameter_servers(4, pace=pace)
    model = compiled(strategy, classifier, adam)
    x, y = X[:32], Y[:32]
    history_of(plain, x, y, batch_size=16, epochs=3)
    history_of(model, x, y, batch_size=4, epochs=3)  # 8 batches, 2 rounds of 4 workers
    assert int(model.optimizer.iterations) == 6
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)


def test_code_that_is_not_compiled_makes_the_same_updates() -> None:
    def eagerly(k: Any) -> dict[str, Any]:
        return adam(k) | {"run_eagerly": True}

    plain = compiled(None, classifier, eagerly)
    strategy = parameter_servers(1)
    model = compiled(strategy, classifier, eagerly)
    expected = history_of(plain, *BATCHES[0], epochs=3)
    assert_close(history_of(model, *BATCHES[0], epochs=3), expected, REFERENCE)
    assert_close(model.get_weights(), plain.get_weights(), REFERENCE)
    strategy = parameter_servers(3)
    model = compiled(strategy, classifier, eagerly)
    history_of(model, X[:32], Y[:32])
    report = strategy.monitor.report()
    assert (int(model.optimizer.iterations), report.applied) == (8, 8)
    assert report.mean_staleness == 0  # a step holds the store while it runs
    assert report.workers[0].median_compute > 0


# Data -----------------------------------------------------------------------------------------


class Reiterable:
    """Yields the batches anew for every pass."""

    def __iter__(self) -> Iterator[Any]:
        return iter(BATCHES)


class Sequence(keras.utils.PyDataset):
    """The batches by index."""

    def __len__(self) -> int:
        return len(BATCHES)

    def __getitem__(self, index: int) -> Any:
        return BATCHES[index]


def generator() -> Iterator[Any]:
    yield from BATCHES


def endless() -> Iterator[Any]:
    while True:
        yield from BATCHES


def arrays() -> Any:
    return tf.data.ArrayBatches(X[:32], Y[:32], batch_size=BATCH)


# What is read, and the options of a fit.
DATA: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "array batches": (arrays, {}),
    "re-iterable": (Reiterable, {}),
    "re-iterable, some steps": (Reiterable, {"steps_per_epoch": 2}),
    "list of batches": (lambda: BATCHES, {}),
    "dataset of keras": (Sequence, {}),
    "generator": (generator, {"epochs": 1}),
    "endless generator": (endless, {"steps_per_epoch": 3}),
    "dataset function": (lambda: lambda: Reiterable(), {}),
    "dataset function of a context": (lambda: lambda context: Reiterable(), {}),
}


# What Keras says of any data whose length it is not told.
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.case("R43", "R133")
def test_any_data_is_read_as_plain_keras_reads_it() -> None:
    plain = compiled(None, classifier, frozen)
    strategy = parameter_servers(3)
    model = compiled(strategy, classifier, frozen)
    num_batches = 0
    for name, (make, options) in DATA.items():
        options = {"batch_size": None, "epochs": 2} | options
        actual = history_of(model, make(), **options)
        steps = options.get("steps_per_epoch", len(BATCHES))
        num_batches += options["epochs"] * steps
        assert int(model.optimizer.iterations) == num_batches, name
        expected = history_of(plain, endless(), **options | {"steps_per_epoch": steps})
        assert_close(actual, expected, REFERENCE)
        if name != "endless generator":
            results = evaluated(model, make(), batch_size=None)
            assert_close(results, evaluated(plain, X[:32], Y[:32]), REFERENCE)
    assert applied(strategy) == num_batches


def test_data_that_cannot_be_a_loop_is_refused() -> None:
    model = compiled(parameter_servers(2), classifier, frozen)
    with pytest.raises(InvalidArgument, match="steps_per_epoch"):
        model.fit(tf.data.ArrayBatches(X, Y, batch_size=BATCH, repeat=None), verbose=0)
    for empty in ([], lambda: []):
        with pytest.raises(InvalidArgument, match="no data"):
            model.fit(empty, verbose=0)
    history_of(model, *BATCHES[0])
    assert int(model.optimizer.iterations) == 2


def test_a_worker_trains_no_model() -> None:
    strategy = parameter_servers(2)
    model = compiled(strategy, classifier, frozen)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    for call in (model.fit, model.evaluate, model.train_on_batch):
        coordinator.schedule(call, (*BATCHES[0],))
        with pytest.raises(ContextError, match="hand out batches"):
            coordinator.join()
    predicted = coordinator.schedule(model.predict, (X[:4],), {"verbose": 0}).fetch()
    assert_close(predicted, model.predict(X[:4], verbose=0), REFERENCE)


# Models ---------------------------------------------------------------------------------------


def two_headed(k: Any) -> Any:
    inputs = k.Input((4,), name="x")
    hidden = k.layers.Dense(5, activation="tanh")(inputs)
    heads = {"a": k.layers.Dense(1, name="a")(hidden), "b": k.layers.Dense(2, name="b")(hidden)}
    return k.Model({"x": inputs}, heads)


def two_losses(k: Any) -> dict[str, Any]:
    return {
        "optimizer": k.optimizers.SGD(0.1, momentum=0.9),
        "loss": {"a": "mse", "b": "mae"},
        "loss_weights": {"a": 1.0, "b": 0.5},
        "metrics": {"a": ["mae"]},
    }


def test_a_functional_model_with_two_outputs() -> None:
    data = {"x": X[:32]}, {"a": X[:32, :1], "b": X[:32, 2:]}
    plain = compiled(None, two_headed, two_losses)
    model = compiled(parameter_servers(1), two_headed, two_losses)
    assert_close(history_of(model, *data), history_of(plain, *data), GOLDEN)
    model = compiled(parameter_servers(3), two_headed, two_losses)
    model.set_weights(plain.get_weights())
    assert_close(evaluated(model, *data), evaluated(plain, *data), REFERENCE)
    predicted, expected = (m.predict(data[0], batch_size=5, verbose=0) for m in (model, plain))
    assert predicted.keys() == {"a", "b"}
    assert_close(predicted, expected, REFERENCE)


class OwnStep(tf.keras.Model):
    """A step in TensorFlow's form with logs of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = tf.keras.layers.Dense(3)
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.steps.assign_add(1.0)
        return {"first": x[0, 0]}


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_a_step_of_ones_own(run_eagerly: bool) -> None:
    strategy = parameter_servers(3)
    with strategy.scope():
        model = OwnStep()
    model.compile("adam", tf.keras.losses.MeanSquaredError(), run_eagerly=run_eagerly)
    history = history_of(model, X[:32], X[:32, :3], epochs=2)
    assert_close(history["first"], np.repeat(X[24, 0], 2))  # the last batch's, in every epoch
    assert (int(model.optimizer.iterations), float(model.steps)) == (8, 8.0)
    assert applied(strategy) == 8


def test_mixed_precision() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        plain = compiled(None, classifier, adam)
        model = compiled(parameter_servers(1), classifier, adam)
    finally:
        keras.config.set_dtype_policy("float32")
    assert model.layers[0].compute_dtype == "bfloat16"
    actual, expected = (history_of(m, X[:32], Y[:32]) for m in (model, plain))
    assert_close(actual, expected, GOLDEN)
    assert {weight.dtype for weight in model.get_weights()} == {np.dtype("float32")}
    assert_close(model.get_weights(), plain.get_weights(), GOLDEN)
