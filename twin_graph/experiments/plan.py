"""What an experiment file asks for: every run with its settings, all checked before anything is trained."""

from __future__ import annotations

import itertools
import json
import math
import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from twin_graph import config, targets
from twin_graph.base.text import counted, nearest, what_is_wrong
from twin_graph.config import trust
from twin_graph.config.loading import FREE, nearest_setting
from twin_graph.config.no_effect import without_effect
from twin_graph.config.rules import check_that_it_learns
from twin_graph.config.settings import Settings, Strict
from twin_graph.errors import UsageError
from twin_graph.snapshots.files import LONGEST_NAME
from twin_graph.snapshots.fork import settings_from
from twin_graph.snapshots.resumable import point_at
from twin_graph.snapshots.run import find

#: Lowest and highest score by environment, for what a file does not say: the range of what a game can score, unless
#: arguments of the environment change it.
KNOWN_SCORES = {"CartPole-v1": (0.0, 500.0), "ALE/Pong-v5": (-21.0, 21.0)}
#: Where the threshold lies between `low` and `high`, for what a file does not say. CartPole-v1 is solved at 475 of 500.
THRESHOLD = 0.95
#: After the name of a condition that is the first one but for one weight.
NUDGED = ", one weight moved"
#: How the folders of runs are named: 1 in experiments that versions before 0.3.0 began, which keep the names that they
#: have. There 1e+30 became 1e-30, and letters outside of ASCII were lost.
NAMES = 2
#: What readers of CSV files, such as pandas, take for a missing value or a truth value.
_NO_LABELS = (
    *("", "null", "none", "na", "n/a", "#na", "#n/a", "#n/a n/a", "<na>", "nan", "-nan", "true", "false"),
    *("1.#ind", "-1.#ind", "1.#qnan", "-1.#qnan"),
)
#: So that a plan answers at once where values were multiplied by mistake.
_MOST_RUNS = 10_000
_TASK = "env.id"
_OWN_KEYS = {"seed": "seeds, or noise_seeds in [from]", "train.steps": "steps", "preset": "preset"}

Pairs = tuple[tuple[str, Any], ...]


class Scores(Strict):
    """How scores of one environment are normalised: `low` becomes 0, `high` 1; `threshold` is a score, too."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    low: float | None = None
    high: float | None = None
    threshold: float | None = None

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Scores:
        if (self.low is None) != (self.high is None):
            raise ValueError("give both low and high")
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}")
        return self


class _From(Strict):
    """The states from which every condition starts: resume points of one run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run: str
    points: list[Annotated[int, Field(ge=0)]] = Field([])
    updates: list[Annotated[int, Field(ge=0)]] = Field([])
    noise_seeds: Annotated[list[int], Field(min_length=1)]
    chaos: bool = False

    @pydantic.model_validator(mode="after")
    def _has_points(self) -> _From:
        if bool(self.points) == bool(self.updates):
            raise ValueError("give points, the numbers of resume points, or updates, for the newest points by then")
        return self

    @property
    def references(self) -> list[str]:
        return [*map(str, self.points), *(f"@update:{updates}" for updates in self.updates)]


