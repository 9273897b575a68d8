"""A Keras model of the user's as a network: a pure function, applied to variables that each twin makes itself.

Keras makes variables whose names count the models of a process, whose first values follow from Python's `random`, and
which a `tf.Graph` could not share with its frozen copy. So the model is built once in a graph of its own, that is
thrown away, and serves as a description: of shapes, of first values, and of what to compute. In a twin its layers get
the twin's variables, and their random numbers a seed that is fed (`keras.Model.stateless_call`).
"""

from __future__ import annotations

import contextlib
import inspect
import math
import random
import re
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from twin_graph.config import lookup
from twin_graph.errors import UsageError
from twin_graph.twin.layers import looks_channels_last, scaled
from twin_graph.twin.tf import tf

if TYPE_CHECKING:
    from twin_graph.envs import EnvSpec
    from twin_graph.twin.model import ModelSpec
    from twin_graph.twin.networks import Build

Tensor = Any
Shape = tuple[int, ...]
#: What a function that makes a model may take, by these names.
TAKES = ("observation_shape", "n_actions")


class Made(NamedTuple):
    """A model that was built in a graph of its own.

    Attributes:
      model: to be applied by `stateless_call` only.
      names: of its variables, in a twin: the position and the name of the layer, and what it calls the variable.
      values: their first values.
      seeds: of its seed generators, by which they differ.
      takes_training: whether its `call` does.
    """

    model: Any
    names: tuple[str, ...]
    values: tuple[np.ndarray, ...]
    seeds: tuple[int, ...]
    takes_training: bool


def model_of(spec: ModelSpec) -> Any:
    """The Keras model of a network, outside of graphs, for its own `save` and `load_weights`.

    Raises:
      UsageError: the network is not made by Keras.
    """
    create = lookup.find("network", spec.network, {}) if ":" in spec.network else None
    if create is None or not is_creator(spec.network, create):
        raise UsageError(f"network={spec.network} is no Keras model, and files of Keras are for those alone")
    model = _created(create, input_shape(spec.env), spec.env.n_actions)
    model(_probe(spec.env))
    return model


def weights_of(model: Any) -> dict[str, np.ndarray]:
    """The weights of what `model_of` returned, by their names in a twin."""
    variables = model.trainable_variables
    return {name: variable.numpy() for name, variable in zip(_names(variables), variables, strict=True)}


