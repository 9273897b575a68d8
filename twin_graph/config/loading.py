"""Settings read, changed, compared and described: presets, `--set key=value`, and one line on what is wrong."""

import contextlib
import difflib
import functools
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Literal, NamedTuple

import pydantic
from pydantic import BaseModel

from twin_graph.base.text import nearest, what_is_wrong
from twin_graph.config import trust
from twin_graph.config.settings import UNITS, Named
from twin_graph.config.settings import Settings as Settings  # for modules that load them
from twin_graph.errors import UsageError

#: Settings, or beginnings of their names, that stored weights, replay and counters depend on.
FIXED = (
    *("preset", "seed", "network", "mode", "mutual.", "store.", "env.", "model.", "replay."),
    *("train.every_steps", "train.start_steps", "train.optimizer", "train.accumulate", "train.target_q"),
    *("train.rmsprop_momentum", "train.rollout_steps"),
)
#: Tables whose keys are not ours.
FREE = "env.kwargs."


class Description(NamedTuple):
    """What people are told about one setting."""

    key: str
    type: str
    value: Any
    range: str
    unit: str
    meaning: str
    source: str


def describe(settings: BaseModel, prefix: str = "") -> Iterator[Description]:
    """All settings with their values in `settings`, in the order in which they are declared."""
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            yield from describe(value, f"{prefix}{name}.")
            continue
        extra = typing.cast(dict[str, str], field.json_schema_extra)
        yield Description(
            key=prefix + (field.alias or name),
            type=_type_name(field.annotation, field.metadata),
            value=value,
            range=_range(field.metadata),
            unit=extra["unit"],
            meaning=field.description or "",
            source=extra["source"],
        )


@functools.cache
def _types() -> dict[str, str]:
    return {description.key: description.type for description in describe(Settings())}


def setting_names() -> tuple[str, ...]:
    """The dotted names of all settings."""
    return tuple(_types())


def is_setting(name: str) -> bool:
    """Whether there is a setting of this dotted name, or it is a key in a table whose keys are free."""
    return name in setting_names() or name.startswith(FREE)


@functools.cache
def preset_names() -> tuple[str, ...]:
    """The presets that come with the package, sorted."""
    return tuple(sorted(p.name.removesuffix(".toml") for p in _preset_folder().iterdir() if p.name.endswith(".toml")))


def preset_description(name: str) -> str:
    """One line on what a preset trains."""
    return str(_read_preset(name)["description"])


