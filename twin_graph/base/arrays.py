"""Types of numbers that arrays may have."""

from typing import Any

import numpy as np


def takes(dtype: np.dtype[Any], given: np.dtype[Any]) -> bool:
    """Whether numbers of one type can be converted to another. uint8 means images and takes nothing else: booleans
    would be nearly black, and larger numbers would keep only their last eight bits."""
    return given == dtype if dtype == np.uint8 else np.can_cast(given, dtype, "same_kind")
