"""Examines an experiment's runs before they are trained: do they fit, what will they need, how fast is one.

In a process of its own, `twin_graph.training.trial`, since that needs TensorFlow.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from twin_graph.base import doing, ended
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
    doing.now("loading TensorFlow to check the runs")
    said = ""
    with (
        tempfile.TemporaryFile("w+") as given,
        tempfile.TemporaryFile("w+") as printed,
    ):
        json.dump({name: one.model_dump() for name, one in settings.items()}, given)
        given.seek(0)
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "twin_graph.training.trial"],
            stdin=given,
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                for line in process.stderr or ():
                    if line.startswith(doing.TOLD):
                        doing.now(line.removeprefix(doing.TOLD).strip())
                    else:
                        said = line.strip() or said
            except BaseException:
                process.kill()
                raise
        if process.returncode < 0:
            raise TwinGraphError(
                f"the check of the runs was {ended.killed(process.returncode)}, as happens where memory runs out: end "
                "other programs, or set replay.capacity_steps or env.count lower, and try again"
            )
        if process.returncode:
            kind = UsageError if process.returncode == UsageError.exit_code else TwinGraphError
            raise kind(said or f"exit code {process.returncode}")
        printed.seek(0)
        return Trial(**json.loads(printed.read().splitlines()[-1]))
