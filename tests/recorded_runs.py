"""Small programs that train by workers, to be recorded and replayed.

Each takes a strategy and returns all that a run can be told by: weights, logs, results, reports.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import keras
import numpy as np

import paceline as tf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from paceline.cluster.base import Cluster

FEATURES = 4
CLASSES = 3
EXAMPLES = 48
BATCH = 4
_RANDOM = np.random.default_rng(5)
X = _RANDOM.normal(size=(EXAMPLES, FEATURES)).astype("float32")
Y = _RANDOM.integers(0, CLASSES, EXAMPLES).astype("int32")


def run(program: Callable[[Any], Any], cluster: Cluster, **options: Any) -> Any:
    """What a program returns on a cluster, from a fixed seed, and the report at its end."""
    keras.utils.set_random_seed(3)
    strategy = tf.distribute.ParameterServerStrategy(cluster=cluster, **options)
    result = program(strategy)
    return result, strategy.monitor.report().as_dict()


def is_equal(one: Any, other: Any) -> bool:
    """Whether two nests are the same, bit by bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    first, second = np.asarray(one), np.asarray(other)
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if first.dtype == object:
        return one == other
    return first.tobytes() == second.tobytes()


# fit ----------------------------------------------------------------------------------------------


def classifier(strategy: Any, *layers: Any) -> Any:
    """Batch normalization, dropout and Adam in one small model."""
    with strategy.scope():
        model = tf.keras.Sequential(
            layers
            or [
                tf.keras.layers.Dense(5, activation="relu"),
                tf.keras.layers.BatchNormalization(),
                tf.keras.layers.Dropout(0.4),
                tf.keras.layers.Dense(CLASSES),
            ]
        )
        model.compile(
            tf.keras.optimizers.Adam(0.05),
            tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


class Watch(keras.callbacks.Callback):
    """Notes per batch what the program can see while workers go on."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self._strategy = strategy
        self.seen: list[Any] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        model: Any = self.model
        report = self._strategy.monitor.report().as_dict()
        self.seen.append(({k: float(v) for k, v in logs.items()}, model.get_weights(), report))


def fit(strategy: Any) -> Any:
    """Two epochs, then evaluation, prediction, and an epoch more."""
    model = classifier(strategy)
    watch = Watch(strategy)
    given = {"batch_size": BATCH, "verbose": 0}
    first = model.fit(X, Y, epochs=1, validation_data=(X[:9], Y[:9]), callbacks=[watch], **given)
    measured = model.evaluate(X, Y, **given)
    predicted = model.predict(X[:5], verbose=0)
    second = model.fit(X, Y, epochs=1, steps_per_epoch=6, **given)
    weights = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    return weights, first.history, second.history, measured, predicted, watch.seen


def fit_eagerly(strategy: Any) -> Any:
    """Steps that are not compiled."""
    model = classifier(strategy, tf.keras.layers.Dense(CLASSES))
    model.run_eagerly = True
    history = model.fit(X[:24], Y[:24], batch_size=BATCH, epochs=1, verbose=0)
    return model.get_weights(), history.history


def train_on_batches(strategy: Any) -> Any:
    """Keras's single steps, each awaited."""
    model = classifier(strategy, tf.keras.layers.Dense(CLASSES))
    losses = [model.train_on_batch(X[k : k + 6], Y[k : k + 6]) for k in range(0, 24, 6)]
    return model.get_weights(), losses, model.test_on_batch(X[:5], Y[:5])


# Own loops ----------------------------------------------------------------------------------------


class Regression:
    """A linear model with momentum, its compiled step, and a coordinator."""

    def __init__(self, strategy: Any) -> None:
        self.strategy = strategy
        self.coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        with strategy.scope():
            self.weight = weight = tf.Variable(np.ones(FEATURES, "float32"), name="weight")
            self.optimizer = optimizer = tf.keras.optimizers.SGD(0.02, momentum=0.9)
            optimizer.build([weight])
            self.seen = tf.Variable(0.0, name="seen", trainable=False)
            self.own = own = tf.Variable(
                0.0, name="own", synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )  # fmt: skip

        def loss_of(x: Any, y: Any) -> Any:
            return jnp.mean((x @ weight - y) ** 2)

        def update(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(x, y)
            optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
            own.assign_add(loss)
            return loss

        self.update = update
        self.step = tf.function(update)

    @property
    def state(self) -> list[Any]:
        """All variables."""
        return [v.numpy() for v in (self.weight, self.seen, self.own, *self.optimizer.variables)]


def batches(count: int) -> Iterator[Any]:
    """Batches of the data, over and over."""
    for k in range(count):
        at = k * BATCH % EXAMPLES
        yield X[at : at + BATCH], Y[at : at + BATCH].astype("float32")


def schedule(strategy: Any) -> Any:
    """Steps, several of them in one function, and results as arguments."""
    training = Regression(strategy)
    coordinator = training.coordinator
    values: list[Any] = []

    def two_steps(x: Any, y: Any, scale: Any) -> Any:
        return training.step(x, y) + training.step(x * scale, y)

    for k, (x, y) in enumerate(batches(16)):
        if k % 4 == 3:
            values.append(coordinator.schedule(two_steps, args=(x, y, values[-1])))
        else:
            values.append(coordinator.schedule(training.step, args=(x, y)))
        if k % 5 == 4:
            training.seen.assign_add(training.weight.numpy().sum())
    seen = [training.weight.numpy() for _ in range(2)]
    coordinator.join()
    return coordinator.fetch(values), seen, training.state


def poll(strategy: Any) -> Any:
    """The program asks whether all is done, and counts how often it was not."""
    training = Regression(strategy)
    values, asked = [], []
    for x, y in batches(6):
        values.append(training.coordinator.schedule(training.step, args=(x, y)))
        asked.append([value.has_ended for value in values])
    count = 0
    while not training.coordinator.done():
        count += 1
    return training.coordinator.fetch(values), training.state, asked, count


def per_worker_data(strategy: Any) -> Any:
    """Each worker reads its own shuffled part; another step has its shape of batches."""
    training = Regression(strategy)

    def dataset(context: Any) -> Any:
        own = slice(context.input_pipeline_id, None, context.num_input_pipelines)
        arrays = (X[own], Y[own].astype("float32"))
        return tf.data.ArrayBatches(*arrays, batch_size=2, shuffle=True, repeat=None)

    iterator = iter(training.coordinator.create_per_worker_dataset(dataset))

    @tf.function
    def step(iterator: Any) -> Any:
        return training.update(*next(iterator))

    def plain(iterator: Any) -> Any:
        x, _ = next(iterator)
        return x.sum()

    steps = [step, step, plain]
    values = [training.coordinator.schedule(steps[k % 3], args=(iterator,)) for k in range(15)]
    return training.coordinator.fetch(values), training.state


def eagerly(strategy: Any) -> Any:
    """Functions that are not compiled: reads and writes of variables, each on its own."""
    training = Regression(strategy)
    with strategy.scope():
        copies = tf.Variable(0.0, per_worker_variable=True)
        table = tf.Variable(np.zeros((4, 2), "float32"), trainable=False)

    def step(x: Any, y: Any) -> Any:
        before = training.seen.numpy()
        loss = training.update(x, y)
        training.seen.assign(before + 1)
        training.seen.assign_add(training.weight.numpy()[0])
        copies.assign_add(loss)
        table.scatter_add(tf.IndexedSlices(jnp.ones((1, 2)), jnp.asarray([1])))
        return loss, training.seen.value

    values = [training.coordinator.schedule(step, args=batch) for batch in batches(12)]
    fetched = training.coordinator.fetch(values)
    return fetched, training.state, copies.read_all(), table.numpy()


def several_functions(strategy: Any) -> Any:
    """Functions that are traced by whoever comes first, and make variables while they are."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    made: list[Any] = []

    def maker(number: int) -> Any:
        layer = tf.keras.layers.Dense(2, name=f"dense_{number}")
        made.append(layer)

        @tf.function
        def step(x: Any) -> Any:
            return layer(x).sum()

        return step

    with strategy.scope():
        steps = [maker(number) for number in range(4)]
    values = [coordinator.schedule(steps[k % 4], args=(X[k : k + 2],)) for k in range(8)]
    fetched = coordinator.fetch(values)
    coordinator.join()
    return fetched, [layer.get_weights() for layer in made]


def embed(strategy: Any) -> Any:
    """Gradients for a few rows of a table."""
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        layer = tf.keras.layers.Embedding(20, 3)
        layer.build(None)
        optimizer = tf.keras.optimizers.Adagrad(0.1)
        optimizer.build(layer.trainable_variables)

    @tf.function
    def step(ids: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = jnp.mean(layer(ids) ** 2)
        gradients = tape.gradient(loss, layer.trainable_variables)
        optimizer.apply_gradients(zip(gradients, layer.trainable_variables, strict=True))
        return loss

    ids = np.arange(40, dtype="int32").reshape(10, 4) * 7 % 20
    values = [coordinator.schedule(step, args=(row,)) for row in ids]
    fetched = coordinator.fetch(values)
    return fetched, [v.numpy() for v in (*layer.variables, *optimizer.variables)]


def change_pace(strategy: Any) -> Any:
    """The pace changes while workers wait for the old one."""
    training = Regression(strategy)
    values = []
    paces = [tf.pace.Asynchronous(), tf.pace.Softsync(2), tf.pace.BoundedStaleness(1)]
    for pace in paces:
        values += [training.coordinator.schedule(training.step, args=b) for b in batches(6)]
        strategy.pace = pace
    training.coordinator.join()
    return training.coordinator.fetch(values), training.state


def lose_workers(strategy: Any) -> Any:
    """Workers are lost by name, and by the code that they run."""
    training = Regression(strategy)
    lost: list[int] = []

    def step(x: Any, y: Any, number: int) -> Any:
        if number in (3, 8) and number not in lost:
            lost.append(number)
            raise tf.errors.WorkerLost("its machine is going down")
        return training.step(x, y)

    values = []
    for number, (x, y) in enumerate(batches(12)):
        values.append(training.coordinator.schedule(step, args=(x, y, number)))
        if number % 4 == 2:
            strategy.driver.lose(number % strategy.cluster.workers)
    training.coordinator.join()
    return training.coordinator.fetch(values), training.state


def fail(strategy: Any) -> Any:
    """A step fails: the others are called off, and training goes on after that."""
    training = Regression(strategy)

    def broken() -> None:
        raise ArithmeticError("on purpose")

    values, errors = [], []
    for round_ in range(3):
        try:
            for k, batch in enumerate(batches(6)):
                if k == 4:
                    values.append(training.coordinator.schedule(broken))
                values.append(training.coordinator.schedule(training.step, args=batch))
            training.coordinator.join()
        except ArithmeticError as error:
            errors.append(f"{round_}: {error}")
    ends: list[Any] = []
    for value in values:
        try:
            ends.append(value.fetch())
        except Exception as error:
            ends.append(str(error))
    return ends, errors, training.state


def let_go(strategy: Any) -> Any:
    """The workers are let go between two loops, and others come."""
    states = []
    for _ in range(2):
        training = Regression(strategy)
        for batch in batches(4):
            training.coordinator.schedule(training.step, args=batch)
        training.coordinator.join()
        states.append(training.state)
        strategy.driver.release()
    return states


def change_pace_on_a_worker(strategy: Any) -> Any:
    """A worker's code does what usually the program does."""
    training = Regression(strategy)

    def step(x: Any, y: Any, number: int) -> Any:
        if number == 2:
            strategy.pace = tf.pace.Asynchronous(4)
        return training.step(x, y)

    values = [
        training.coordinator.schedule(step, args=(x, y, number))
        for number, (x, y) in enumerate(batches(8))
    ]
    training.coordinator.join()
    return training.coordinator.fetch(values), training.state
