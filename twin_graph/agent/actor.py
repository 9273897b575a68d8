"""The actor: chooses actions, adds the transitions to the replay, and samples minibatches from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from twin_graph.base.arrays import takes
from twin_graph.base.streams import Purpose, Streams
from twin_graph.envs import EnvSpec, check_finite
from twin_graph.replay import sampling
from twin_graph.replay.augmentation import shift
from twin_graph.replay.ring import Batch, Observations, Replay, Transition
from twin_graph.snapshots.points import ENVIRONMENT
from twin_graph.twin import networks

if TYPE_CHECKING:
    from twin_graph.base.counters import Tally
    from twin_graph.config.settings import Settings
    from twin_graph.envs import VectorEnv


class Actor:
    """Owns the replay of E environments that the caller steps.

    Args:
      settings: of the run.
      tally: counts the steps made here.
      env: observations and actions of one environment.
      environments: E.
      vector: they themselves, if what outlives an episode in them is to be kept.

    Attributes:
      replay: what was observed.
      sampler: draws minibatches from it.
    """

    def __init__(
        self, settings: Settings, tally: Tally, env: EnvSpec, environments: int, vector: VectorEnv | None = None
    ) -> None:
        self._settings = settings
        self._tally = tally
        self._env = env
        self._environments, self._vector = environments, vector
        self._streams = Streams(settings.seed, Purpose.ACT)
        self._shifts = Streams(settings.seed, Purpose.SHIFT)
        self._buffers: list[Observations | None] = [None, None]
        self.replay = Replay(
            capacity_steps=settings.replay.capacity_steps,
            environments=environments,
            observation_shape=env.observation_shape,
            dtype=env.observation_dtype,
            stack=env.stack,
            n_step=settings.train.n_step,
            discount=settings.train.discount,
        )
        self.sampler = sampling.of(self.replay, settings)

    def act(self, observations: np.ndarray, q_values: Callable[[], np.ndarray], agent_step: int) -> np.ndarray:
        """Epsilon-greedy actions, int64 `[E]`, after this many agent steps.

        Args:
          observations: `[E, *observation_shape]`, with the mask of legal actions where some are illegal.
          q_values: returns their Q values, float32 `[E, A]`; not called if all actions are random.
          agent_step: determines epsilon and the random draws; their number is always the same.
        """
        random = self._streams.at(agent_step)
        explore = random.random(self._environments) < self._settings.act.epsilon_at(agent_step)
        actions = self._env.random_actions(observations, random)
        return actions if explore.all() else np.where(explore, actions, q_values().argmax(axis=1))

    def checked(self, transition: Transition) -> Transition:
        """A step from a custom loop, as checked arrays. Unchecked, NumPy would convert types, or broadcast one
        environment's step to all.

        Raises:
          ValueError: an array has another shape or type than this environment's, or an action is none of its.
          ForeignError: an observation after a reset is NaN or infinite.
        """
        transition, each = Transition(*map(np.asarray, transition)), (self._environments,)
        seen = (*each, *self._env.observation_shape), np.dtype(self._env.observation_dtype)
        flags = each, np.dtype(np.bool_)
        wanted: tuple[tuple[tuple[int, ...], np.dtype[Any]], ...]
        wanted = seen, (each, np.dtype(np.int64)), (each, np.dtype(np.float32)), flags, flags, seen
        for array, field, (shape, dtype) in zip(transition, Transition._fields, wanted, strict=True):
            if array.shape != shape or not takes(dtype, array.dtype):
                raise ValueError(f"{field} is {array.dtype} {list(array.shape)} and must be {dtype} {list(shape)}")
        if transition.a_tm1.min() < 0 or transition.a_tm1.max() >= self._env.n_actions:
            raise ValueError(f"a_tm1 is {transition.a_tm1.tolist()}, and actions are 0 to {self._env.n_actions - 1}")
        if self.replay.begins:  # otherwise it was checked as the previous `s_t`
            check_finite(self._settings.env.id, "observation", transition.s_tm1)
        return transition

    def observe(self, transition: Transition) -> None:
        """Puts one step of all E environments into the replay.

        Raises:
          ForeignError: a reward, or a part of `s_t`, is NaN or infinite.
        """
        check_finite(self._settings.env.id, "reward", transition.r_t)
        check_finite(self._settings.env.id, "observation", transition.s_t)
        self.replay.add(transition)
        self.sampler.added()
        tally = self._tally
        tally.agent_steps += self._environments
        tally.episodes += int(transition.last_t.sum())
        tally.reward_limit = max(tally.reward_limit, float(np.abs(transition.r_t).max()))
        tally.r_max = max(tally.r_max, float(transition.r_t.max()))

    def lasting(self) -> dict[str, np.ndarray]:
        """What outlives an episode in its environments, `[E, ...]` by name; see `twin_graph.envs.lasting`."""
        return self._vector.lasting() if self._vector else {}

    def state(self) -> dict[str, np.ndarray]:
        """What a resume point keeps of it beside the replay, by name."""
        kept = {f"{ENVIRONMENT}{name}": array for name, array in self.lasting().items()}
        return kept | self.sampler.state()

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Takes back what `state` returned, once the replay is there. Raises `ForeignError` if the environments keep
        something else now."""
        self.sampler.restore(arrays)
        kept = {name.removeprefix(ENVIRONMENT): a for name, a in arrays.items() if name.startswith(ENVIRONMENT)}
        if self._vector and kept:
            self._vector.lend(kept)

    def due_updates(self, first: int) -> range:
        """The numbers, from `first` on, of the updates that are due at this agent step."""
        train = self._settings.train
        minibatches = (self._tally.agent_steps - train.start_steps) // train.every_steps
        return range(first, max(first, minibatches * self._settings.updates_per_minibatch))

    def sample(self, updates: range) -> Batch:
        """The minibatches of these updates, concatenated; the second call after this one overwrites them."""
        train, per_minibatch = self._settings.train, self._settings.updates_per_minibatch
        minibatches = range(updates.start // per_minibatch, updates.stop // per_minibatch)
        batch = self.sampler.sample(minibatches, self._buffer(len(minibatches) * train.examples))
        if train.random_shift:
            self._shift(batch, minibatches)
        return batch._replace(r_t=batch.r_t / np.float32(self._tally.r_max)) if train.rescale_r else batch

    def _shift(self, batch: Batch, minibatches: range) -> None:
        """Shifts the images of both `s_tm1` and `s_t`; each minibatch has its own random draws."""
        size = self._settings.train.examples
        channels = networks.channels_axis(self._settings.network, self._env)
        assert channels is not None  # see `ModelSpec.of`
        for i, minibatch in enumerate(minibatches):
            random = self._shifts.at(minibatch)
            for images in (batch.s_tm1, batch.s_t):
                part = images[i * size : (i + 1) * size]
                shift(np.moveaxis(part, 1 + channels, 1), self._settings.train.random_shift, random)

    def _buffer(self, transitions: int) -> Observations:
        """Arrays for this many observations, from two buffers in turn: one is trained on while the other is filled."""
        self._buffers.reverse()
        buffer = self._buffers[0]
        if buffer is None or len(buffer[0]) < transitions:
            shape, dtype = (transitions, *self._env.observation_shape), self._env.observation_dtype
            buffer = np.empty(shape, dtype), np.empty(shape, dtype)
            self._buffers[0] = buffer
        return buffer[0][:transitions], buffer[1][:transitions]