def load(preset: str, overrides: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> Settings:
    """A preset's settings with overrides: a mapping from dotted names to values, or such pairs; later ones win.

    Raises:
      UsageError: an unknown preset or name, or a value of the wrong type or out of range.
    """
    tree = _read_preset(preset)
    del tree["description"]
    tree["preset"] = preset
    pairs = list(overrides.items() if isinstance(overrides, Mapping) else overrides)
    if any(key == "preset" for key, _ in pairs):
        raise UsageError(f"preset is {preset} here, and no setting changes it; name another preset instead")
    return validate(_changed(tree, pairs))


def change(settings: Settings, overrides: Iterable[tuple[str, Any]], *, seed: int | None = None) -> Settings:
    """The settings with which a run continues.

    Args:
      settings: so far.
      overrides: `(dotted name, value)` pairs.
      seed: another one, which only a fork may have.

    Raises:
      UsageError: as `load`, and if a change would make stored data meaningless.
    """
    overrides = list(overrides)
    for key, _ in overrides:
        if any(key.startswith(one) if one.endswith(".") else key == one for one in FIXED):
            raise UsageError(f"{key} cannot change in a run that has started; train a new one")
    changed = replace(settings, [*overrides, ("seed", settings.seed if seed is None else seed)])
    for key, value in (("threads", 0), ("precision", "auto")):
        if getattr(changed.twin, key) == value != (fixed := getattr(settings.twin, key)):
            raise UsageError(f"twin.{key}={value} only works in a new run; this one is fixed at {fixed}: leave it out")
    if bool(changed.workers.count) != bool(settings.workers.count):
        raise UsageError(
            "a run that began with workers continues with workers, and one without continues without; train a new one"
        )
    return changed


def replace(settings: Settings, overrides: Iterable[tuple[str, Any]]) -> Settings:
    """A copy of settings with some changed. Raises `UsageError`, as `load`."""
    return validate(_changed(settings.model_dump(), list(overrides)))


def differences(before: BaseModel, after: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Names of the settings that differ, with both values."""
    for name, field in type(before).model_fields.items():
        ours, theirs = getattr(before, name), getattr(after, name)
        if ours == theirs:
            continue
        if isinstance(ours, BaseModel):
            yield from differences(ours, theirs, f"{prefix}{name}.")
        else:
            yield prefix + (field.alias or name), ours, theirs


def changed_from_preset(settings: Settings) -> Iterator[str]:
    """Names of the settings that differ from their preset's; none where this version has no such preset."""
    if settings.preset in preset_names():  # records outlive presets
        yield from (key for key, *_ in differences(_as_it_comes(settings.preset), settings))


@functools.cache
def _as_it_comes(preset: str) -> Settings:
    return load(preset)


def _changed(tree: dict[str, Any], overrides: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    trust.give(value for _, value in overrides)
    for key, value in overrides:
        if not is_setting(key):
            raise UsageError(
                f"unknown setting {key!r}{nearest_setting(key) or '; `twin-graph presets PRESET` lists them all'}"
            )
        stem, _, unit = key.rpartition("_")
        # A new unit replaces the old one.
        if unit in UNITS and stem.endswith("every") and value is not None:
            for other in UNITS:
                section, _, name = f"{stem}_{other}".rpartition(".")
                tree.get(section, {}).pop(name, None)
    for key, value in overrides:
        *sections, name = key.split(".")
        at = tree
        for i, section in enumerate(sections, 1):
            at = at.setdefault(section, {})
            if not isinstance(at, dict):
                raise UsageError(f"{key}={value}: {'.'.join(sections[:i])} is {at}, not a group of settings")
        at[name] = value
    return tree


def validate(tree: Mapping[str, Any]) -> Settings:
    """Settings from nested mappings, with one line for the first thing that is wrong."""
    try:
        return Settings.model_validate(tree)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        parts = [str(part) for part in first["loc"]]
        key = ".".join(parts[: FREE.count(".") + 1] if ".".join(parts).startswith(FREE) else parts)
        if not key:  # a cross-check's own message
            raise UsageError(first["msg"].removeprefix("Value error, ")) from None
        if first["type"] == "extra_forbidden":
            raise UsageError(f"unknown setting {key!r}{nearest_setting(key)}") from None
        value = first["input"]
        if value is None or isinstance(value, bool):
            value = json.dumps(value)
        choices = re.findall(r"'(\w+)'", first["ctx"]["expected"]) if first["type"] == "literal_error" else []
        unit = next((setting.unit for setting in describe(Settings()) if setting.key == key and setting.unit), "")
        raise UsageError(
            f"{key}={value}: {what_is_wrong(first)}{f' ({unit})' if unit else ''}{nearest(str(value), choices)}"
        ) from None


def parse_assignment(text: str) -> tuple[str, Any]:
    """`key=value` as a pair; the value is read as TOML, JSON or `null`, and as plain text where it is none of these. A
    whole number may be written as this program prints it, `50,000`."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip() or key.strip().endswith("."):
        raise UsageError(f"--set {text!r}: write it as key=value, for example --set train.batch_size=64")
    if value.strip() == "null":
        return key.strip(), None
    try:
        text = ungrouped(value) if _types().get(key.strip()) == "whole number" else value
        parsed = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        with contextlib.suppress(ValueError):
            return key.strip(), json.loads(value)
        parsed = value.strip()
    return key.strip(), parsed


def ungrouped(number: str) -> str:
    """`50,000` as `50000`; any other text as it is."""
    return number.replace(",", "") if re.fullmatch(r"\s*\d{1,3}(,\d{3})+\s*", number) else number


#: What other programs call these settings, and other words for them.
_ALSO_CALLED = {
    "batch": "train.batch_size",
    "buffer_size": "replay.capacity_steps",
    "capacity": "replay.capacity_steps",
    "end_e": "act.epsilon_end",
    "epsilon": "act.epsilon_start",
    "eval_episodes": "evaluate.episodes",
    "eval_freq": "evaluate.every_steps",
    "exploration_final_eps": "act.epsilon_end",
    "exploration_fraction": "act.epsilon_decay_steps",
    "exploration_initial_eps": "act.epsilon_start",
    "gamma": "train.discount",
    "learning_starts": "train.start_steps",
    "lr": "train.learning_rate",
    "max_grad_norm": "train.gradient_clip_norm",
    "memory_size": "replay.capacity_steps",
    "n_envs": "env.count",
    "num_envs": "env.count",
    "size": "replay.capacity_steps",
    "start_e": "act.epsilon_start",
    "target_network_frequency": "target.refresh_every_steps",
    "target_update_interval": "target.refresh_every_steps",
    "total_timesteps": "train.steps",
    "train_freq": "train.every_steps",
    "train_frequency": "train.every_steps",
}


def nearest_setting(key: str) -> str:
    """`; did you mean X?` for a setting: the one known elsewhere by this name, one in the same section, or the
    closest."""
    known = setting_names()
    section, _, name = key.rpartition(".")
    called = _ALSO_CALLED.get(name, "")
    if called and called.startswith(section):
        return f"; did you mean {called!r}?"
    of_section = [other for other in known if section and other.startswith(f"{section}.")]
    close = (
        difflib.get_close_matches(key, of_section, n=1, cutoff=0.75)
        or [other for other in known if other.endswith(f".{name}")]
        or difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    )
    return f"; did you mean {close[0]!r}?" if close else ""


def _preset_folder() -> resources.abc.Traversable:
    return resources.files("twin_graph.config") / "presets"


def _read_preset(name: str) -> dict[str, Any]:
    if name not in preset_names():
        raise UsageError(
            f"unknown preset {name!r}; there are {', '.join(preset_names())}{nearest(name, preset_names())}"
        )
    return tomllib.loads((_preset_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def _type_name(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    if named := next((one for one in metadata if isinstance(one, Named)), None):
        return " | ".join([*named.names, "module:function"])
    if typing.get_origin(annotation) is Literal:
        return " | ".join(typing.get_args(annotation))
    if isinstance(annotation, types.GenericAlias):
        return "table" if typing.get_origin(annotation) is dict else "list of numbers"
    if isinstance(annotation, types.UnionType):
        return _type_name(annotation.__args__[0])
    return {int: "whole number", float: "number", bool: "true | false", str: "text"}[annotation]


def _range(metadata: Iterable[Any]) -> str:
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    return ", ".join(
        f"{sign} {getattr(limit, name):,}" for limit in metadata for name, sign in signs.items() if hasattr(limit, name)
    )
