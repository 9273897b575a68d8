"""Every error that users can cause or meet, with its exit code on the command line."""

import re
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

#: Exit code of a command that a person interrupted.
INTERRUPTED_EXIT_CODE = 130


class TwinGraphError(Exception):
    """What went wrong and what to do about it, in one line."""

    exit_code = 1


class UsageError(TwinGraphError):
    """The command or the settings are wrong; where this is known in advance, nothing is started or written."""

    exit_code = 2


class CompleteError(UsageError):
    """A run that is to be trained is complete, or has reached the score at which it ends."""


class UntrustedError(UsageError):
    """The settings of a run name code that its reader has not trusted; see `twin_graph.config.trust`."""


class DamagedError(TwinGraphError):
    """A record on disk is not what was written."""

    exit_code = 3


class DivergedError(TwinGraphError):
    """A loss or a variable is NaN or infinite: to train on from the same point would end so again."""

    exit_code = 5


class WrongGraphError(TwinGraphError):
    """A tensor of one twin was run in, or fed to, the session of another."""


class TwinMismatchError(TwinGraphError):
    """Two twins do not hold the same variables, so that a snapshot of one cannot be restored into the other."""


class NoWorkerError(TwinGraphError):
    """Every worker of an asynchronous run has died too often."""


class InUseError(TwinGraphError):
    """Another process trains, prunes or imports in this run."""

    exit_code = 4


class MovedError(TwinGraphError):
    """A folder that this process writes to is no longer where it was.

    Attributes:
      there: where it is now; None where that is not known, or it was removed.
    """

    def __init__(self, folder: Path, there: Path | None) -> None:
        self.there = there
        now = f" or renamed while it was in use: continue by its new name, {there}"
        super().__init__(f"{folder} was moved{now if there else ', renamed or removed while it was in use'}")


class ForeignError(TwinGraphError):
    """Code from outside twin-graph failed: an environment, or a policy, loss and so on of the user's own."""


def foreign_error(whose: str, error: BaseException) -> ForeignError:
    """What to raise where code that is not ours failed: an error that says whose it was, and where.

    Args:
      whose: for example `MyEnv-v0, environment 3, step`.
      error: as it was raised.
    """
    return ForeignError(f"{whose}: {type(error).__name__}: {one_line(error)} ({place(error)})")


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks, colours, and the arguments that Keras adds."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("\nArguments received by ")[0]
    return " ".join(text.split())


def place(error: BaseException) -> str:
    """File, line and function where an error was raised; those of the user's own code, if it was involved."""
    frames = list(traceback.walk_tb(error.__traceback__))
    frame, line = next(((f, n) for f, n in reversed(frames) if not _of_a_library(f)), frames[-1])
    return f"{frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"


def _of_a_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    return package in ("twin_graph", "twin_graph_cli") or frame.f_code.co_filename.startswith((*libraries, "<"))
