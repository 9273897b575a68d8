"""What people choose by name: one table for each kind of thing, and functions of their own as `module:function`."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from twin_graph.config import nearest
from twin_graph.errors import UsageError

T = TypeVar("T")


def find(setting: str, name: str, table: Mapping[str, T]) -> T | Any:
    """The entry of this name, or the function that `module:function` names.

    Args:
      setting: which names it, for messages.
      name: what it says.
      table: what there is.

    Raises:
      UsageError: there is neither.
    """
    if name in table:
        return table[name]
    module, separator, function = name.partition(":")
    if not separator:
        raise UsageError(
            f"{setting}={name}: unknown {setting.rpartition('.')[2]} {name!r}{nearest(name, table)}; there are "
            f"{', '.join(table)}, and your own as module:function"
        )
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        where = f"; modules are looked for in {Path.cwd()} and among the installed packages"
        hint = where if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{setting}={name}: {error}{hint}") from None
    if not callable(found):
        raise UsageError(f"{setting}={name} is no function")
    return found
