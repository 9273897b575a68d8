"""Snapshots that are held together, each by a twin, and their combined Q values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from twin_graph.errors import DamagedError

if TYPE_CHECKING:
    from twin_graph.config.settings import TrainSettings
    from twin_graph.snapshots.ledger import Commit
    from twin_graph.snapshots.store import SnapshotStore
    from twin_graph.twin.twin import Twin

TARGET_BATCH = 128  # observations
_FEW_NUMBERS = 32_768


def blocks(observations: np.ndarray) -> Iterator[np.ndarray]:
    """These observations in blocks of `TARGET_BATCH`; larger ones are no faster and need more memory.

    Vectors go in larger blocks: their networks are cheaper to compute than to call.
    """
    rows = max(TARGET_BATCH, _FEW_NUMBERS // observations[0].size)
    return (observations[i : i + rows] for i in range(0, len(observations), rows))


class Ensemble:
    """Twins that hold snapshots, often a single one; closed by `close()`.

    Args:
      name: of what it serves, `target` or `opponent`.
      make: makes a twin of the given name.
      members: how many twins there are.
      combine: how they are combined: the `min` or `mean` of their Q values per action, or `weights`: one network with
        their mean weights.

    Attributes:
      twins: in no particular order.
      active: those that hold a snapshot, in the policy's order.
    """

    def __init__(self, name: str, make: Callable[[str], Twin], *, members: int, combine: str) -> None:
        names = [name] if members == 1 else [f"{name} {i}" for i in range(members)]
        self.twins = [make(name) for name in names]
        self._combine = np.min if combine == "min" else np.mean
        self._average = make(f"average {name}") if combine == "weights" else None
        self.active: list[Twin] = []

    def close(self) -> None:
        """Ends the sessions."""
        for twin in [*self.twins, *([self._average] if self._average else [])]:
            twin.close()

    @property
    def snapshots(self) -> tuple[str, ...]:
        """The ids of what the twins hold."""
        return tuple(twin.snapshot_id for twin in self.active)

    def restore(self, snapshots: Sequence[Commit], store: SnapshotStore) -> None:
        """Loads these snapshots, one per twin; a member that stays is not loaded again.

        Raises:
          DamagedError: the weights of one cannot be restored, or are not those committed; nothing was changed.
        """
        wanted = {snapshot.id for snapshot in snapshots}
        free = [twin for twin in self.twins if twin.snapshot_id not in wanted]
        before = [(twin, twin.snapshot_id, twin.weights()) for twin in free]
        holding = {twin.snapshot_id: twin for twin in self.twins if twin.snapshot_id in wanted}
        try:
            for snapshot in snapshots:
                if snapshot.id not in holding:
                    holding[snapshot.id] = free.pop()
                    holding[snapshot.id].restore_snapshot(snapshot, store)
        except DamagedError:
            for twin, snapshot_id, weights in before:
                twin.load(weights)
                twin.snapshot_id = snapshot_id
            raise
        self.active = [holding[snapshot.id] for snapshot in snapshots]
        if self._average:
            self._average.load(self.weights())

    def q_values(self, observations: np.ndarray, noise_key: np.ndarray | None = None) -> np.ndarray:
        """Q values, float32 `[B, A]`, of observations `[B, *observation_shape]`; `noise_key` as in `Twin.q_values`."""
        return self._combined([twin.q_values(observations, noise_key=noise_key) for twin in self._supplying])

    def supplied(self, observations: np.ndarray, noise_key: np.ndarray | None = None) -> np.ndarray:
        """What it supplies as a target; see `Twin.supplied`. Of several members, each number's mean, or minimum."""
        return self._combined([twin.supplied(observations, noise_key) for twin in self._supplying])

    @property
    def _supplying(self) -> list[Twin]:
        return [self._average] if self._average else self.active

    def _combined(self, values: Sequence[np.ndarray]) -> np.ndarray:
        combined: np.ndarray = values[0] if len(values) == 1 else self._combine(values, axis=0)
        return combined

    def for_updates(
        self, train: TrainSettings, s_tm1: np.ndarray, s_t: np.ndarray, noise_key: np.ndarray | None
    ) -> dict[str, np.ndarray]:
        """What updates need of a target, by its name in `Model`; evaluated in blocks, with the same noise, if any.

        Args:
          train: settings.
          s_tm1, s_t: of many examples, `[B, *observation_shape]`.
          noise_key: as in `Twin.q_values`.
        """
        found = {}
        if train.target_q:
            found["q_target_t"] = np.concatenate([self.supplied(block, noise_key) for block in blocks(s_t)])
        if train.munchausen:
            other = None if noise_key is None else noise_key + 1  # or levels of quantiles would be those at s_t
            found["q_target_tm1"] = np.concatenate([self.q_values(block, other) for block in blocks(s_tm1)])
        return found

    def weights(self) -> dict[str, np.ndarray]:
        """The members' mean weights by name."""
        every = [twin.weights() for twin in self.active]
        return every[0] if len(every) == 1 else {name: np.mean([w[name] for w in every], axis=0) for name in every[0]}

    def changed(self, store: SnapshotStore) -> str:
        """The id of the first snapshot whose twin holds other weights than the snapshot's; empty if there is none."""
        held = zip(self.snapshots, self.active, strict=True)
        return next((i for i, twin in held if twin.weights_sha256() != store.find(i).weights_sha256), "")
