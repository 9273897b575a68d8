"""Names that a package offers and imports only when they are first used."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def names_of(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: where importing TensorFlow, which takes seconds, would be too early.

    Args:
      package: its `__name__`.
      homes: the names that it offers, and the modules that have them.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(homes[name]), name)

    return get
