"""Fonts of this system, by the letters that they have."""

import subprocess
from pathlib import Path

_SECONDS = 10.0  # where fontconfig makes its cache first


def having(text: str) -> list[Path]:
    """Files of fonts with all of these letters, upright ones without serifs first; none where fontconfig is missing."""
    letters = " ".join(sorted({f"{ord(letter):x}" for letter in text if not letter.isspace()}))
    command = ["fc-list", f":charset={letters}", "--format=%{file}\t%{family}\t%{style}\n"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError, UnicodeError):
        return []
    found = [line.split("\t") for line in listed.splitlines() if line.count("\t") == 2]
    return [Path(file) for file, family, style in sorted(found, key=lambda font: (_oddity(*font[1:]), font))]


def _oddity(family: str, style: str) -> int:
    """How far a font is from an upright one without serifs."""
    upright = ("Regular", "Book", "Roman", "Normal")
    return 2 * ("Sans" not in family) + (not any(name in style for name in upright)) + ("Mono" in family)
