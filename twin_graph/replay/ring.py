"""Experience replay: a ring of single frames, from which stacks and n-step transitions are assembled when sampled.

A slot `i` of an environment holds what was known and done at its step `i`:

    slot            i           i+1          i+2
    frame           newest      newest       newest      of the observation s_i, s_i+1, s_i+2
    action          a_i         a_i+1        a_i+2
    reward          r_i+1       r_i+2        r_i+3       what followed a_i, a_i+1, a_i+2
    terminal, last              (of the step that a_i took)

An observation of `stack` frames is read back from slots `i-stack+1 .. i`; frames from before the episode's first slot
are zeros, as ALE pads them. All environments advance together, so that the slots that can be sampled are one range of
steps, the same for each of them.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

#: Arrays that make up a part of the ring, apart from the frames after cuts.
STORED = ("frames", "actions", "rewards", "terminal", "last", "age")


class Transition(NamedTuple):
    """One step of E environments.

    Attributes:
      s_tm1: what was observed before, `[E, *observation_shape]`.
      a_tm1: actions taken, integers `[E]`.
      r_t: rewards that followed, float32 `[E]`.
      terminal_t: bool `[E]`; no value follows this step (the game or a life is over).
      last_t: bool `[E]`; the episode ends here, by itself or by a cut; the next `s_tm1` is that of a reset.
      s_t: what was observed after, before any reset, `[E, *observation_shape]`.
    """

    s_tm1: np.ndarray
    a_tm1: np.ndarray
    r_t: np.ndarray
    terminal_t: np.ndarray
    last_t: np.ndarray
    s_t: np.ndarray


class Batch(NamedTuple):
    """B transitions of n steps.

    Attributes:
      s_tm1: `[B, *observation_shape]`.
      a_tm1: int32 `[B]`.
      r_t: float32 `[B]`, the discounted sum of the rewards of the n steps, or of fewer where the episode ended.
      discount_t: float32 `[B]`, discount**k after k steps, and 0 where a terminal step is among them.
      s_t: `[B, *observation_shape]`, the observation to bootstrap from; meaningless where `discount_t` is 0.
      step, environment: where they come from, integers `[B]`; steps are numbered from the first ever added.
      weight: float32 `[B]`, of each in the loss.
    """

    s_tm1: np.ndarray
    a_tm1: np.ndarray
    r_t: np.ndarray
    discount_t: np.ndarray
    s_t: np.ndarray
    step: np.ndarray
    environment: np.ndarray
    weight: np.ndarray


#: Where `s_tm1` and `s_t` of a Batch are to be put.
Observations = tuple[np.ndarray, np.ndarray]


class Replay:
    """Owns the ring. Its memory is reserved at once, and used as steps come in.

    Args:
      capacity_steps: agent steps kept, over all environments; rounded down to whole vector steps.
      environments: E.
      observation_shape: of one observation; its first axis is the stack if `stack` is above 1.
      dtype: NumPy type of observations.
      stack: frames that make up one observation; 1 for observations that are stored whole.
      n_step: steps until the bootstrap value.
      discount: per agent step.

    Attributes:
      length: vector steps kept.
    """

    def __init__(
        self,
        *,
        capacity_steps: int,
        environments: int,
        observation_shape: tuple[int, ...],
        dtype: np.typing.DTypeLike,
        stack: int,
        n_step: int,
        discount: float,
    ) -> None:
        self.length = capacity_steps // environments
        if self.length <= stack + n_step:
            raise ValueError(f"{capacity_steps} agent steps are too few for {environments} environments")
        self.environments = environments
        self._stack = stack
        self._n_step = n_step
        self._discount = discount
        self._observation_shape = observation_shape
        self._offsets = np.arange(stack - 1, -1, -1)  # oldest frame first
        frame_shape = observation_shape[1:] if stack > 1 else observation_shape
        per_slot = (self.length, environments)
        self._frames = np.zeros((*per_slot, *frame_shape), dtype)
        self._actions = np.zeros(per_slot, np.int32)
        self._rewards = np.zeros(per_slot, np.float32)
        self._terminal = np.zeros(per_slot, np.bool_)
        self._last = np.zeros(per_slot, np.bool_)
        self._age = np.zeros(per_slot, np.int64)  # steps since the episode began
        self._next_age = np.zeros(environments, np.int64)
        self._cut_frames: dict[int, dict[int, np.ndarray]] = {}  # slot -> environment -> frame seen after a cut
        self._newest = np.zeros((environments, *frame_shape), dtype)  # what followed the newest step
        self._written = 0

    @staticmethod
    def bytes_needed(
        capacity_steps: int, observation_shape: tuple[int, ...], dtype: np.typing.DTypeLike, stack: int
    ) -> int:
        """Memory of a full ring, in bytes."""
        frame = int(np.prod(observation_shape[1:] if stack > 1 else observation_shape)) * np.dtype(dtype).itemsize
        return capacity_steps * (frame + 4 + 4 + 1 + 1 + 8)

    def add(self, transition: Transition) -> None:
        """Appends one step of every environment, over the oldest one when full.

        Raises:
          ValueError: an episode begins with a stack whose older frames are not zeros; they could not be read back.
        """
        slot = self._written % self.length
        if self._stack > 1:
            if transition.s_tm1[self._next_age == 0, :-1].any():
                raise ValueError(
                    "the first observation of an episode must be one frame after frames of zeros; with Gymnasium's "
                    'FrameStackObservation use padding_type="zero"'
                )
            self._frames[slot] = transition.s_tm1[:, -1]
        else:
            self._frames[slot] = transition.s_tm1
        self._actions[slot] = transition.a_tm1
        self._rewards[slot] = transition.r_t
        self._terminal[slot] = transition.terminal_t
        self._last[slot] = transition.last_t
        self._age[slot] = self._next_age
        self._next_age = np.where(transition.last_t, 0, self._next_age + 1)
        # The slot after a cut holds a reset's frame, so that the one to bootstrap from is kept aside.
        self._cut_frames.pop(slot, None)
        self._newest[:] = transition.s_t[:, -1] if self._stack > 1 else transition.s_t
        self._keep_cut_frames(slot, transition.last_t & ~transition.terminal_t)
        self._written += 1

    @property
    def begins(self) -> bool:
        """Whether the next step is the first of an episode, in one environment at least."""
        return not self._next_age.all()

    def cut(self) -> None:
        """Ends the episode of every environment at the newest step, as a time limit does; nothing before the first."""
        if not self._written:
            return
        slot = (self._written - 1) % self.length
        self._keep_cut_frames(slot, ~self._last[slot] & ~self._terminal[slot])
        self._last[slot] = True
        self._next_age[:] = 0

    def _keep_cut_frames(self, slot: int, cut: np.ndarray) -> None:
        for e in np.flatnonzero(cut):
            self._cut_frames.setdefault(slot, {})[int(e)] = self._newest[e].copy()

    @property
    def step_bytes(self) -> int:
        """Memory of one vector step."""
        return sum(getattr(self, f"_{name}")[0].nbytes for name in STORED)

    @property
    def written(self) -> int:
        """Vector steps added so far."""
        return self._written

    @property
    def kept(self) -> range:
        """The vector steps that the ring holds."""
        return range(max(0, self._written - self.length), self._written)

    def stored(self, steps: range) -> dict[str, np.ndarray]:
        """What the ring holds of these steps, each in `kept`, as arrays that `restore` takes."""
        slots = np.arange(steps.start, steps.stop) % self.length
        cuts = [
            (i, e, frame) for i, slot in enumerate(slots) for e, frame in self._cut_frames.get(int(slot), {}).items()
        ]
        frames = np.zeros((len(cuts), *self._frames.shape[2:]), self._frames.dtype)
        for row, (_, _, frame) in enumerate(cuts):
            frames[row] = frame
        return {
            **{name: getattr(self, f"_{name}")[slots] for name in STORED},
            "cut": np.array([(i, e) for i, e, _ in cuts], np.int32).reshape(len(cuts), 2),
            "cut_frames": frames,
        }

    def restore(self, first_step: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores what `stored` returned for the steps from `first_step` on; call it in order, with no gaps.

        Raises:
          ValueError: the arrays do not fit this ring.
        """
        count = len(arrays["actions"])
        for name in STORED:
            ours, theirs = getattr(self, f"_{name}"), arrays[name]
            if theirs.dtype != ours.dtype or theirs.shape != (count, *ours.shape[1:]) or count > self.length:
                raise ValueError(f"{name} are {theirs.dtype}{list(theirs.shape)}")
        slots = np.arange(first_step, first_step + count) % self.length
        for name in STORED:
            getattr(self, f"_{name}")[slots] = arrays[name]
        for slot in slots:
            self._cut_frames.pop(int(slot), None)
        for (i, e), frame in zip(arrays["cut"], arrays["cut_frames"], strict=True):
            self._cut_frames.setdefault(int(slots[i]), {})[int(e)] = frame
        self._written = first_step + count
        self._next_age = np.where(self._last[slots[-1]], 0, self._age[slots[-1]] + 1)

    def steps(self) -> range:
        """The steps at which an n-step transition can start: its whole stack and its end are in the ring."""
        oldest = self._written - self.length
        first = 0 if oldest <= 0 else oldest + self._stack - 1
        return range(first, max(first, self._written - self._n_step))

    def sample(
        self, batch_size: int, randoms: Iterable[np.random.Generator], into: Observations | None = None
    ) -> Batch:
        """Minibatches drawn uniformly, with replacement, from all that can be sampled; one per generator, in one Batch.

        Args:
          batch_size: transitions of one minibatch.
          randoms: a generator for each.
          into: see `gather`.

        Raises:
          ValueError: there are none yet.
        """
        steps = self.steps()
        if not steps:
            raise ValueError("no transition of n steps is complete yet")
        count = len(steps) * self.environments
        drawn = np.concatenate([random.integers(0, count, size=batch_size) for random in randoms])
        return self.gather(steps.start + drawn // self.environments, drawn % self.environments, into)

    def gather(
        self,
        step: np.ndarray,
        environment: np.ndarray,
        into: Observations | None = None,
        limit: np.ndarray | None = None,
    ) -> Batch:
        """The transitions that start at these steps.

        Args:
          step: at which they start, integers `[B]`, each in `steps()`, or up to the newest with a `limit`.
          environment: of these environments, integers `[B]`.
          into: arrays for `s_tm1` and `s_t`, `[B, *observation_shape]` and contiguous; new ones by default. Reused
            arrays are faster: every page of new ones of this size must first be faulted in.
          limit: the step at which each is bootstrapped from at the latest, integers `[B]` up to `written`.
        """
        s_tm1, s_t = into or (None, None)
        r_t, discount_t, end = self._walk(step, environment, limit)
        start = self._at(step, environment)
        return Batch(
            s_tm1=self._observations(step, environment, self._age.ravel()[start], s_tm1),
            a_tm1=self._actions.ravel()[start],
            r_t=r_t,
            discount_t=discount_t,
            s_t=self._followed(end, environment, s_t),
            step=step,
            environment=environment,
            weight=np.ones(step.shape, np.float32),
        )

    def _at(self, step: np.ndarray, environment: np.ndarray) -> np.ndarray:
        """Where these steps are in a flattened array of the ring."""
        at: np.ndarray = step % self.length * self.environments + environment
        return at

    def _walk(
        self, step: np.ndarray, environment: np.ndarray, limit: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns `r_t` and `discount_t`, see `Batch`, and the step that is bootstrapped from: n later, or where the
        episode ended."""
        r_t = np.zeros(step.shape, np.float32)
        discount_t = np.ones(step.shape, np.float32)
        end = step.copy()
        going = np.ones(step.shape, np.bool_)
        rewards, terminal, last = (of.ravel() for of in (self._rewards, self._terminal, self._last))
        for _ in range(self._n_step):
            at = self._at(end, environment)
            ends = terminal[at]
            r_t += np.where(going, discount_t * rewards[at], 0)
            discount_t *= np.where(going, self._discount * ~ends, 1).astype(np.float32)
            end += going
            going &= ~(ends | last[at])
            if limit is not None:
                going &= end < limit
        return r_t, discount_t, end

    def _followed(self, end: np.ndarray, environment: np.ndarray, into: np.ndarray | None) -> np.ndarray:
        """What was observed after the steps before these, also after a cut, and after the newest step."""
        before_end = self._at(end - 1, environment)
        terminal, last, age = (of.ravel()[before_end] for of in (self._terminal, self._last, self._age))
        s_t = self._observations(end, environment, age + 1, into)
        newest_frame = s_t[:, -1] if self._stack > 1 else s_t
        cut = last & ~terminal
        for row in np.flatnonzero(cut):
            slot, e = divmod(int(before_end[row]), self.environments)
            newest_frame[row] = self._cut_frames[slot][e]
        ahead = (end == self._written) & ~cut
        newest_frame[ahead] = self._newest[environment[ahead]]
        return s_t

    def _observations(
        self, step: np.ndarray, environment: np.ndarray, age: np.ndarray, into: np.ndarray | None
    ) -> np.ndarray:
        """The stacks whose newest frames are those of `step`, with zeros for frames older than the episode."""
        slots = (step[:, None] - self._offsets) % self.length
        flat = self._frames.reshape(self.length * self.environments, -1)
        if into is None:
            into = np.empty((len(step), *self._observation_shape), self._frames.dtype)
        frames = into.reshape(len(step), self._stack, -1)
        # Every index is in range. With mode="raise" NumPy would gather into a copy first.
        np.take(flat, slots * self.environments + environment[:, None], axis=0, out=frames, mode="clip")
        frames[self._offsets > age[:, None]] = 0
        return into
