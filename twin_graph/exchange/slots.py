"""Which variables of a checkpoint are what an optimizer keeps, and which are averages, by their names and shapes."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

#: Names that optimizers have by default, in small letters and without underscores.
_OPTIMIZERS = {
    *("adadelta", "adafactor", "adagrad", "adagradda", "adam", "adamax", "adamw", "ftrl", "lamb", "lion"),
    *("lossscaleoptimizer", "momentum", "nadam", "rmsprop", "sgd"),
}
_NUMBER = re.compile(r"_\d+$")  # by which TensorFlow makes a name its own
_AVERAGE = "ExponentialMovingAverage"


def averages(outside: Mapping[str, np.ndarray]) -> set[str]:
    """Moving averages of variables that the checkpoint holds, too; see `tf.train.ExponentialMovingAverage`."""
    return {name for name in outside if _last(name) == _AVERAGE and _is_slot(name, outside)}


def moments(outside: Mapping[str, np.ndarray]) -> set[str]:
    """What optimizers keep of variables, such as `learn/fc1/weights/Adam_1`. It has their shapes, and is no weights.

    Names come from a Saver (`SCOPE/VARIABLE/OPTIMIZER`; of Keras `Adam/m/VARIABLE` or `training/Adam/Variable_3`) or
    from `tf.train.Checkpoint` (`VARIABLE/.OPTIMIZER_SLOT/...`; of Keras `OPTIMIZER/_variables/3/...`).
    """
    found = {name for name in outside if _is_slot(name, outside)} - averages(outside)
    found |= {name for name in outside if ".OPTIMIZER_SLOT/" in name or _is_of_keras(name, outside)}
    # A network may be in a scope of such a name, but moments come with weights of their shapes.
    scoped = {name for name in outside if any(map(_names_an_optimizer, name.split("/")))} - found
    shapes = {outside[name].shape for name in outside if name not in found | scoped}
    return found | {name for name in scoped if outside[name].shape in shapes}


def _is_slot(name: str, outside: Mapping[str, np.ndarray]) -> bool:
    """Whether it is `VARIABLE/SLOT`, in any scope, of a variable of its shape."""
    parts = name.split("/")[:-1]
    variables = ("/".join(parts[i:]) for i in range(len(parts)))
    return any(one in outside and outside[one].shape == outside[name].shape for one in variables)


def _is_of_keras(name: str, outside: Mapping[str, np.ndarray]) -> bool:
    optimizer, is_listed, _ = name.partition("/_variables/")
    return bool(is_listed) and any(other.startswith(f"{optimizer}/_iterations/") for other in outside)


def _names_an_optimizer(part: str) -> bool:
    return _NUMBER.sub("", part).replace("_", "").lower() in _OPTIMIZERS


def _last(name: str) -> str:
    return _NUMBER.sub("", name.rpartition("/")[2])
