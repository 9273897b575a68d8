"""A closed queueing model of asynchronous training: what `async_model.py` computes, and nothing that it measures.

The customers are W workers. An update is a round: a worker *thinks* (acts, evaluates its target, adds up gradients),
then its messages *visit* what all workers share, processors and networks of the servers. A worker speaks with all
servers at once, so that its messages take as long as their part on the fullest one: of each kind of station only that
with the largest demand is in the model. Rates follow by mean value analysis (Reiser and Lavenberg 1980); the number of
workers at which a station is full is where its two asymptotes cross (Denning and Buzen 1978).

All times are in seconds, all sizes in bytes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np


class Load(NamedTuple):
    """What one server holds, and what of it travels: trainable variables, and their bytes."""

    variables: int
    size: int


class Cost(NamedTuple):
    """Of one server for an update: for its messages, for each variable, for each byte."""

    messages: float
    per_variable: float
    per_byte: float

    def at(self, load: Load) -> float:
        return self.messages + self.per_variable * load.variables + self.per_byte * load.size


def fit(points: Iterable[tuple[Load, float]]) -> Cost:
    """The cost with the least relative errors, of which no part is below 0.

    With absolute errors the largest network alone would decide what a message without bytes costs.
    """
    loads, seconds = zip(*points, strict=True)
    rows = np.array([(1, *load) for load in loads], np.float64) / np.array(seconds)[:, None]
    scale = rows.max(axis=0)  # bytes are millions
    kept, found = [0, 1, 2], np.zeros(3)
    while kept:
        solved, *_ = np.linalg.lstsq(rows[:, kept] / scale[kept], np.ones(len(rows)), rcond=None)
        if solved.min() >= 0:
            found[kept] = solved / scale[kept]
            break
        del kept[int(solved.argmin())]
    return Cost(*(float(part) for part in found))


def demands(
    loads: Sequence[Load], processor: Cost, *, counting: float = 0.0, bits_per_second: float = math.inf
) -> dict[str, float]:
    """How long one update keeps each kind of station of the servers busy.

    Args:
      loads: of each server; as many bytes come in as gradients as go out as copies.
      processor: of a server, for one push and one pull.
      counting: what the first server does besides, for the agent steps that are claimed from it.
      bits_per_second: of each server's network, in each direction.
    """
    processors = [processor.at(load) + (0.0 if server else counting) for server, load in enumerate(loads)]
    wire = 8 * max(load.size for load in loads) / bits_per_second
    return {"processor": max(processors), "network in": wire, "network out": wire}


def update_rate(workers: int, think: float, visits: Iterable[float]) -> float:
    """Updates per second of all workers together.

    Args:
      workers: how many.
      think: what a worker needs for a round beside its visits, waiting for nobody.
      visits: how long a round keeps each station busy.
    """
    visits = list(visits)
    rate, queues = 0.0, [0.0] * len(visits)
    for present in range(1, workers + 1):
        times = [visit * (1 + queue) for visit, queue in zip(visits, queues, strict=True)]
        rate = present / (think + sum(times))
        queues = [rate * time for time in times]
    return rate


def full_at(think: float, visits: Mapping[str, float]) -> tuple[float, str]:
    """Workers from which on the fullest station would never rest if nobody had to queue, and which station that is."""
    fullest = max(visits, key=lambda name: visits[name])
    return (think + sum(visits.values())) / visits[fullest], fullest
