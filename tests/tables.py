"""Tables of inputs and the messages expected of them: data files, so that rewording a message edits no Python."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

MESSAGES = Path(__file__).parent / "data" / "messages"


def rows(file: str, table: str, *keys: str) -> list[Any]:
    """A table of tests/data/messages, for `parametrize`: the values of `keys`, of which the message is the last.

    The others are the test's id, so that it stays the same when the message is reworded.
    """
    found = tomllib.loads((MESSAGES / f"{file}.toml").read_text(encoding="utf-8"))[table]
    for row in found:
        assert row.keys() == {*keys}, f"{file}.toml: {row}"
    return [pytest.param(*(row[key] for key in keys), id="-".join(str(row[key]) for key in keys[:-1])) for row in found]