def set_weights(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Sets those of what `model_of` returned."""
    variables = model.trainable_variables
    for name, variable in zip(_names(variables), variables, strict=True):
        variable.assign(weights[name])


def input_shape(env: EnvSpec) -> Shape | dict[str, Shape]:
    """What a model takes of an environment: images with their channels last; of a Dict the shape of each part."""
    shape = env.network_shape
    return dict(env.parts) or ((*shape[1:], shape[0]) if _is_channels_first(shape) else shape)


def _probe(env: EnvSpec) -> Any:
    """Two random inputs, as NumPy arrays."""
    random, shapes = np.random.default_rng(0), input_shape(env)

    def of(shape: Shape) -> np.ndarray:
        return random.normal(size=(2, *shape)).astype(np.float32)

    return {name: of(shape) for name, shape in shapes.items()} if isinstance(shapes, dict) else of(shapes)


def _inputs(observation: Tensor, env: EnvSpec) -> Any:
    """Observations as `input_shape` says, float32; bytes are scaled to 0..1."""
    x = scaled(observation, tf.float32)
    if not env.parts:
        return tf.transpose(x, [0, 2, 3, 1]) if _is_channels_first(env.network_shape) else x
    sizes = [math.prod(shape) for _, shape in env.parts]
    flat = tf.split(x, sizes, axis=1)
    return {name: tf.reshape(part, [-1, *shape]) for (name, shape), part in zip(env.parts, flat, strict=True)}


def _created(create: Callable[..., Any], shape: Any, n_actions: int) -> Any:
    """What the user's function returns, given what it takes."""
    given = dict(zip(TAKES, (shape, n_actions), strict=True))
    parameters = inspect.signature(create).parameters
    return create(**{key: value for key, value in given.items() if key in parameters})


class KerasNetwork:
    """A network that a function of the user's describes as a Keras model; see `twin_graph.twin.networks`.

    Args:
      name: of the setting `network`.
      create: returns the model.
      env: what it observes.
    """

    def __init__(self, name: str, create: Callable[..., Any], env: EnvSpec) -> None:
        self._name, self._create, self._env = name, create, env
        self._made: Made | None = None

    def __call__(self, observation: Tensor, n_actions: int, build: Build) -> Tensor:  # noqa: ARG002 - as networks
        """What the model returns.

        Raises:
          UsageError: it is no model, or one that snapshots would not hold.
        """
        if self._made is None:
            self._made = _made(self._name, self._create, self._env, tf.get_default_graph().seed or 0)
        made = self._made
        variables = [
            tf.convert_to_tensor(
                tf.get_variable(name, value.shape, value.dtype, tf.constant_initializer(value), use_resource=True)
            )
            for name, value in zip(made.names, made.values, strict=True)
        ]
        outputs = _applied(made, variables, _inputs(observation, self._env), build.dropout_seed)
        if isinstance(outputs, (list, tuple, dict)):
            raise UsageError(f"network={self._name} has {len(outputs)} outputs; it needs one, of Q values")
        return tf.cast(outputs, tf.float32) if outputs.dtype.is_floating else outputs


def is_creator(name: str, function: Callable[..., Any]) -> bool:
    """Whether a function of the user's makes a Keras model, and is not a network itself: by what it takes.

    Raises:
      UsageError: it takes neither what the one does nor the other.
    """
    if inspect.isclass(function):
        return True
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    if set(needed) <= set(TAKES):
        return True
    if len(needed) == 3 or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return False
    raise UsageError(
        f"network={name} takes ({', '.join(needed)}): what makes a Keras model takes {' and '.join(TAKES)}, one of "
        "them or nothing; what is a network takes (observation, n_actions, build)"
    )


def _made(name: str, create: Callable[..., Any], env: EnvSpec, seed: int) -> Made:
    """The model, its first values those of the seed."""
    import keras

    if keras.backend.backend() != "tensorflow":
        raise UsageError(f"network={name}: Keras uses {keras.backend.backend()}; set KERAS_BACKEND=tensorflow")
    with tf.Graph().as_default(), _seeded(seed):
        model = _created(create, input_shape(env), env.n_actions)
        if not isinstance(model, keras.Model):
            raise UsageError(
                f"network={name} returned {type(model).__module__}.{type(model).__name__}, not a model of Keras 3; "
                "a network that makes its own variables takes (observation, n_actions, build)"
            )
        if wrong := next((layer for layer in _every_layer(model) if getattr(layer, "stateful", False)), None):
            raise UsageError(
                f"network={name}: {wrong.name} is stateful, so its values would depend on those before; leave that out"
            )
        probe = tf.nest.map_structure(tf.constant, _probe(env))
        first = model(probe)
        trainable, others = list(model.trainable_variables), _seeds_of(name, model)
        again = model(probe)
        if len(model.variables) > len(trainable) + len(others):
            raise UsageError(
                f"network={name} makes variables each time it is called; make layers in __init__, or before the model"
            )
        if not trainable:
            raise UsageError(f"network={name} has no weights to learn")
        alone = tf.ConfigProto(use_per_session_threads=True, device_count={"GPU": 0})
        with tf.Session(config=alone) as session:
            session.run(tf.global_variables_initializer())
            values = session.run([variable.value for variable in trainable])
            first, again = session.run([tf.nest.flatten(first), tf.nest.flatten(again)])
        if not all(np.array_equal(a, b) for a, b in zip(first, again, strict=True)):
            raise UsageError(
                f"network={name} computes something else each time it is called, so that twins would differ: leave "
                "Python's state and random numbers out of its layers (keras.layers.Dropout has seeds that are fed)"
            )
    if getattr(model, "compiled", False):
        warnings.warn(
            f"network={name} is compiled: its optimizer and loss are ignored; see train.optimizer and loss",
            stacklevel=2,
        )
    takes_training = "training" in inspect.signature(model.call).parameters
    return Made(model, tuple(_names(trainable)), tuple(values), others, takes_training)


def _seeds_of(name: str, model: Any) -> tuple[int, ...]:
    """For each of the model's seed generators a number of its own. Raises `UsageError` for other untrained weights."""
    for variable in model.non_trainable_variables:
        if not variable.path.endswith("seed_generator_state"):
            layer = variable.path.split("/")[-2] if "/" in variable.path else variable.path
            raise UsageError(
                f"network={name}: {layer} has {variable.name}, which is not trained, and no snapshot would hold it; "
                "use LayerNormalization in place of BatchNormalization, and train every layer"
            )
    return tuple(zlib.crc32(str(i).encode()) >> 2 for i in range(len(model.non_trainable_variables)))


def _every_layer(model: Any) -> Iterator[Any]:
    for layer in getattr(model, "layers", ()):
        yield layer
        yield from _every_layer(layer)


def _applied(made: Made, variables: Sequence[Tensor], x: Any, dropout_seed: Tensor) -> Any:
    """What the model computes of `x`; its random layers do nothing if there is no dropout."""

    def call(*, training: bool) -> Any:
        state = [
            tf.cast(tf.stack([dropout_seed[0] + number, dropout_seed[1]]), variable.dtype)
            for number, variable in zip(made.seeds, made.model.non_trainable_variables, strict=True)
        ]
        told = {"training": training} if made.takes_training else {}
        return made.model.stateless_call(variables, state, x, **told)[0]

    known = tf.get_static_value(dropout_seed)
    if not made.seeds or (known is not None and known[0] < 0):
        return call(training=False)
    if tf.get_default_graph().building_function:  # of a block, where each update has its seed
        return call(training=True)
    return tf.cond(dropout_seed[0] < 0, lambda: call(training=False), lambda: call(training=True))


def _names(variables: Sequence[Any]) -> Iterator[str]:
    """`0-conv2d/kernel`: positions count layers with weights, and names leave out Keras' own counters."""
    position, before, there = -1, None, set[str]()
    for variable in variables:
        layer, _, own = variable.path.rpartition("/")
        if layer != before or own in there:  # layers of equal names may follow each other
            position, before, there = position + 1, layer, set()
        there.add(own)
        called = re.sub(r"_\d+$", "", layer.rpartition("/")[2]) or "model"
        yield f"{position}-{re.sub(r'[^A-Za-z0-9_.-]', '_', called)}/{own}"


def _is_channels_first(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and not looks_channels_last(shape)


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """What Python's and NumPy's global generators return, as to Keras' initializers, follows from a seed meanwhile."""
    python, numpy = random.getstate(), np.random.get_state()
    random.seed(seed)
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
