"""How conditions compare, by rliable (Agarwal et al. 2021, "Deep RL at the Edge of the Statistical Precipice").

Every interval is a 95% percentile interval of a stratified bootstrap over runs: seeds are redrawn within each
environment.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rliable import library, metrics
from scipy.stats import permutation_test

from twin_graph.experiments.plan import KNOWN_SCORES, THRESHOLD, Plan

if TYPE_CHECKING:
    from twin_graph.experiments.results import Curve, Result

#: Resamples of each interval.
RESAMPLES = 2_000
#: Permutations of each test; with up to 13 pairs all that there are.
PERMUTATIONS = 9_999
#: A difference is reported as one if its corrected p value is below this.
LEVEL = 0.05
#: Scores at which performance profiles are looked at, normalised.
PROFILE_AT = np.linspace(0, 1, 51)
#: With fewer runs an interval is hardly one.
FEW_SEEDS, GOOD_SEEDS = 5, 10


class Estimate(NamedTuple):
    """A number and its 95% interval, which is NaN where there is but one run."""

    value: float
    low: float
    high: float

    def words(self, number: str) -> str:
        """For people, each number in this format: `12 (8 to 15)` by `.0f`; a dash for NaN, and no interval of NaN."""
        number = number.replace(".", "z.")  # never -0
        if math.isnan(self.low):
            return "-" if math.isnan(self.value) else f"{self.value:{number}}"
        return f"{self.value:{number}} ({self.low:{number}} to {self.high:{number}})"


UNKNOWN = Estimate(math.nan, math.nan, math.nan)


class Band(NamedTuple):
    """A line and its 95% band, which is NaN where there is but one run."""

    at: Sequence[float]
    value: np.ndarray
    low: np.ndarray
    high: np.ndarray


class Norm(NamedTuple):
    """How the scores of one environment are normalised, and where that comes from.

    Attributes:
      low, high: become 0 and 1.
      threshold: a score, not normalised.
      source: in words.
    """

    low: float
    high: float
    threshold: float
    source: str

    def normalised(self, score: float) -> float:
        return (score - self.low) / (self.high - self.low)


class Condition(NamedTuple):
    """The results of one condition.

    Attributes:
      name: the condition's.
      runs: all that are planned.
      rows: those that are shown as lines, by seed and environment: those that are done; before there are any, those
        that have a score.
      scores: of each run that is done, normalised, `[seeds, environments]`; see `Result.final`.
      iqm, mean: of the scores, normalised.
      optimality_gap: how far scores are from 1, those above taken as 1.
      improvement: probability that a run of it scores higher than one of the first condition; None for that itself.
      difference: mean of its scores less those of the first condition's runs that began alike: with the same seed, from
        the same point. Normalised if there are several environments. None for the first condition itself.
      pairs: how many there are of these.
      p: of that difference, two-sided, by permutations within pairs, corrected for the number of conditions by Holm's
        method; NaN if there is no difference, and of the control for chaos, which is no hypothesis.
      profile: share of runs above each of `PROFILE_AT`.
      curve: IQM of normalised scores by agent steps.
      steps_to, seconds_to: agent steps and seconds of each run until the threshold; infinite if it was not reached.
    """

    name: str
    runs: list[Result]
    rows: list[list[Result]]
    scores: np.ndarray
    iqm: Estimate
    mean: Estimate
    optimality_gap: Estimate
    improvement: Estimate | None
    difference: Estimate | None
    pairs: int
    p: float
    profile: Band | None
    curve: Band | None
    steps_to: list[float]
    seconds_to: list[float]


def norms(plan: Plan, results: Sequence[Result]) -> dict[str, Norm]:
    """By environment: from the file, else from a table of known ones, else the lowest and highest score seen."""
    found = {}
    for task in plan.tasks:
        said = plan.scores.get(task)
        if said and said.low is not None and said.high is not None:
            low, high, source = said.low, said.high, "given in the file"
        elif task in KNOWN_SCORES and not any(run.settings.env.kwargs for run in plan.runs if run.task == task):
            (low, high), source = KNOWN_SCORES[task], "the range of what the game can score"
        else:
            seen = [score for r in results if r.planned.task == task for score in r.scores.values()] or [0.0]
            low, high, source = min(seen), max(seen), "the lowest and highest score seen in these runs"
            high = high if high > low else low + 1
        threshold = said.threshold if said and said.threshold is not None else low + THRESHOLD * (high - low)
        found[task] = Norm(low, high, threshold, source)
    return found


def analyse(
    plan: Plan,
    results: Sequence[Result],
    norm: Mapping[str, Norm],
    tell: Callable[[str, int, int], None],
) -> list[Condition]:
    """All conditions of an experiment.

    Args:
      plan, results, norm: of it.
      tell: called with what is being done, for progress: in words, how many of how many are done.
    """
    found: list[Condition] = []
    for i, name in enumerate(plan.conditions):
        tell(f"statistics of {name}", i, len(plan.conditions))
        runs = [result for result in results if result.planned.condition == name]
        found.append(_condition(name, runs, plan.tasks, norm, found[0] if found else None))
    corrected = holm([condition.p for condition in found], of=len(compared(found)))
    return [condition._replace(p=p) for condition, p in zip(found, corrected, strict=True)]


def compared(conditions: Sequence[Condition]) -> list[Condition]:
    """Those that are compared with the first one, whether runs of them are done or not."""
    return [condition for condition in conditions[1:] if not _is_nudged(condition.runs)]


def _is_nudged(runs: Sequence[Result]) -> bool:
    """Whether these are the runs of the control for chaos, which is no hypothesis."""
    return any(run.planned.nudge for run in runs)


def _condition(
    name: str, runs: list[Result], tasks: Sequence[str], norm: Mapping[str, Norm], first: Condition | None
) -> Condition:
    done = _whole_seeds([run for run in runs if run.state == "done" and run.scores], tasks)
    scores = np.array([[norm[run.planned.task].normalised(run.final) for run in row] for row in done])
    scores = scores.reshape(len(done), len(tasks))
    reached = [(run, run.reached(norm[run.planned.task].threshold)) for row in done for run in row]
    rows = done or _whole_seeds([run for run in runs if run.scores], tasks)
    iqm, average, gap = estimates(scores, _aggregates, 3)
    of_first = first.rows if first and len(first.scores) else []  # else its rows are not done
    pairs = differences(done, of_first, norm) if first else np.zeros((0, len(tasks)))
    return Condition(
        name=name,
        runs=runs,
        rows=rows,
        scores=scores,
        iqm=iqm,
        mean=average,
        optimality_gap=gap,
        improvement=improvement(scores, first.scores) if first else None,
        difference=mean(pairs) if first else None,
        pairs=len(pairs),
        p=math.nan if _is_nudged(runs) else p_of(pairs),
        profile=profile(scores),
        curve=learning(rows, norm),
        steps_to=[math.inf if steps is None else steps for _, steps in reached],
        seconds_to=[math.inf if steps is None else run.seconds_at(steps) for run, steps in reached],
    )


def _aggregates(scores: np.ndarray) -> np.ndarray:
    return np.array([iqm(scores), metrics.aggregate_mean(scores), metrics.aggregate_optimality_gap(scores)])


def _whole_seeds(runs: Sequence[Result], tasks: Sequence[str]) -> list[list[Result]]:
    """Runs by seed, one for each environment; seeds that lack one are left out, since rliable wants a matrix."""
    by_seed: dict[tuple[int, int], dict[str, Result]] = {}
    for run in runs:
        by_seed.setdefault(run.planned.pair, {})[run.planned.task] = run
    return [[row[task] for task in tasks] for row in by_seed.values() if len(row) == len(tasks)]


def normalised(run: Result, norm: Mapping[str, Norm]) -> Curve:
    """A run's normalised scores, by when they were played."""
    return {step: norm[run.planned.task].normalised(score) for step, score in run.scores.items()}


