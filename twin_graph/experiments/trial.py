"""Examines an experiment's runs before they are trained: do they fit, what will they need, how fast is one.

In a process of its own, `twin_graph.training.trial`, since that needs TensorFlow.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.errors import TwinGraphError, UsageError

if TYPE_CHECKING:
    from twin_graph import config


class Trial(NamedTuple):
    """What was found.

    Attributes:
      rate: agent steps per second of the first of the settings, measured, without evaluations.
      startup: seconds until training starts, for TensorFlow and the graphs.
      disk: bytes of each, in all.
      memory: bytes of the one that needs most.
    """

    rate: float
    startup: float
    disk: list[int]
    memory: int


def run(settings: Mapping[str, config.Settings]) -> Trial:
    """Examines settings, each with a name for messages, in a process of its own; takes some seconds.

    Raises:
      UsageError: one cannot be trained; the message says which and why.
      TwinGraphError: the process failed.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "twin_graph.training.trial"],
        input=json.dumps({name: one.model_dump() for name, one in settings.items()}),
        capture_output=True,
        text=True,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        kind = UsageError if done.returncode == UsageError.exit_code else TwinGraphError
        raise kind(lines[-1])
    return Trial(**json.loads(done.stdout.splitlines()[-1]))
