"""What an experiment file asks for: every run, with its settings, known to be right before anything is trained."""

import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from twin_graph import config, targets
from twin_graph.config import FREE, nearest, nearest_setting
from twin_graph.cross_checks import check_that_it_learns
from twin_graph.errors import UsageError
from twin_graph.settings import Settings
from twin_graph.words import what_is_wrong

#: Lowest and highest score by environment, for what a file does not say: the range of what a game can score.
KNOWN_SCORES = {"CartPole-v1": (0.0, 500.0), "ALE/Pong-v5": (-21.0, 21.0)}
#: Where the threshold lies between `low` and `high`, for what a file does not say. CartPole-v1 is solved at 475 of 500.
THRESHOLD = 0.95
_TASK = "env.id"
_OWN_KEYS = {"seed": "seeds", "train.steps": "steps", "preset": "preset"}

Pairs = tuple[tuple[str, Any], ...]


class Scores(BaseModel):
    """How scores of one environment are normalised: `low` becomes 0, `high` 1; `threshold` is a score, too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    low: float | None = None
    high: float | None = None
    threshold: float | None = None

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> "Scores":
        if (self.low is None) != (self.high is None):
            raise ValueError("give both low and high")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
        return self


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    preset: str
    steps: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[int], Field(min_length=1)]
    description: str = ""
    settings: dict[str, Any] = {}
    scores: dict[str, Any] = {}
    factors: dict[str, Any]


class PlannedRun(NamedTuple):
    """One run of an experiment.

    Attributes:
      name: of its folder: the values of the factors, and the seed.
      condition: the values of all factors but the environment; runs of one are compared with those of another.
      task: the environment.
      seed: of the run.
      overrides: the settings by which it differs from the preset, but for steps and seed.
      settings: all of them.
    """

    name: str
    condition: str
    task: str
    seed: int
    overrides: Pairs
    settings: Settings


class Plan(NamedTuple):
    """All that an experiment file says.

    Attributes:
      name, description, preset, steps: as in the file.
      runs: seed by seed, so that an experiment that was stopped has whole comparisons.
      scores: by environment, what the file says of its scores.
      text: the file.
    """

    name: str
    description: str
    preset: str
    steps: int
    runs: tuple[PlannedRun, ...]
    scores: Mapping[str, Scores]
    text: str

    @property
    def conditions(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(run.condition for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        """The environments, in the order of the file."""
        return list(dict.fromkeys(run.task for run in self.runs))


class _Level(NamedTuple):
    """One value of a factor: how people call it, and the settings that it means."""

    factor: str
    label: str
    settings: Pairs


def read(path: Path) -> Plan:
    """The plan of an experiment file. Raises `UsageError` for the first thing that is wrong, before anything runs."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse(text: str, *, fixed: Pairs = ()) -> Plan:
    """The plan that the text of a file makes.

    Args:
      text: TOML.
      fixed: settings that all runs have in addition to the file's, such as threads.

    Raises:
      UsageError: unknown keys, values that do not fit, an empty grid, two runs that are the same.
    """
    file = _validated(text)
    common = tuple(_settings(file.settings, "settings"))
    levels = [_levels(name, values) for name, values in _factors(file.factors)]
    if not levels:
        raise UsageError(
            "factors is empty: name a setting and its values, as in \"target.policy\" = ['latest', 'best']"
        )
    _check_disjoint(common, levels)
    if len(set(file.seeds)) < len(file.seeds):
        raise UsageError(f"seeds={file.seeds}: one of them is repeated")
    runs = [
        _run(file, (*fixed, *common), combination, seed)
        for seed in file.seeds
        for combination in itertools.product(*levels)
    ]
    _check_different(runs)
    if any(run.settings.train.until_score is not None for run in runs):
        raise UsageError("train.until_score ends runs at different steps, and an experiment compares equal ones")
    tasks = list(dict.fromkeys(run.task for run in runs))
    return Plan(file.name, file.description, file.preset, file.steps, tuple(runs), _scores(file.scores, tasks), text)


def check_policies(plan: Plan) -> None:
    """Raises `UsageError` if a target policy is unknown, cannot be imported, or cannot work with these settings."""
    for settings in {run.condition: run.settings for run in plan.runs}.values():
        targets.parse(settings.target.policy).check(settings)


def _validated(text: str) -> _File:
    try:
        return _File.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"this is not TOML: {error}") from None
    except pydantic.ValidationError as error:
        raise UsageError(_first_problem(error, _File)) from None


