"""Why a process that this one started has ended."""

import signal
from pathlib import Path


def killed(code: int) -> str:
    """One line for people: which signal killed a process with this exit code, a negative one."""
    names = {one.value: one.name for one in signal.Signals}  # not all real-time signals have one
    return f"killed by {names.get(-code, f'signal {-code}')}"


def why(code: int, log: Path, since: int) -> str:
    """One line for people: the signal, or what the process said last.

    Args:
      code: its exit code, negative if a signal killed it.
      log: a file to which it appended what it printed.
      since: how many bytes were in it before: others may have failed otherwise.
    """
    if code < 0:
        return killed(code)
    content = log.read_bytes() if log.exists() else b""  # somebody may tidy up
    lines = content[since:].decode(errors="replace").splitlines()
    said = next((line for line in reversed(lines) if line.startswith("Error: ")), "")
    return said.removeprefix("Error: ") or ": ".join([f"exit code {code}", *lines[-1:]])
