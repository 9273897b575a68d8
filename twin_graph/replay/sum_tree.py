"""Draws in proportion to a weight, for prioritized replay."""

import numpy as np


class SumTree:
    """Numbers with a tree of their sums, so that one can be drawn in proportion to its size in logarithmic time.

    Each call works on many at once. Each sum is recomputed from its two parts, so that no rounding error accumulates.

    Args:
      size: how many numbers; all begin at zero.
    """

    def __init__(self, size: int) -> None:
        self._leaves = 1 << max(1, (size - 1).bit_length())
        self._nodes = np.zeros(2 * self._leaves)  # node i has the children 2i and 2i + 1; the root is 1

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def get(self, index: np.ndarray) -> np.ndarray:
        """The numbers at `index`, float64 of its shape."""
        numbers: np.ndarray = self._nodes[self._leaves + index]
        return numbers

    def set(self, index: np.ndarray, value: np.ndarray) -> None:
        """Changes the numbers at `index` `[N]`; for an index that occurs twice, the last value counts."""
        if not len(index):
            return
        node = self._leaves + index
        self._nodes[node] = value
        while node[0] > 1:
            node = node // 2
            self._nodes[node] = self._nodes[2 * node] + self._nodes[2 * node + 1]

    def find(self, sums: np.ndarray) -> np.ndarray:
        """Indices `[N]` of the first numbers at which the cumulative sum exceeds each of `sums` `[N]`.

        A number that is zero is never found, if there is any other.
        """
        node = np.ones(len(sums), np.int64)
        left_over = sums.copy()
        while node[0] < self._leaves:
            left, right = self._nodes[2 * node], self._nodes[2 * node + 1]
            goes_right = (left_over >= left) & (right > 0)  # rounding may leave a bit too much at the very end
            left_over = np.where(goes_right, left_over - left, left_over)
            node = 2 * node + goes_right
        return node - self._leaves
