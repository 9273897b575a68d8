"""Every setting, once: its type, default, range, unit and source.

Settings have dotted names (`train.batch_size`), the same in `--set`, in preset files and in `run.json`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import typing
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import pydantic
from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic_core import PydanticKnownError, core_schema

from twin_graph.config.rules import check_together

NATURE = "Mnih et al. 2015"
DQN3 = "DQN 3.0, the Lua code of Mnih et al. 2015"
DOUBLE = "van Hasselt et al. 2016"
DUELING = "Wang et al. 2016"
PRIORITIZED = "Schaul et al. 2016, DQN Zoo"
ASYNC = "Mnih et al. 2016"
TWO_LEARNERS = "after van Hasselt 2010"
NOISY = "Fortunato et al. 2018"
PEERS = "Stable-Baselines3 and CleanRL"


def _setting(default: Any, meaning: str, *, unit: str = "", source: str = "", **limits: Any) -> Any:
    return Field(default, description=meaning, json_schema_extra={"unit": unit, "source": source}, **limits)


class Named:
    """What a setting may be: one of these names, or `module:function` for something of your own.

    What the names stand for is in a table of the module that needs them; importing it would import TensorFlow.
    """

    def __init__(self, *names: str) -> None:
        self.names = names

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def _check(self, value: str) -> str:
        if value not in self.names and not re.fullmatch(r"[\w.]+:\w+", value):
            expected = ", ".join(f"'{name}'" for name in self.names)
            raise PydanticKnownError("literal_error", {"expected": f"{expected} or module:function"})
        return value


class Strict(BaseModel):
    """Base of what people write in files: `true` is not a number, alone or in a list."""

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        if isinstance(value, bool):
            declared = cls.model_fields[info.field_name or ""].annotation
            if declared in (int, float, int | None, float | None):
                raise PydanticKnownError("float_type" if declared in (float, float | None) else "int_type")
        if isinstance(value, list) and any(isinstance(item, bool) for item in value):
            raise PydanticKnownError("int_type")
        return value


class _Section(Strict):
    # Built on first use: commands that read records need few of them and start sooner. JSON has neither NaN nor
    # infinity, and a run is resumed with what its JSON says.
    model_config = ConfigDict(
        extra="forbid", frozen=True, serialize_by_alias=True, defer_build=True, allow_inf_nan=False
    )


#: Namespaces of games that are seen as stacks of `env.stack` images: Atari's, and Pong for two.
PIXEL_GAMES = ("ALE/", "TwoPlayer/")
#: Updates between refreshes where none of the three units is set.
REFRESH_EVERY_UPDATES = 1_000
#: Agent steps of a game in an evaluation where neither the environment nor `evaluate.max_steps` has a limit.
EVALUATION_MAX_STEPS = 27_000
#: Atoms of distributions where `model.atoms` is not set.
ATOMS = {"categorical": 51, "quantile": 200, "implicit": 64}
#: Epsilon of evaluations on Atari where `evaluate.epsilon` is not set.
ATARI_EVALUATION_EPSILON = 0.001


class EnvSettings(_Section):
    id: str = _setting(
        "", "Gymnasium id: ALE/Pong-v5, CartPole-v1, module:Id; discrete actions", source="ale-py, Gymnasium"
    )
    actions: list[int] | None = _setting(
        None, "which of the game's actions the agent may take, by number, for example [0, 2, 3]; null for all (Atari)"
    )
    kwargs: dict[str, JsonValue] = _setting(
        {}, "arguments of the environment, each set as env.kwargs.NAME=VALUE (not Atari)"
    )
    vectorization: Literal["sync", "async"] = _setting(
        "sync",
        "async: each environment in its own process, for slow ones; results are the same (Gymnasium, not Atari)",
    )
    alone: bool = _setting(
        False,
        "only one can exist at a time: evaluations play one game after another in its stead (Gymnasium; env.count=1)",
    )
    count: int = _setting(8, "environments stepped together", unit="environments", ge=1, le=1024)
    frame_skip: int = _setting(
        4, "how many frames each action is repeated for (Atari; 1 elsewhere)", unit="frames", source=NATURE, ge=1, le=60
    )
    sticky: float = _setting(
        0.0,
        "probability that the emulator repeats the previous action instead (Atari; 0.25 in ALE v5)",
        source="NoFrameskip-v4, " + PEERS,
        ge=0,
        le=1,
    )
    noop_max: int = _setting(
        30, "each game starts with up to this many no-op frames (Atari)", unit="frames", source=NATURE, ge=0, le=10_000
    )
    fire_reset: bool = _setting(
        False, "press FIRE for a frame before each game, in training only (Atari)", source="off in 2015"
    )
    life_loss: bool = _setting(
        True, "treat a lost life as terminal, in training only; the game continues (Atari)", source=NATURE
    )
    clip_rewards: bool = _setting(True, "clip rewards to [-1, 1], in training only (Atari)", source=NATURE)
    max_frames: int = _setting(
        108_000,
        "time limit of a game (Atari)",
        unit="frames",
        source="NoFrameskip-v4",
        ge=1,
        le=2**31 - 1,
    )
    image_height: int = _setting(84, "height of the resized screen (Atari)", unit="pixels", source=NATURE, ge=8, le=210)
    image_width: int = _setting(84, "width of the resized screen (Atari)", unit="pixels", source=NATURE, ge=8, le=160)
    stack: int = _setting(4, "frames stacked in one observation (Atari)", unit="frames", source=NATURE, ge=1, le=16)


class ModelSettings(_Section):
    dueling: bool = _setting(
        False,
        "separate streams for the value of the state and the advantages of the actions (not in `pooled80` and `blob`)",
        source=DUELING,
    )
    padding: Literal["VALID", "SAME"] = _setting(
        "VALID", "padding of the convolutions (not in `pooled80` and `blob`)", source=NATURE
    )
    head: Literal["scalar", "categorical", "quantile", "implicit"] = _setting(
        "scalar",
        "what the network says of each action: its expected return, probabilities of returns (C51), quantiles of its "
        "return (QR-DQN), or quantiles at levels that are drawn anew each time (IQN)",
        source="Bellemare et al. 2017; Dabney et al. 2018, 2018b",
    )
    atoms: int | None = _setting(
        None,
        "returns, or quantiles, of each action's distribution; null: "
        + ", ".join(f"{atoms} with model.head={head}" for head, atoms in ATOMS.items()),
        source="Bellemare et al. 2017; Dabney et al. 2018; Dopamine",
        ge=1,
        le=1024,
    )
    atoms_of_target: int = _setting(
        64,
        "quantiles of each action that the target supplies with model.head=implicit",
        source="Dopamine",
        ge=1,
        le=1024,
    )
    atoms_of_acting: int = _setting(
        32,
        "quantiles of each action whose mean is its value with model.head=implicit",
        source="Dabney et al. 2018b",
        ge=1,
        le=1024,
    )
    support: list[float] = _setting(
        [-10.0, 10.0],
        "lowest and highest return of model.head=categorical",
        unit="score",
        source="Bellemare et al. 2017",
        min_length=2,
        max_length=2,
    )
    layer_norm: bool = _setting(
        False,
        "normalize each hidden layer over its channels or units, before its rectifier",
        source="Ba et al. 2016; Gallici et al. 2025",
    )
    noisy: bool = _setting(
        False,
        "learnt noise on the weights of all fully connected layers, by which the agent explores: a draw for each "
        "vector step and each update, none in evaluations",
        source=NOISY,
    )
    noisy_sigma: float = _setting(
        0.5,
        "initial size of the noise of model.noisy, before it is divided by the root of a layer's inputs",
        source=NOISY + "; 0.1 in Dopamine",
        ge=0,
        le=10,
    )

    @property
    def draws(self) -> bool:
        """Whether the network draws random numbers, other than for dropout: noise, or levels of quantiles."""
        return self.noisy or self.head == "implicit"

    hidden_units: list[Annotated[int, Field(ge=1, le=8192)]] = _setting(
        [256, 256],
        "widths of the hidden layers in `mlp`",
        unit="units",
        source="RL Baselines3 Zoo",
        min_length=1,
        max_length=8,
    )


class TrainSettings(_Section):
    steps: int = _setting(1_000_000, "length of the run, rounded up to whole vector steps", unit="agent steps", ge=1)
    until_score: float | None = _setting(
        None,
        "end the run when the lower bound of a scheduled evaluation's score reaches this; null for train.steps alone",
        unit="score",
    )
    start_steps: int = _setting(10_000, "steps collected before learning starts", unit="agent steps", ge=1)
    every_steps: int = _setting(4, "one update every this many steps", unit="agent steps", source=NATURE, ge=1)
    chunk_steps: int = _setting(
        0,
        "act with weights frozen at the start of each chunk while the previous chunk's updates are made; 0 for the "
        "classic loop, in which nothing overlaps",
        unit="agent steps",
        source="after fast-dqn, Daley and Amato 2021",
        ge=0,
    )
    batch_size: int = _setting(
        32,
        "transitions in one update; with train.accumulate, in each of its microbatches",
        unit="transitions",
        source=NATURE,
        ge=1,
        le=65_536,
    )
    n_step: int = _setting(1, "rewards summed before bootstrapping", unit="agent steps", source=NATURE, ge=1, le=1000)
    random_shift: int = _setting(
        0,
        "shift each image used in an update by up to this much, at random",
        unit="pixels",
        source="4 in DrQ, Kostrikov et al. 2021",
        ge=0,
        le=64,
    )
    rollout_steps: int = _setting(
        0,
        "learn once from each environment's newest n steps, with returns up to their end; 0 to sample from the replay",
        unit="agent steps per environment",
        source="5 in " + ASYNC,
        ge=0,
        le=1000,
    )
    discount: float = _setting(0.99, "discount factor per agent step", source=NATURE, ge=0, le=1)
    double: bool = _setting(
        False, "double Q-learning: the online twin selects the action that the target evaluates", source=DOUBLE
    )
    minto: bool = _setting(
        False, "bootstrap from the smaller of target and online Q, for each action", source="Hendawy et al. 2025"
    )
    munchausen: float = _setting(
        0.0,
        "weight of the target's log-policy as a bonus to rewards, with its entropy in bootstrap values; 0 for none",
        source="0.9 in Vieillard et al. 2020",
        ge=0,
        le=1,
    )
    munchausen_temperature: float = _setting(
        0.03,
        "temperature of the policy of train.munchausen",
        unit="score",
        source="Vieillard et al. 2020",
        gt=0,
        le=1e6,
    )
    munchausen_lowest: float = _setting(
        -1.0, "lowest bonus of train.munchausen, before its weight", source="Vieillard et al. 2020", le=0, ge=-1e6
    )
    gauss_sigma: float = _setting(
        0.75,
        "standard deviation of the bell curve of loss=hl_gauss, in distances between neighbouring returns",
        source="Farebrother et al. 2024",
        gt=0,
        le=100,
    )
    target_q: bool = _setting(True, "bootstrap from the target; if false, from the online twin itself", source=DQN3)
    clip_delta: float | None = _setting(1.0, "clip TD errors to plus or minus this (loss=dqn3)", source=DQN3, gt=0)
    rescale_r: bool = _setting(False, "divide rewards by the largest seen so far (loss=dqn3)", source=DQN3)
    accumulate: int = _setting(
        1, "microbatches whose gradients are accumulated into one update", unit="microbatches", ge=1, le=1024
    )
    gradient_clip_norm: float | None = _setting(
        None,
        "clip the global norm of the gradients to this; null for no clipping",
        source="10 in Stable-Baselines3",
        gt=0,
    )
    optimizer: Annotated[str, Named("adam", "rmsprop", "rmsprop_centered", "rmsprop_dqn3")] = _setting(
        "adam",
        "TensorFlow's Adam or RMSProp, the centered RMSProp of PyTorch, or that of DQN 3.0, whose moments start at "
        "zero; module:function for your own",
    )
    learning_rate: float = _setting(1e-4, "initial learning rate", source=PEERS, gt=0, le=1)
    learning_rate_schedule: Literal["constant", "linear", "staircase"] = _setting(
        "constant",
        "linear: to learning_rate_end over learning_rate_updates; staircase: times learning_rate_decay every "
        "learning_rate_updates",
    )
    learning_rate_end: float = _setting(0.0, "final learning rate of the linear schedule", ge=0, le=1)
    learning_rate_decay: float = _setting(0.96, "factor of the staircase schedule", gt=0, le=1)
    learning_rate_updates: int = _setting(
        100_000, "length of the linear schedule, or of one stair", unit="updates", ge=1
    )
    adam_epsilon: float = _setting(
        1e-8,
        "epsilon of Adam, added to the root before bias correction",
        source="epsilon hat, Kingma and Ba 2015",
        gt=0,
        le=1,
    )
    rmsprop_epsilon: float = _setting(
        1e-10,
        "epsilon of RMSProp, inside the root (rmsprop_centered: outside; not rmsprop_dqn3, which has its own)",
        source="TensorFlow",
        gt=0,
        le=1,
    )
    rmsprop_decay: float = _setting(
        0.99,
        "decay of RMSProp's mean square (not rmsprop_dqn3, which has its own)",
        source="Mnih et al. 2016",
        ge=0,
        lt=1,
    )
    rmsprop_momentum: float = _setting(
        0.0, "momentum of RMSProp (not rmsprop_dqn3)", source="Mnih et al. 2016", ge=0, lt=1
    )

    @property
    def return_lengths(self) -> Sequence[int]:
        """How many rewards a return sums before it bootstraps; in rollouts, each length occurs equally often."""
        return range(1, self.rollout_steps + 1) if self.rollout_steps else [self.n_step]

    @property
    def examples(self) -> int:
        """Transitions of one update."""
        return self.batch_size * self.accumulate

    def learning_rate_at(self, update: int) -> float:
        """The learning rate of an update, counted from 0."""
        if self.learning_rate_schedule == "staircase":
            return self.learning_rate * self.learning_rate_decay ** (update // self.learning_rate_updates)
        if self.learning_rate_schedule == "linear":
            left = max(0.0, 1 - update / self.learning_rate_updates)
            return self.learning_rate_end + left * (self.learning_rate - self.learning_rate_end)
        return self.learning_rate


class ReplaySettings(_Section):
    capacity_steps: int = _setting(
        100_000, "size of the replay buffer", unit="agent steps", source="RL Baselines3 Zoo", ge=1
    )
    prioritized: bool = _setting(False, "prioritized experience replay", source=PRIORITIZED)
    priority_exponent: float = _setting(
        0.6, "0 samples uniformly, 1 in proportion to |TD error|", source=PRIORITIZED, ge=0, le=1
    )
    uniform_share: float = _setting(0.001, "share of samples that stay uniform", source="DQN Zoo", ge=0, le=1)
    importance_start: float = _setting(
        0.4, "initial exponent of the importance weights", source=PRIORITIZED, ge=0, le=1
    )
    importance_end: float = _setting(1.0, "final exponent of the importance weights", source=PRIORITIZED, ge=0, le=1)
    importance_updates: int = _setting(
        250_000, "how long importance_start takes to become importance_end", unit="updates", ge=1
    )

    def importance_at(self, update: int) -> float:
        """The exponent of the importance weights of an update, from 0."""
        progress = min(1.0, update / self.importance_updates)
        return self.importance_start + progress * (self.importance_end - self.importance_start)


class ActSettings(_Section):
    with_: Literal["online", "target"] = _setting(
        "online",
        "which twin selects actions; under policies such as best or pinned, the target's behaviour stays fixed",
        source="target in fast-dqn, Daley and Amato 2021",
        alias="with",
    )
    epsilon_start: float = _setting(1.0, "initial epsilon", source=NATURE, ge=0, le=1)
    epsilon_end: float = _setting(0.01, "final epsilon", source="CleanRL and RL Baselines3 Zoo", ge=0, le=1)
    epsilon_warmup_steps: int = _setting(0, "how long epsilon keeps its initial value", unit="agent steps", ge=0)
    epsilon_decay_steps: int = _setting(100_000, "length of epsilon's linear decay", unit="agent steps", ge=1)

    def epsilon_at(self, agent_step: int) -> float:
        """Epsilon after this many agent steps."""
        progress = min(1.0, max(0, agent_step - self.epsilon_warmup_steps) / self.epsilon_decay_steps)
        return self.epsilon_start + progress * (self.epsilon_end - self.epsilon_start)


def _every(unit: str, meaning: str) -> Any:
    return _setting(None, f"{meaning} every n {unit}; set only one of the three units", unit=unit, ge=1)


class TargetSettings(_Section):
    policy: str = _setting(
        "latest",
        "which snapshot each refresh restores: latest, best, lag(updates), window(n), mix(p, n), pinned(id), rollback, "
        "ensemble(k, min|mean), average(k), module:function",
        source="latest in " + NATURE,
    )
    refresh_every_updates: int | None = _setting(
        None,
        "refresh the target every n updates; set only one of the three units (all null: "
        f"every {REFRESH_EVERY_UPDATES:,} updates)",
        unit="updates",
        source="10,000 in " + NATURE,
        ge=1,
    )
    refresh_every_steps: int | None = _every("agent steps", "refresh the target")
    refresh_every_episodes: int | None = _every("episodes", "refresh the target")


class OpponentSettings(_Section):
    policy: str | None = _setting(
        None,
        "who takes the other seat in two-player games: random, self (the current weights), or a past snapshot, chosen "
        "by any policy that target.policy takes; null elsewhere",
        source="self-play as in Bansal et al. 2018, OpenAI Five",
    )
    epsilon: float = _setting(0.0, "share of random actions of the opponent", ge=0, le=1)
    refresh_every_updates: int | None = _setting(
        None,
        "choose a new opponent every n updates; set only one of the three units (all null: "
        f"every {REFRESH_EVERY_UPDATES:,} updates)",
        unit="updates",
        ge=1,
    )
    refresh_every_steps: int | None = _every("agent steps", "choose the opponent anew")
    refresh_every_episodes: int | None = _every("episodes", "choose the opponent anew")


class MutualSettings(_Section):
    act: Literal["alternate", "random", "both", "a", "b"] = _setting(
        "both",
        "who acts: in turns, at random for each vector step, by the mean of both Q values, or one of them",
        source=TWO_LEARNERS,
    )
    learn: Literal["alternate", "random", "both"] = _setting(
        "random", "who learns from a minibatch: in turns, at random, or both, in two updates", source=TWO_LEARNERS
    )
    turn_updates: int = _setting(1_000, "length of a turn", unit="updates", ge=1)


class StoreSettings(_Section):
    shared: bool = _setting(
        False, "one sequence of snapshots for both learners (mode=mutual): a target is the latest, whoever wrote it"
    )


class WorkersSettings(_Section):
    count: int = _setting(
        0,
        "worker processes for asynchronous training on shared variables; 0 for none",
        unit="workers",
        ge=0,
        le=1024,
    )
    servers: int = _setting(1, "parameter servers for the shared variables", unit="processes", ge=1, le=64)
    restarts: int = _setting(3, "how many times a worker that died is restarted", ge=0)
    gpu_memory_fraction: float | None = _setting(
        None, "share of each GPU's memory per worker; null for as much as it needs", gt=0, le=1
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _of_older_versions(cls, values: Any) -> Any:
        """Runs up to version 0.3.0 may have had each worker on a core of its own: `pin`."""
        return {name: value for name, value in values.items() if name != "pin"} if isinstance(values, dict) else values


class SaveSettings(_Section):
    every_updates: int | None = _every("updates", "commit a snapshot (null: as often as the target is refreshed)")
    every_steps: int | None = _every("agent steps", "commit a snapshot")
    every_episodes: int | None = _every("episodes", "commit a snapshot")
    keep_last: int = _setting(50, "how many of the newest snapshots keep their weights", unit="snapshots", ge=1)
    keep_every: int = _setting(
        20, "every n-th of the older snapshots keeps its weights; 0 for none", unit="snapshots", ge=0
    )


class ResumeSettings(_Section):
    every_steps: int = _setting(
        50_000, "commit a resume point, and reset the environments, every n agent steps", unit="agent steps", ge=1
    )
    keep: int | None = _setting(
        2, "how many of the newest resume points are kept; null, or all, for all of them", unit="points", ge=1
    )

    @pydantic.field_validator("keep", mode="before")
    @classmethod
    def _all_of_them(cls, value: Any) -> Any:
        return None if value == "all" else value

    @property
    def schedule(self) -> Schedule:
        """When a resume point is committed."""
        return Schedule("steps", self.every_steps)


class EvaluateSettings(_Section):
    every_steps: int = _setting(50_000, "evaluate the newest snapshot every n agent steps", unit="agent steps", ge=1)
    episodes: int = _setting(10, "episodes per evaluation; 0 for no evaluations", unit="episodes", ge=0, le=100_000)
    max_steps: int | None = _setting(
        None,
        f"time limit of a game in evaluations; null is {EVALUATION_MAX_STEPS:,} where the environment has no limit of "
        "its own",
        unit="agent steps",
        source="108,000 frames at frame skip 4, NoFrameskip-v4",
        ge=1,
    )
    epsilon: float | None = _setting(
        None,
        f"epsilon in evaluations; null is {ATARI_EVALUATION_EPSILON} on Atari and 0 elsewhere",
        source="Rainbow, Dopamine; 0.05 in 2015",
        ge=0,
        le=1,
    )
    against: str = _setting(
        "random",
        "fixed player in the other seat of two-player games: random, mcts(simulations), perfect (small games), "
        "module:function",
    )
    video: bool = _setting(False, "film the first game of each evaluation, into videos/ in the run's folder")

    @property
    def schedule(self) -> Schedule:
        """When the newest snapshot is evaluated."""
        return Schedule("steps", self.every_steps)


class TwinSettings(_Section):
    check: bool = _setting(
        False, "debug: check at every update, or once in each chunk, that the target holds exactly its snapshot"
    )
    threads: int = _setting(
        0, "TensorFlow threads per twin; 0: measured at the start of the run", unit="threads", ge=0, le=1024
    )
    precision: Literal["auto", "fp32", "bf16"] = _setting(
        "auto",
        "number format of the network's products; auto chooses bf16 where the processor has it and it measures faster "
        "(in a loop of your own, it is fp32)",
    )
    compiled: bool = _setting(
        False,
        "make the updates of a chunk in one program compiled by XLA; for networks so small that calling TensorFlow "
        "takes longer than computing",
    )
    overlap: bool = _setting(
        True, "in chunks: act in one thread while another trains; the weights are the same either way"
    )


class LogSettings(_Section):
    every_steps: int = _setting(2_000, "log metrics every n agent steps", unit="agent steps", ge=1)
    to: Literal["tensorboard", "wandb", "mlflow"] = _setting(
        "tensorboard", "wandb, mlflow: settings, metrics and films go there too, at each resume point"
    )
    variables: bool = _setting(
        False,
        "with each line of metrics, also write statistics and histograms of variables and activations to TensorBoard",
    )

    @property
    def schedule(self) -> Schedule:
        """When metrics are logged."""
        return Schedule("steps", self.every_steps)


class Schedule(NamedTuple):
    """How often something happens.

    Attributes:
      unit: `updates`, `steps` (agent steps) or `episodes`.
      every: the period, in this unit.
    """

    unit: str
    every: int

    @classmethod
    def of(cls, settings: Settings, stem: str) -> Schedule | None:
        """The schedule that `stem_updates`, `stem_steps` or `stem_episodes` gives, for example `save.every`."""
        section, name = stem.split(".")
        values = {unit: getattr(getattr(settings, section), f"{name}_{unit}") for unit in UNITS}
        found = [cls(unit, every) for unit, every in values.items() if every is not None]
        if len(found) > 1:
            raise ValueError(" and ".join(f"{stem}_{schedule.unit}" for schedule in found) + " are both set; keep one")
        return found[0] if found else None

    def due(self, since: Counted, now: Counted) -> bool:
        """Whether a multiple of the period was reached or passed between the two."""
        counter = "agent_steps" if self.unit == "steps" else self.unit
        return bool(getattr(now, counter) // self.every > getattr(since, counter) // self.every)

    def __str__(self) -> str:
        return f"every {self.every:,} {'agent steps' if self.unit == 'steps' else self.unit}"


class Counted(Protocol):
    """How far a run has come."""

    @property
    def agent_steps(self) -> int: ...

    @property
    def updates(self) -> int: ...

    @property
    def episodes(self) -> int: ...


UNITS = ("updates", "steps", "episodes")


class Settings(_Section):
    """All settings of a run."""

    preset: str = _setting("", "the preset that this run started from")
    seed: int = _setting(1, "seed of everything random", ge=0, lt=2**31)
    network: Annotated[str, Named("nature", "dopamine", "mnih2013", "pooled80", "minatar", "board", "blob", "mlp")] = (
        _setting("nature", "the Q network; module:function for your own", source=NATURE)
    )
    mode: Literal["plain", "mutual"] = _setting(
        "plain", "mutual: two learners, a and b, each bootstrapping from the other's snapshots"
    )
    loss: Annotated[str, Named("huber", "mse", "mse_all", "dqn3", "hl_gauss")] = _setting(
        "huber",
        "loss of the TD errors, or the own loss of a distribution; dqn3 backpropagates errors from the output layer, "
        "summed and clipped; hl_gauss makes a bell curve around a value the target of model.head=categorical; "
        "module:function for your own",
        source=NATURE + "; Farebrother et al. 2024",
    )
    env: EnvSettings = EnvSettings()
    model: ModelSettings = ModelSettings()
    train: TrainSettings = TrainSettings()
    replay: ReplaySettings = ReplaySettings()
    act: ActSettings = ActSettings()
    target: TargetSettings = TargetSettings()
    opponent: OpponentSettings = OpponentSettings()
    mutual: MutualSettings = MutualSettings()
    store: StoreSettings = StoreSettings()
    workers: WorkersSettings = WorkersSettings()
    save: SaveSettings = SaveSettings()
    resume: ResumeSettings = ResumeSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    twin: TwinSettings = TwinSettings()
    log: LogSettings = LogSettings()

    @property
    def ops_at_once(self) -> int:
        """How many ops of a twin share `twin.threads`.

        Two in chunks: both twins work at the same time, and with one thread an op each keeps to its part of the cores.
        """
        return 2 if self.train.chunk_steps else 1

    @property
    def block_updates(self) -> int:
        """How many updates a compiled program makes at most; 0 if there is none, as with workers."""
        if not self.twin.compiled or self.workers.count:
            return 0
        return max(1, self.train.chunk_steps // self.train.every_steps)

    @property
    def updates_per_minibatch(self) -> int:
        """Updates that learn from one minibatch: two where each of two learners does."""
        return 2 if self.mode == "mutual" and self.mutual.learn == "both" else 1

    @property
    def fewest_start_steps(self) -> int:
        """Agent steps after which there is a complete transition, with its stack of frames, of each environment."""
        stacked = self.env.stack if self.env.id.startswith(PIXEL_GAMES) else 1
        return self.env.count * (self.train.n_step + stacked + 1)

    @property
    def vector_steps(self) -> int:
        """Vector steps of the whole run: enough for `train.steps` agent steps."""
        return math.ceil(self.train.steps / self.env.count)

    @property
    def total_steps(self) -> int:
        """Agent steps of the whole run: `train.steps`, up to a whole vector step."""
        return self.vector_steps * self.env.count

    @property
    def first_update_steps(self) -> int:
        """Agent steps after which the first update is due. Workers, if there are any, begin so in each attempt."""
        own = self.of_worker(0).train if self.workers.count else self.train
        return max(1, self.workers.count) * (own.start_steps + own.every_steps)

    @property
    def total_updates(self) -> int:
        """Updates of the whole run, if its learning is not broken off."""
        minibatches = max(0, self.total_steps - self.train.start_steps) // self.train.every_steps
        return minibatches * self.updates_per_minibatch

    def refresh_schedule_of(self, role: str) -> Schedule:
        """When a holder is refreshed, by its role: `target` or `opponent`."""
        return Schedule.of(self, f"{role}.refresh_every") or Schedule("updates", REFRESH_EVERY_UPDATES)

    @property
    def save_schedule(self) -> Schedule:
        """When a snapshot is committed."""
        return Schedule.of(self, "save.every") or self.refresh_schedule_of("target")

    @pydantic.model_validator(mode="after")
    def _fit_together(self) -> typing.Self:
        _ = self.refresh_schedule_of("target"), self.refresh_schedule_of("opponent"), self.save_schedule
        check_together(self)
        return self

    def of_worker(self, index: int, *, updates: int = 0) -> Settings:
        """The settings of one of several workers: its own random numbers, its part of the replay.

        A worker counts its own updates, from 0; `updates` is how many all had made when it began.
        """
        workers, environments = self.workers.count, self.env.count
        start = math.ceil(self.train.start_steps / workers / environments) * environments
        start = max(start, self.fewest_start_steps)
        replay = {
            "capacity_steps": self.replay.capacity_steps // workers,
            "importance_start": self.replay.importance_at(updates),
            "importance_updates": max(1, (self.replay.importance_updates - updates) // workers),
        }
        return self.model_copy(
            update={
                "seed": self.seed + (1 + index) * 2**31,
                "train": self.train.model_copy(update={"start_steps": start}),
                "replay": self.replay.model_copy(update=replay),
            }
        )

    def sha256(self) -> str:
        """Hash of all settings, for manifests."""
        return hashlib.sha256(json.dumps(self.model_dump(), sort_keys=True).encode()).hexdigest()
