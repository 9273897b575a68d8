"""How numbers, commands and wrong values are worded, in one place."""

import difflib
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from twin_graph.base.here import shortened

_MUST_BE = {
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_parsing": "a number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list, such as [8, 8]",
    "dict_type": "a table of names and values",
    "model_type": "a group of settings: set one of them, by its dotted name",
    "greater_than": "above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "below {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "a list of at least {min_length}",
    "too_long": "a list of at most {max_length}",
}


def counted(number: int, thing: str) -> str:
    """`1 snapshot`, `2,500 snapshots`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def interval_before(interval: Sequence[float] | None) -> str:
    """`95% interval 9.00 to 12.50, `, to be followed by the number of games; nothing if there is no interval."""
    return "" if interval is None else f"95% interval {interval[0]:z.2f} to {interval[1]:z.2f}, "


def listed(names: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def as_people_count(name: str) -> list[str | int]:
    """A key to sort by: `Variable_2` before `Variable_10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def some_of(names: Iterable[str]) -> str:
    """The first eight as people count: `Variable, Variable_1, ...`."""
    ordered = sorted(names, key=as_people_count)
    return ", ".join(ordered[:8]) + (", ..." if len(ordered) > 8 else "")


def size(count: int) -> str:
    """So many bytes: `3.4 MB`, `1.3 GB`."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def assigned(values: Mapping[str, Any]) -> str:
    """`length=12, name='x'`."""
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def command(*words: object) -> str:
    """A `twin-graph` command that can be pasted into a shell."""
    return shlex.join(["twin-graph", *(_path(word) if isinstance(word, Path) else str(word) for word in words)])


def _path(path: Path) -> str:
    """One as it was given, that is not taken for an option."""
    given = shortened(str(path))  # before it is quoted for a shell
    return f"./{given}" if given.startswith("-") else given


def what_is_wrong(error: Any) -> str:
    """What pydantic found wrong with a value (one of `ValidationError.errors()`), for people."""
    if must_be := _MUST_BE.get(error["type"]):
        return f"must be {must_be.format(**error.get('ctx', {}))}"
    message = str(error["msg"]).removeprefix("Value error, ")
    return message[0].lower() + message[1:]


def first_line(error: Exception) -> str:
    """Of what an error says; its type's name if it says nothing."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def nearest(name: str, known: Iterable[str]) -> str:
    """`; did you mean X?` for the name most like this one, or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean {close[0]!r}?" if close else ""


# What a terminal obeys, or what turns the order of letters round: all but tab and the end of a line.
_COMMANDS = (*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_SHOWN = {code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" for code in _COMMANDS if chr(code) not in "\t\n"}


def printable(text: str, *, one_line: bool = False) -> str:
    """A text with what a terminal would obey spelled out: texts of records are anybody's.

    Args:
      text: whatever it is.
      one_line: also ends of lines, so that it cannot pass for more than one.
    """
    shown = text.translate(_SHOWN)
    return shown.replace("\n", "\\n") if one_line else shown
