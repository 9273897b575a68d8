"""Pictures with letters that matplotlib's own font lacks, as names may have: in fonts of the system that have them."""

import functools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from twin_graph.base.fonts import having

_OWN = "DejaVu Sans"


def save(figure: Figure, file: Path | IO[bytes], **options: Any) -> None:
    """Writes a picture, as `Figure.savefig` does; what no font has is a box there, without a warning for each."""
    texts = figure.findobj(Text)
    families, _ = _fonts_for(_lacking(text.get_text() for text in texts))
    for text in texts if families else ():
        text.set_fontfamily([_OWN, *families])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        figure.savefig(file, **options)


def without_font(texts: Iterable[str]) -> Iterator[str]:
    """A sentence on the letters of these texts that no font of this system has, if there are any."""
    _, letters = _fonts_for(_lacking(texts))
    if letters:
        some = letters if len(letters) <= 8 else f"{letters[:8]}..."
        advice = "fonts such as those of Debian's fonts-noto-cjk may have them"
        yield f"no font of this system has {some}: pictures show boxes instead; {advice}"


def _lacking(texts: Iterable[str]) -> str:
    """The letters that matplotlib's own font lacks."""
    own = font_manager.get_font(font_manager.findfont(_OWN)).get_charmap()
    return "".join(sorted({c for text in texts for c in text if ord(c) not in own and not c.isspace()}))


@functools.cache
def _fonts_for(letters: str) -> tuple[tuple[str, ...], str]:
    """Families that have these letters together, one of them if possible, and the letters that none has."""
    if not letters:
        return (), ""
    paths, left = having(letters)[:1], ""
    if not paths:
        of_each = {letter: having(letter)[:1] for letter in letters}
        paths = list(dict.fromkeys(path for found in of_each.values() for path in found))
        left = "".join(letter for letter, found in of_each.items() if not found)
    for path in paths:
        font_manager.fontManager.addfont(path)
    return tuple(font_manager.get_font(path).family_name for path in paths), left
