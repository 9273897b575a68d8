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


class Line(NamedTuple):
    """A cost that grows with the bytes of a message."""

    fixed: float
    per_byte: float

    def at(self, size: float) -> float:
        return self.fixed + self.per_byte * size


def fit(points: Iterable[tuple[float, float]]) -> Line:
    """The line through (bytes, seconds) with the least relative errors; neither of its numbers is below 0.

    With absolute errors the largest network alone would decide what a message without bytes costs.
    """
    sizes, seconds = np.array(list(points), np.float64).T
    per_byte, fixed = np.polyfit(sizes, seconds, 1, w=1 / seconds)
    return Line(max(0.0, float(fixed)), max(0.0, float(per_byte)))


def demands(
    sizes: Sequence[int], processor: Line, *, counting: float = 0.0, bits_per_second: float = math.inf
) -> dict[str, float]:
    """How long one update keeps each kind of station of the servers busy.

    Args:
      sizes: bytes of trainable variables on each server; as many come in as gradients as go out as copies.
      processor: of a server, for one push and one pull, by bytes of variables on it.
      counting: what the first server does besides, for the agent steps that are claimed from it.
      bits_per_second: of each server's network, in each direction.
    """
    processors = [processor.at(size) + (0.0 if server else counting) for server, size in enumerate(sizes)]
    wire = 8 * max(sizes) / bits_per_second
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
