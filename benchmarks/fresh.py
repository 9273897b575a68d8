"""Runs a part of a benchmark in a process of its own, so that no part inherits another's threads or memory."""

import json
import subprocess
import sys
from typing import Any


def in_a_process(program: str, *arguments: str) -> dict[str, Any]:
    """What `program` prints last, as JSON, when it is called with these arguments; ends this one if that fails."""
    done = subprocess.run([sys.executable, program, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{program} {' '.join(arguments)} failed:\n{done.stderr}")
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures
