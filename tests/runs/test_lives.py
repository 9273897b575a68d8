"""`tests/crash/lives.py` in short: what happens to runs is what their records say, and recurs."""

import random
from pathlib import Path

import pytest
from lives import Life


@pytest.mark.parametrize("number", [1, 2, 8])
def test_the_records_of_a_life_say_what_happened(tmp_path: Path, number: int) -> None:
    life = Life(tmp_path, random.Random(number))
    life.live()
    assert all(life.seen[what] > 0 for what in ("updates explained", "depths", "page", "reproduced"))
