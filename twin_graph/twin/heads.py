"""What a network's outputs mean: a value of each action, or a distribution of its return.

`model.head` names one. Each is a plain class with

    axes                           of what a target supplies of each action: none of a value, N of a distribution
    samples                        how many levels are drawn for each use, None where none are
    q_values(outputs)              the expectation, float32 `[B, A]`
    supplied(outputs)              what a target supplies: the value `[B, A]`, probabilities or quantiles `[B, A, N]`
    expectation(supplied)          the expectation of that, float32 `[B, A]`
    with_illegal(outputs, legal)   the same, such that no illegal action is ever the best
    target(r_t, discount_t, best)  of a distribution: what its action is to become, float32 `[B, N]`

where outputs are what the network returns, `[B, A]` or `[B, A, N]`. B examples, A actions.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from twin_graph.config.settings import ATOMS
from twin_graph.envs.legal import ILLEGAL
from twin_graph.twin.tf import function, tf

if TYPE_CHECKING:
    from collections.abc import Callable

    from twin_graph.config.settings import ModelSettings

Tensor = Any
_SALT = zlib.crc32(b"levels") >> 1
_FAR = 1e9  # between logits: the probability of the smaller is 0


class Samples(NamedTuple):
    """How many levels of quantiles are drawn: to learn, to supply a target, and to act. N, N' and K of Dabney et al.
    2018b."""

    learning: int
    target: int
    acting: int


Use = Literal["learning", "target", "acting"]


class Scalar:
    """The expected return of each action."""

    axes: tuple[int, ...] = ()
    samples: Samples | None = None

    def q_values(self, outputs: Tensor) -> Tensor:
        return outputs

    def supplied(self, outputs: Tensor) -> Tensor:
        return outputs

    def expectation(self, supplied: Tensor) -> Tensor:
        return supplied

    def with_illegal(self, outputs: Tensor, legal: Tensor) -> Tensor:
        return tf.where(legal, outputs, tf.fill(tf.shape(outputs), ILLEGAL))


class Categorical:
    """Probabilities of N returns, evenly spaced over a fixed support (C51, Bellemare et al. 2017). Outputs are logits.

    Args:
      support: the lowest and the highest return.
      atoms: N.

    Attributes:
      returns: the N returns, float32.
    """

    samples: Samples | None = None

    def __init__(self, support: tuple[float, float], atoms: int) -> None:
        self.axes = (atoms,)
        self.returns = np.linspace(*support, atoms, dtype=np.float32)

    def q_values(self, outputs: Tensor) -> Tensor:
        return self.expectation(self.supplied(outputs))

    def supplied(self, outputs: Tensor) -> Tensor:
        return tf.nn.softmax(outputs)

    def expectation(self, supplied: Tensor) -> Tensor:
        return tf.reduce_sum(supplied * self.returns, axis=-1)

    def with_illegal(self, outputs: Tensor, legal: Tensor) -> Tensor:
        """Illegal actions have the lowest return for certain: no legal one is worse, and one as good has the same."""
        lowest = np.full(self.axes, -_FAR, np.float32)
        lowest[0] = 0.0
        return tf.where(_of_each_atom(legal, outputs), outputs, tf.zeros_like(outputs) + lowest)

    def target(self, r_t: Tensor, discount_t: Tensor, probabilities_t: Tensor) -> Tensor:
        """The distribution of `r_t + discount_t * Z`, projected to the support (algorithm 1), float32 `[B, N]`.

        Compiled by XLA in a loop over atoms, like `quantile_huber`.

        Args:
          r_t, discount_t: float32 `[B]`.
          probabilities_t: of Z, the return from the best next action, float32 `[B, N]`.
        """
        lowest, highest = self.returns[0], self.returns[-1]
        spacing = (highest - lowest) / (len(self.returns) - 1)

        def projected(r_t: Tensor, discount_t: Tensor, probabilities_t: Tensor) -> Tensor:
            moved = tf.clip_by_value(r_t[:, None] + discount_t[:, None] * self.returns, lowest, highest)

            def add(j: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
                # A moved return gives its probability to its two neighbours, to the nearer one more.
                distance = tf.abs(tf.gather(moved, j, axis=1)[:, None] - self.returns) / spacing
                share = tf.nn.relu(1.0 - distance)
                return j + 1, mass + share * tf.gather(probabilities_t, j, axis=1)[:, None]

            atoms, none = len(self.returns), tf.zeros_like(probabilities_t)
            return tf.while_loop(lambda j, _: j < atoms, add, (tf.constant(0), none))[1]

        return function(projected, jit_compile=True, autograph=False)(r_t, discount_t, probabilities_t)

    def bell_curve(self, value: Tensor, sigma: float) -> Tensor:
        """A normal distribution around a value, cut off at the ends of the support (HL-Gauss, Farebrother et al. 2024).

        Each atom has the mass between the middles to its neighbours; section 3 there.

        Args:
          value: float32 `[B]`; beyond the support, its end.
          sigma: standard deviation, in distances between atoms.

        Returns:
          float32 `[B, N]`.
        """
        spacing = float(self.returns[1] - self.returns[0])
        edges = np.append(self.returns, self.returns[-1] + spacing) - spacing / 2
        middle = tf.clip_by_value(value, self.returns[0], self.returns[-1])[:, None]
        below = tf.math.erf((edges - middle) / np.float32(2**0.5 * sigma * spacing))
        return (below[:, 1:] - below[:, :-1]) / (below[:, -1:] - below[:, :1])


def _of_each_atom(legal: Tensor, outputs: Tensor) -> Tensor:
    """Of actions `[B, A]`, of all their numbers `[B, A, N]`."""
    return tf.logical_and(legal[..., None], tf.ones_like(outputs, tf.bool))


def cross_entropy(logits_tm1: Tensor, probabilities: Tensor) -> Tensor:
    """`-sum_i m_i log p_i`, float32 `[B]`: the Kullback-Leibler divergence, but for what the gradient does not see."""
    return -tf.reduce_sum(probabilities * tf.nn.log_softmax(logits_tm1), axis=1)


class Quantile:
    """Returns at the N quantile levels (2i - 1) / 2N (QR-DQN, Dabney et al. 2018).

    Args:
      atoms: N.
    """

    samples: Samples | None = None

    def __init__(self, atoms: int) -> None:
        self.axes = (atoms,)

    def q_values(self, outputs: Tensor) -> Tensor:
        return tf.reduce_mean(outputs, axis=-1)

    def supplied(self, outputs: Tensor) -> Tensor:
        return outputs

    def expectation(self, supplied: Tensor) -> Tensor:
        return tf.reduce_mean(supplied, axis=-1)

    def with_illegal(self, outputs: Tensor, legal: Tensor) -> Tensor:
        return tf.where(_of_each_atom(legal, outputs), outputs, tf.fill(tf.shape(outputs), ILLEGAL))

    def target(self, r_t: Tensor, discount_t: Tensor, quantiles_t: Tensor) -> Tensor:
        """The quantiles of `r_t + discount_t * Z`, float32 `[B, N]`; arguments as of `Categorical.target`."""
        return r_t[:, None] + discount_t[:, None] * quantiles_t


class Implicit(Quantile):
    """Returns at levels that are drawn from (0, 1) for each example (IQN, Dabney et al. 2018b).

    The network embeds the levels, see `networks.Build.features`, so that it can be asked for any number of them.

    Args:
      samples: how many levels are drawn.
    """

    def __init__(self, samples: Samples) -> None:
        super().__init__(samples.target)
        self.samples: Samples = samples

    def levels(self, count: int, key: Tensor | None, batch: Tensor) -> Tensor:
        """Levels of quantiles, float32 `[batch, count]`, a function of the key; evenly spread without one, or if its
        first number is negative."""
        even = tf.ones(tf.stack([batch, 1])) * ((np.arange(count, dtype=np.float32) + 0.5) / count)
        if key is None:
            return even
        drawn = tf.random.stateless_uniform([batch, count], tf.bitwise.bitwise_xor(key, [_SALT, 0]))
        return tf.where(key[0] < 0, even, drawn)


def quantile_huber(
    quantiles_tm1: Tensor, quantiles: Tensor, kappa: float = 1.0, levels: Tensor | None = None
) -> Tensor:
    """`sum_i mean_j |tau_i - 1(u_ij < 0)| L_kappa(u_ij) / kappa` with `u_ij = target_j - quantile_i` (equation 10).

    Compiled by XLA, with its gradient, in a loop over targets: what is computed of all pairs at once leaves the caches.
    For 64 examples of 200 quantiles that takes 20 times as long op by op, and three times in one program.

    Args:
      quantiles_tm1: of the action taken, at the levels `tau_i`, float32 `[B, N]`.
      quantiles: of its target, float32 `[B, N']`.
      kappa: up to which an error is squared.
      levels: `tau_i`, float32 `[B, N]`; by default evenly spread.

    Returns:
      Each example's loss, float32 `[B]`.
    """
    atoms, goals = int(quantiles_tm1.shape[1]), int(quantiles.shape[1])
    if levels is None:
        levels = tf.constant((np.arange(atoms, dtype=np.float32) + 0.5) / atoms)

    def loss_and_slope(quantiles_tm1: Tensor, quantiles: Tensor, levels: Tensor) -> tuple[Tensor, Tensor]:
        def add(j: Tensor, loss: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            error = tf.gather(quantiles, j, axis=1)[:, None] - quantiles_tm1
            inside = tf.clip_by_value(error, -kappa, kappa)
            weighted = inside * tf.abs(levels - tf.cast(error < 0, tf.float32))
            return j + 1, loss + weighted * (error - inside / 2), slope - weighted

        none = tf.zeros_like(quantiles_tm1)
        _, loss, slope = tf.while_loop(lambda j, *_: j < goals, add, (tf.constant(0), none, none))
        return tf.reduce_sum(loss, axis=1) / (goals * kappa), slope / (goals * kappa)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def compiled(quantiles_tm1: Tensor, quantiles: Tensor) -> tuple[Tensor, Callable[[Tensor], Any]]:
        loss, slope = function(loss_and_slope, jit_compile=True, autograph=False)(quantiles_tm1, quantiles, levels)
        return loss, lambda of_loss: (of_loss[:, None] * slope, None)

    found: Tensor = compiled(quantiles_tm1, quantiles)
    return found


Head = Scalar | Categorical | Quantile | Implicit
#: What is minimized between the outputs for the action taken and its target, unless `loss` names a function.
LOSSES: dict[type[Any], Callable[[Tensor, Tensor], Tensor]] = {
    Categorical: cross_entropy,
    Quantile: quantile_huber,
    Implicit: quantile_huber,
}


def of(model: ModelSettings) -> Head:
    """The head that these settings name."""
    if model.head == "scalar":
        return Scalar()
    atoms = model.atoms or ATOMS[model.head]
    if model.head == "implicit":
        return Implicit(Samples(atoms, model.atoms_of_target, model.atoms_of_acting))
    return Quantile(atoms) if model.head == "quantile" else Categorical((model.support[0], model.support[1]), atoms)