def learning(rows: Sequence[Sequence[Result]], norm: Mapping[str, Norm]) -> Band | None:
    """The learning curve of these runs: IQM of normalised scores, by the agent steps of the snapshots."""
    curves = [[normalised(run, norm) for run in row] for row in rows]
    return placed(curve(curves, iqm_by_step), itertools.chain(*rows))


def estimates(scores: np.ndarray, function: Callable[[np.ndarray], np.ndarray], count: int) -> list[Estimate]:
    """`count` numbers that `function` computes from scores `[seeds, environments]`, each with its interval."""
    if not len(scores):
        return [UNKNOWN] * count
    with _seeded():
        values, intervals = library.get_interval_estimates({"": scores}, function, reps=RESAMPLES)
    low, high = _of_several(scores, intervals[""])
    return [Estimate(*(float(number) for number in row)) for row in zip(values[""], low, high, strict=True)]


def _of_several(scores: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """The limits of an interval, or NaN of a single seed, whose resamples are all alike."""
    return limits if len(scores) > 1 else np.full_like(limits, np.nan)


def mean(numbers: np.ndarray) -> Estimate:
    """The mean of numbers `[seeds, environments]` and its interval."""
    return estimates(numbers, lambda drawn: np.array([drawn.mean()]), 1)[0]


def improvement(ours: np.ndarray, theirs: np.ndarray) -> Estimate:
    """The probability that a run of ours scores higher than one of theirs, ties counting half."""
    if not len(ours) or not len(theirs):
        return UNKNOWN
    with _seeded():
        values, intervals = library.get_interval_estimates(
            {"": (ours, theirs)}, metrics.probability_of_improvement, reps=RESAMPLES
        )
    limits = _of_several(min(ours, theirs, key=len), intervals[""])
    return Estimate(float(values[""]), *(float(limit) for limit in limits.reshape(-1)))


def differences(
    ours: Sequence[Sequence[Result]],
    theirs: Sequence[Sequence[Result]],
    norm: Mapping[str, Norm],
    outcome: Callable[[Result], float] = attrgetter("final"),
) -> np.ndarray:
    """Scores less those of the runs that began alike, `[pairs, environments]`; normalised if there are several.

    With another `outcome` than the score, that one's.
    """
    others = {row[0].planned.pair: row for row in theirs}
    pairs = [(row, others[row[0].planned.pair]) for row in ours if row[0].planned.pair in others]
    scales = [norm[run.planned.task].high - norm[run.planned.task].low for run in ours[0]] if ours else []
    found = np.array([[outcome(a) - outcome(b) for a, b in zip(row, other, strict=True)] for row, other in pairs])
    return found.reshape(len(pairs), len(scales)) / (scales if len(scales) > 1 else 1)


def p_of(pairs: np.ndarray) -> float:
    """Two-sided p value of paired differences `[pairs, environments]`, by a permutation test: which run of a pair is
    which is drawn by lot. Exact for up to 13 pairs; n pairs can give no less than 2 / 2**n. NaN of fewer than two."""
    means = pairs.mean(axis=1) if pairs.size else np.zeros(0)
    return float(p_of_each(means)) if len(means) > 1 else math.nan


def p_of_each(differences: np.ndarray) -> np.ndarray:
    """`p_of` of several studies at once: of paired differences `[..., pairs]`, `[...]`."""
    test = permutation_test(
        (differences, np.zeros_like(differences)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=PERMUTATIONS,
        axis=-1,
        rng=np.random.default_rng(0),
    )
    return np.asarray(test.pvalue)


def holm(p_values: Sequence[float], *, of: int | None = None) -> list[float]:
    """p values corrected for the number of comparisons (Holm 1979): of those there are, or of `of` that were planned.

    NaN stays.
    """
    corrected, largest = list(p_values), 0.0
    known = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    count = len(known) if of is None else of
    for rank, (p, i) in enumerate(known):
        largest = max(largest, min(1.0, (count - rank) * p))
        corrected[i] = largest
    return corrected


def profile(scores: np.ndarray) -> Band | None:
    """The share of runs above each of `PROFILE_AT`; None without scores."""
    if not len(scores):
        return None
    with _seeded():
        values, intervals = library.create_performance_profile({"": scores}, PROFILE_AT, reps=RESAMPLES)
    return Band([], values[""], *_of_several(scores, intervals[""]))


def iqm(numbers: np.ndarray) -> float:
    """The mean without the lowest and the highest quarter: rliable's `aggregate_iqm`, in a tenth of its time, since
    bootstraps ask for it thousands of times."""
    return float(iqm_by_step(numbers[..., None])[0])


def iqm_by_step(numbers: np.ndarray) -> np.ndarray:
    """IQM of `[seeds, environments, steps]` at each step."""
    ordered = np.sort(numbers.reshape(-1, numbers.shape[-1]), axis=0)
    cut = len(ordered) // 4
    means: np.ndarray = ordered[cut : len(ordered) - cut].mean(axis=0)
    return means


def mean_by_step(numbers: np.ndarray) -> np.ndarray:
    """Mean of `[seeds, environments, steps]` at each step."""
    means: np.ndarray = numbers.mean(axis=(0, 1))
    return means


def curve(rows: Sequence[Sequence[Curve]], function: Callable[[np.ndarray], np.ndarray]) -> Band | None:
    """A line through the agent steps that all these runs have, by seed and environment; None where there are none."""
    curves = [one for row in rows for one in row]
    at = sorted(set.intersection(*(set(one) for one in curves))) if curves else []
    if not at:
        return None
    numbers = np.array([[[one[step] for step in at] for one in row] for row in rows])
    with _seeded():
        values, intervals = library.get_interval_estimates({"": numbers}, function, reps=RESAMPLES)
    return Band(at, values[""], *_of_several(numbers, intervals[""]))


def placed(band: Band | None, runs: Iterable[Result]) -> Band | None:
    """A line through evaluations, by the agent steps of the snapshots that they judge: the mean over these runs."""
    every = list(runs)
    return band and band._replace(at=[fmean(run.position(int(step)) for run in every) for step in band.at])


def typical(values: Sequence[float]) -> float:
    """The median; infinite where fewer than half of the runs got there, NaN without any or where one is unknown."""
    return median(values) if values and not any(map(math.isnan, values)) else math.nan


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """The same resamples each time: rliable draws them from NumPy's global generator, whatever it is given."""
    state = np.random.get_state()
    np.random.seed(0)
    try:
        yield
    finally:
        np.random.set_state(state)