class _File(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    preset: str | None = None
    steps: Annotated[int, Field(ge=1)]
    seeds: Annotated[list[int], Field(min_length=1)] | None = None
    description: str = ""
    last_evaluations: Annotated[int, Field(ge=1)] = 1
    settings: dict[str, Any] = Field({})
    scores: dict[str, Any] = Field({})
    factors: dict[str, Any]
    from_: _From | None = Field(None, alias="from")

    @pydantic.model_validator(mode="after")
    def _has_a_beginning(self) -> _File:
        for name, value in (("preset", self.preset), ("seeds", self.seeds)):
            if self.from_ is None and value is None:
                raise ValueError(f"{name} is missing")
            if self.from_ and value is not None:
                raise ValueError(f"{name} cannot be combined with [from]: preset and seed are those of its run")
        return self


class OriginPoint(NamedTuple):
    """A resume point from which runs are forked, with the settings of then."""

    number: int
    updates: int
    agent_steps: int
    weights_sha256: str
    settings: Settings


class Origin(NamedTuple):
    """The run from which the runs of an experiment are forked.

    Attributes:
      folder: the run's.
      points: by what the file calls them.
    """

    folder: Path
    points: Mapping[str, OriginPoint]

    def record(self) -> dict[str, Any]:
        """For `experiment.json`, so that the experiment outlives the run."""
        points = {name: {**p._asdict(), "settings": p.settings.model_dump()} for name, p in self.points.items()}
        return {"folder": str(self.folder), "points": points}

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Origin:
        """What `record` returned. Raises `KeyError`, `TypeError` or `UsageError` if it is something else."""
        points = {
            n: OriginPoint(**{**p, "settings": config.validate(p["settings"])}) for n, p in record["points"].items()
        }
        for point in points.values():
            trust.take(point.settings)
        return cls(Path(record["folder"]), points)


class PlannedRun(NamedTuple):
    """One run of an experiment.

    Attributes:
      name: of its folder: the values of the factors, and the seed.
      condition: the values of all factors but the environment; runs of one are compared with those of another.
      task: the environment.
      seed: of the run.
      overrides: the settings by which it differs from the preset, or the run it is forked from, but for steps and seed.
      settings: all of them.
      point: from which it is forked; None of one that is trained from the beginning.
      nudge: whether one weight is moved then, to see how far that spreads.
      last: its score is the mean of this many of its newest evaluations.
    """

    name: str
    condition: str
    task: str
    seed: int
    overrides: Pairs
    settings: Settings
    point: OriginPoint | None = None
    nudge: bool = False
    last: int = 1

    @property
    def pair(self) -> tuple[int, int]:
        """Equal for runs of different conditions that begin alike: the point's number, -1 without one, and the seed."""
        return (self.point.number if self.point else -1), self.seed

    @property
    def span(self) -> tuple[int, int]:
        """The agent steps after which it begins, and at which it ends."""
        return (self.point.agent_steps if self.point else 0), self.settings.train.steps

    @property
    def length(self) -> int:
        """Agent steps that it trains."""
        begin, end = self.span
        return end - begin

    @property
    def threads(self) -> int:
        """Of all its processes that train; 0 where they are left to be measured."""
        return self.settings.twin.threads * max(1, self.settings.workers.count)


class Plan(NamedTuple):
    """Everything that an experiment file says.

    Attributes:
      name, description, steps: as in the file.
      preset: what its preset said when the experiment began; of forked runs, the settings of the first point.
      runs: seed by seed, so that an experiment that was stopped has complete comparisons.
      scores: by environment, what the file says of its scores.
      last: a run's score is the mean of this many of its newest evaluations; a report may take another number.
      text: the file.
      origin: from which run its runs are forked, if they are.
      names: see `NAMES`.
    """

    name: str
    description: str
    preset: Settings
    steps: int
    runs: tuple[PlannedRun, ...]
    scores: Mapping[str, Scores]
    last: int
    text: str
    origin: Origin | None = None
    names: int = NAMES

    def scored_by(self, last: int) -> Plan:
        """The same plan, a run's score the mean of this many of its newest evaluations, whatever the file says."""
        return self._replace(runs=tuple(run._replace(last=last) for run in self.runs))

    @property
    def conditions(self) -> list[str]:
        """In the order of the file."""
        return list(dict.fromkeys(run.condition for run in self.runs))

    @property
    def tasks(self) -> list[str]:
        """The environments, in the order of the file."""
        return list(dict.fromkeys(run.task for run in self.runs))


class _Level(NamedTuple):
    """One value of a factor: its name for people, and the settings that it stands for."""

    factor: str
    label: str
    settings: Pairs

    @property
    def whole(self) -> str:
        """The name with that of its factor before it, where it does not say enough by itself."""
        short = self.factor.rpartition(".")[2]
        return f"{short}={self.label if self.label and self.label.isprintable() else json.dumps(self.label)}"


def read(path: Path, origin_of: Callable[[str], Origin | None] = lambda name: None) -> Plan:  # noqa: ARG005
    """The plan of an experiment file.

    Args:
      path: of the file.
      origin_of: returns what the experiment of a name has recorded of the run from which its runs are forked.

    Raises:
      UsageError: the first thing that is wrong, before anything runs.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    try:
        return parse(text, origin=origin_of(_validated(text).name))
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None


def parse(
    text: str,
    *,
    fixed: Pairs = (),
    origin: Origin | None = None,
    preset: Settings | None = None,
    names: int = NAMES,
) -> Plan:
    """The plan that the text of a file makes.

    Args:
      text: TOML.
      fixed: settings that all runs have in addition to the file's, such as threads.
      origin: points that were looked up before; others are looked for in the run that the file names.
      preset: what the file's preset said when the experiment began; what it says now if that is not known.
      names: see `NAMES`.

    Raises:
      UsageError: unknown keys, values that do not fit, an empty grid, two runs that are the same.
      DamagedError: a point is not whole.
    """
    file = _validated(text)
    common = tuple(_settings(file.settings, "settings"))
    levels = [_levels(name, values) for name, values in _factors(file.factors)]
    if not levels:
        raise UsageError(
            "factors is empty: name a setting and its values, as in \"target.policy\" = ['latest', 'best']"
        )
    _check_disjoint(common, levels)
    seeds = file.from_.noise_seeds if file.from_ else file.seeds or []
    _check_seeds(file, levels, seeds)
    origin = _origin(file.from_, origin) if file.from_ else None
    points: list[OriginPoint | None] = list(origin.points.values()) if origin else [None]
    if origin:
        preset = next(iter(origin.points.values())).settings
    elif preset is None or preset.preset != file.preset:
        preset = config.load(file.preset or "")
    combinations = [(combination, False) for combination in itertools.product(*levels)]
    if file.from_ and file.from_.chaos:
        combinations.insert(1, (combinations[0][0], True))
    runs = [
        _run(file, preset if point is None else point, (*fixed, *common), combination, seed, nudge=nudge, names=names)
        for seed in seeds
        for point in points
        for combination, nudge in combinations
    ]
    _check_different(runs)
    if any(run.settings.train.until_score is not None for run in runs):
        raise UsageError("train.until_score ends runs at different steps, and an experiment compares equal ones")
    tasks = list(dict.fromkeys(run.task for run in runs))
    for condition in dict.fromkeys(run.condition for run in runs):
        played = {run.task for run in runs if run.condition == condition}
        if missing := [task for task in tasks if task not in played]:
            raise UsageError(
                f"{condition} is not compared in {missing[0]}: let the environments be a factor of their own, "
                '"env.id" = [...]'
            )
    scores, last = _scores(file.scores, tasks), file.last_evaluations
    return Plan(file.name, file.description, preset, file.steps, tuple(runs), scores, last, text, origin, names)


def record(plan: Plan, fixed: Pairs) -> dict[str, Any]:
    """For the files of an experiment and of its tables; `fixed` as in `parse`."""
    origin = plan.origin.record() if plan.origin else None
    preset = plan.preset.model_dump()
    return {"file": plan.text, "fixed": dict(fixed), "origin": origin, "preset": preset, "names": plan.names}


def recorded(record: Mapping[str, Any]) -> tuple[Plan, Pairs]:
    """What `record` was given. Raises `KeyError`, `TypeError` or `UsageError` if it is something else."""
    with trust.reading():
        return _recorded(record)


def _recorded(record: Mapping[str, Any]) -> tuple[Plan, Pairs]:
    fixed = tuple((str(key), value) for key, value in record["fixed"].items())
    if others := [key for key, _ in fixed if not key.startswith("twin.")]:
        raise UsageError(f"{others[0]} is fixed for all runs, which nothing but threads and precision is")
    origin = Origin.recorded(record["origin"]) if record.get("origin") else None
    preset = config.validate(record["preset"]) if "preset" in record else None  # older ones lack it
    if preset:
        trust.take(preset)
    names = record.get("names", 1)  # likewise
    plan = parse(record["file"], fixed=fixed, origin=origin, preset=preset, names=names)
    if names < NAMES:
        newly = parse(record["file"], fixed=fixed, origin=origin, preset=preset)
        plan = newly if newly.runs == plan.runs else plan  # so that what is added to the file is named well
    return plan, fixed


def _origin(wanted: _From, known: Origin | None) -> Origin:
    """The points that a file names."""
    if known and Path(wanted.run).absolute().name != known.folder.name:
        raise UsageError(f"from.run={wanted.run}: these runs are forked from {known.folder}; choose another --out")
    if known and all(reference in known.points for reference in wanted.references):
        return known._replace(points={reference: known.points[reference] for reference in wanted.references})
    run = find(wanted.run)
    points = dict(known.points) if known else {}
    for reference in wanted.references:
        if reference not in points:
            point = point_at(run, reference)
            if held := point.held:
                raise UsageError(
                    f"from: at resume point {point.number} the {held[0]} is held by hand, and no policy would be used; "
                    "choose a point without a hold"
                )
            made, settings = point.counters, settings_from(run, point)
            points[reference] = OriginPoint(
                point.number, made.updates, made.agent_steps, point.weights_sha256, settings
            )
    numbers = [points[reference].number for reference in wanted.references]
    if twice := [number for number in numbers if numbers.count(number) > 1]:
        raise UsageError(f"from: resume point {twice[0]} is named twice")
    return Origin(run.folder.absolute(), {reference: points[reference] for reference in wanted.references})


def check_plan(plan: Plan, path: Path) -> None:
    """Raises `UsageError` if a policy in a plan's file is unknown, cannot be imported, or cannot work; or if runs will
    have fewer evaluations than a score is the mean of."""
    for settings in {run.condition: run.settings for run in plan.runs}.values():
        if plan.origin:
            trust.check_all(settings, plan.origin.folder)
        try:
            targets.roles(settings)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    for run in plan.runs:
        (begin, end), train = run.span, run.settings.train
        # The loop looks between chunks or vector steps, and evaluates once however many times it is due.
        asked, looked = run.settings.evaluate.every_steps, max(train.chunk_steps, run.settings.env.count)
        every = max(asked, looked)
        there = end // every - begin // every + (end % every > 0)  # the last one is at the end, due or not
        if plan.last > there:
            raise UsageError(
                f"{path}: last_evaluations={plan.last}, but {run.condition} has {counted(there, 'evaluation')}: "
                f"evaluate.every_steps={asked}{f', looked at every {looked},' if looked > asked else ''} in "
                f"{counted(end - begin, 'agent step')}"
            )


def unused(plan: Plan) -> list[str]:
    """A sentence for each setting of a plan's file that has no effect in any of its runs."""
    in_each = [list(without_effect(run.settings, (key for key, _ in run.overrides))) for run in plan.runs]
    return [sentence for sentence in in_each[0] if all(sentence in of for of in in_each)]


def check_new(plan: Plan, path: Path, begun: Collection[str] = ()) -> None:
    """Raises `UsageError` if two conditions would train the same in every environment, or a run will have no scores.

    What is so among the conditions that have begun, an experiment of an earlier version, can be continued.
    """
    new = (run for run in plan.runs if run.condition not in begun)
    if silent := next((run for run in new if not run.settings.evaluate.episodes), None):
        raise UsageError(f"{path}: with evaluate.episodes=0 {silent.condition} has no scores; give it 1 or more")
    alike = [run for run in plan.runs if run.pair == plan.runs[0].pair and not run.nudge]
    varied = sorted({key for run in alike for key, _ in run.overrides})
    first: dict[tuple[Any, ...], PlannedRun] = {}
    for condition, runs in itertools.groupby(sorted(alike, key=lambda run: run.condition), lambda run: run.condition):
        of = list(runs)
        other = first.setdefault(tuple(_effective(run, varied) for run in of), of[0])
        if other is not of[0] and not {other.condition, condition} <= {*begun}:
            differing = [key for key, *_ in config.differences(other.settings, of[0].settings)]
            why, *_ = [*without_effect(other.settings, differing), *without_effect(of[0].settings, differing)]
            raise UsageError(f"{path}: {other.condition} and {condition} would train the same: {why}")


def _effective(run: PlannedRun, varied: Sequence[str]) -> str:
    """A run's settings, without those of the varied ones that have no effect."""
    idle = {key for key in varied if any(without_effect(run.settings, [key]))}
    return repr([setting for setting in config.describe(run.settings) if setting.key not in idle])


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
        fields = (_From if first["loc"][0] == "from" and len(first["loc"]) > 1 else model).model_fields
        known = [field.alias or name for name, field in fields.items()]
        hint = nearest(str(first["loc"][-1]), known) or f"; there are {', '.join(known)}"
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
            if "$" in name or name.startswith("_"):
                raise UsageError(
                    f"{where}.{name}: a variant's name has no $ and does not begin with _, for the pictures"
                )
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
            # A label that begins with _ would be in no legend.
            value
            if isinstance(value, str) and not value.startswith("_")
            else f"{short}={json.dumps(value, default=str)}",
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


def _check_seeds(file: _File, levels: Sequence[Sequence[_Level]], seeds: Sequence[int]) -> None:
    """Raises `UsageError` if one is repeated, or they would make more runs than anybody means."""
    name = "noise_seeds" if file.from_ else "seeds"
    if len(set(seeds)) < len(seeds):
        raise UsageError(f"{name}={seeds}: one of them is repeated")
    points = len(file.from_.references) if file.from_ else 1
    if (count := len(seeds) * points * math.prod(map(len, levels))) > _MOST_RUNS:
        raise UsageError(
            f"factors and {name} make {count:,} runs, and at most {_MOST_RUNS:,} are possible: leave values out, or "
            "compare some factors in an experiment of their own"
        )


def _run(
    file: _File,
    start: Settings | OriginPoint,
    common: Pairs,
    combination: Sequence[_Level],
    seed: int,
    *,
    nudge: bool,
    names: int,
) -> PlannedRun:
    overrides = (*common, *(pair for level in combination for pair in level.settings))
    steps = ("train.steps", file.steps)
    if isinstance(start, Settings):
        point, settings = None, config.replace(start, [*overrides, steps, ("seed", seed)])
    elif file.steps <= start.agent_steps:
        raise UsageError(f"steps={file.steps}: resume point {start.number} is at {start.agent_steps:,} agent steps")
    else:
        point, settings = start, config.change(start.settings, [*overrides, steps], seed=seed)
    check_that_it_learns(settings)
    condition = _condition([level for level in combination if level.factor != _TASK]) or settings.preset
    if nudge:
        condition += NUDGED
    begin = [] if point is None else [f"point={point.number}"]
    labels = [level._replace(label=level.label + (NUDGED if nudge else "")) for level in combination]
    parts = [_in_ascii(level.label) if names == 1 else _part(level) for level in labels]
    name = ",".join([*parts, *begin, f"seed={seed}"])
    return PlannedRun(name, condition, settings.env.id, seed, overrides, settings, point, nudge, file.last_evaluations)


def _condition(levels: Sequence[_Level]) -> str:
    """What a condition is called. In a table, that is to be read as text: no number, and not as if it were missing."""
    if len(levels) == 1 and not _is_text(levels[0].label):
        return levels[0].whole
    return ", ".join(level.label if level.label.isprintable() and level.label else level.whole for level in levels)


def _is_text(label: str) -> bool:
    """Whether who reads a CSV file takes this for text."""
    if label.lower() in _NO_LABELS or not label.isprintable():
        return False
    try:
        float(label)
    except ValueError:
        return True
    return False


def _part(level: _Level) -> str:
    """What a folder's name says of a value: its name, with that of its factor if letters or a sign would be lost."""
    if re.match(r"-\.?\d", level.label):
        return _slug(level.whole)
    if part := _slug(level.label):
        return part
    return f"{_slug(level.factor.rpartition('.')[2])}={level.label.encode().hex()}"


def _slug(label: str) -> str:
    """For a folder's name: only characters without a special meaning to a shell or TensorFlow."""
    # The sign of a number stays: 1e+30 is not 1e-30.
    parts = re.split(r"(?:^|(?<=\d[eE]))\+(?=\.?\d)", unicodedata.normalize("NFC", label))
    return "+".join(re.sub(r"[^\w.=-]+", "-", part) for part in parts).strip("-")


def _in_ascii(label: str) -> str:
    """`_slug` as it was; see `NAMES`."""
    return re.sub(r"[^A-Za-z0-9.=_-]+", "-", label).strip("-")


def _check_different(runs: Sequence[PlannedRun]) -> None:
    by_settings: dict[tuple[Any, ...], PlannedRun] = {}
    for run in runs:
        other = by_settings.setdefault((run.settings.sha256(), run.pair, run.nudge), run)
        if other is not run:
            raise UsageError(f"{other.condition} and {run.condition} are the same run, twice (seed {run.seed})")
    places = Counter((run.condition, run.task, run.pair, run.nudge) for run in runs)
    if same := next((place for place, count in places.items() if count > 1), None):
        raise UsageError(f"two conditions would be called {same[0]}: give their values other names")
    names = Counter(run.name for run in runs)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise UsageError(f"two runs would be called {twice}: give their values names, in a table of variants")
    if long := next((name for name in names if len(name.encode()) > LONGEST_NAME), None):
        size = f"{len(long.encode())} {'letters' if long.isascii() else 'bytes'}"
        raise UsageError(
            f"the name of a run, {long[:40]}..., has {size}, and at most {LONGEST_NAME} are possible: "
            "give its values shorter names, in a table of variants"
        )


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