def _first_problem(error: pydantic.ValidationError, model: type[BaseModel]) -> str:
    problems = error.errors()
    first = next((problem for problem in problems if problem["type"] == "extra_forbidden"), problems[0])
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        hint = nearest(key, model.model_fields) or f"; there are {', '.join(model.model_fields)}"
        return f"unknown key {key!r}{hint}"
    if first["type"] == "missing":
        return f"{key} is missing"
    if first["type"] == "string_pattern_mismatch":
        return f"{key}={first['input']!r}: letters, digits, dots, dashes and underscores only, since it names a folder"
    return f"{key}={first['input']}: {what_is_wrong(first)}" if key else first["msg"].removeprefix("Value error, ")


def _settings(tree: Mapping[str, Any], where: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values; `train.double = true` may be written with quotes, without, or in a table `train`."""
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and _is_section(name):
            yield from _settings(value, where, f"{name}.")
            continue
        if name in _OWN_KEYS:
            raise UsageError(f"{where}: {name} has its own place in the file: {_OWN_KEYS[name]}")
        if not config.is_setting(name):
            raise UsageError(f"{where}: unknown setting {name!r}{nearest_setting(name)}")
        yield name, None if value == "null" else value


def _factors(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        name = prefix + key
        if isinstance(value, dict) and _is_section(name):
            yield from _factors(value, f"{name}.")
        else:
            yield name, value


def _is_section(name: str) -> bool:
    return f"{name}." == FREE or any(setting.startswith(f"{name}.") for setting in config.setting_names())


def _levels(factor: str, values: Any) -> list[_Level]:
    """The values of a factor: a list, of a setting; or a table of named variants, each a table of settings."""
    where = f"factors.{factor}"
    if not isinstance(values, list | dict):
        raise UsageError(f"{where}={values}: give a list of values, or a table of named variants")
    if not values:
        raise UsageError(f"{where} has no values: the grid is empty")
    if isinstance(values, dict):
        for name, variant in values.items():
            if not isinstance(variant, dict):
                raise UsageError(
                    f"{where}.{name}={variant}: a variant is a table of settings, as in "
                    f'{name} = {{ "train.double" = true }}{nearest_setting(factor)}'
                )
        return [_Level(factor, name, tuple(_settings(v, f"{where}.{name}"))) for name, v in values.items()]
    short = factor.rpartition(".")[2]
    return [
        _Level(
            factor,
            value if isinstance(value, str) else f"{short}={json.dumps(value)}",
            tuple(_settings({factor: value}, "factors")),
        )
        for value in values
    ]


def _check_disjoint(common: Pairs, levels: Sequence[Sequence[_Level]]) -> None:
    """Raises `UsageError` if two places give the same setting."""
    places = [("settings", {name for name, _ in common})]
    places += [
        (f"factors.{choices[0].factor}", {name for level in choices for name, _ in level.settings})
        for choices in levels
    ]
    for (where, ours), (elsewhere, theirs) in itertools.combinations(places, 2):
        if both := sorted(ours & theirs):
            raise UsageError(f"{both[0]} is set by {where} and by {elsewhere}; keep one")


def _run(file: _File, common: Pairs, combination: Sequence[_Level], seed: int) -> PlannedRun:
    overrides = (*common, *(pair for level in combination for pair in level.settings))
    settings = config.load(file.preset, [*overrides, ("train.steps", file.steps), ("seed", seed)])
    check_that_it_learns(settings)
    condition = ", ".join(level.label for level in combination if level.factor != _TASK) or file.preset
    name = ",".join([*(_slug(level.label) for level in combination), f"seed={seed}"])
    return PlannedRun(name, condition, settings.env.id, seed, overrides, settings)


def _slug(label: str) -> str:
    """For a folder's name: nothing that a shell, or TensorFlow, takes for more than a letter."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")


def _check_different(runs: Sequence[PlannedRun]) -> None:
    by_settings: dict[str, PlannedRun] = {}
    for run in runs:
        other = by_settings.setdefault(run.settings.sha256(), run)
        if other is not run:
            raise UsageError(f"{other.condition} and {run.condition} are the same run, twice (seed {run.seed})")
    names = Counter(run.name for run in runs)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise UsageError(f"two runs would be called {twice}: give their values names, in a table of variants")


def _scores(tree: Mapping[str, Any], tasks: Sequence[str]) -> dict[str, Scores]:
    """What the file says of scores: of its only environment, or by environment."""
    by_task = tree if any(isinstance(value, dict) for value in tree.values()) else {tasks[0]: tree} if tree else {}
    if by_task is not tree and len(tasks) > 1 and tree:
        raise UsageError(f'scores: there are several environments; write [scores."{tasks[0]}"], and one for each')
    for task in by_task:
        if task not in tasks:
            raise UsageError(f"scores: {task!r} is no environment of this experiment{nearest(task, tasks)}")
    try:
        found = {task: Scores.model_validate(values) for task, values in by_task.items()}
    except pydantic.ValidationError as error:
        raise UsageError(f"scores: {_first_problem(error, Scores)}") from None
    return found
