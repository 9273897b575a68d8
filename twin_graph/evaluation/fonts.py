"""Fonts of films: Pillow's own, and another for letters that it lacks, as those with accents and of other alphabets."""

from __future__ import annotations

import functools
import importlib.util
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from twin_graph.base.fonts import having


def load(path: Path | None, size: float) -> Any:
    """A font of Pillow's, of so many pixels; without a path its own."""
    from PIL import ImageFont

    return ImageFont.truetype(str(path), size) if path else ImageFont.load_default(size)


@functools.lru_cache(maxsize=256)
def legible(text: str) -> tuple[Path | None, str]:
    """The font of a text, for `load`, and how it can be written: a letter that no font has by its number."""
    text = unicodedata.normalize("NFC", text)
    for path in _fonts(text):
        if not _missing(path, text):
            return path, text
    path = min(_fonts(""), key=lambda path: len(_missing(path, text)))
    missing = _missing(path, text)
    return path, "".join(
        letter.encode("ascii", "backslashreplace").decode() if letter in missing else letter for letter in text
    )


def _fonts(text: str) -> Iterator[Path | None]:
    """Pillow's own, that of pygame, which comes with the extra `video`, and those of the system that have a text."""
    yield None
    found = importlib.util.find_spec("pygame")
    if found and found.origin and (path := Path(found.origin).with_name("freesansbold.ttf")).exists():
        yield path
    if text:
        yield from having(text)


def _missing(path: Path | None, text: str) -> set[str]:
    """The letters of a text that a font shows as it shows what no font has: as a box, or not at all."""
    font = load(path, 20)
    box = _drawn(font, "\ufffe")
    return {letter for letter in text if not letter.isspace() and _drawn(font, letter) == box}


def _drawn(font: Any, letter: str) -> bytes | None:
    try:
        mask = font.getmask(letter)
    except (UnicodeError, OSError):  # half of a letter, as of a name that is not UTF-8
        return None
    return bytes(mask) + bytes(mask.size)
