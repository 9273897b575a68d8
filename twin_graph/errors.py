"""Every error that a person can cause or meet, with the exit code that the command line gives it."""


class TwinGraphError(Exception):
    """What went wrong and what to do about it, in one line."""

    exit_code = 1


class UsageError(TwinGraphError):
    """Known to be wrong from the command and the settings alone: nothing was started, nothing was written."""

    exit_code = 2


class DamagedError(TwinGraphError):
    """A record on disk is not what was written."""

    exit_code = 3


class DivergedError(TwinGraphError):
    """The loss stopped being a finite number."""


class WrongGraphError(TwinGraphError):
    """A tensor of one twin was run in, or fed to, the session of another."""


class TwinMismatchError(TwinGraphError):
    """Two twins do not hold the same variables, so that a snapshot of one cannot be restored into the other."""


class InUseError(TwinGraphError):
    """Another process trains, prunes or imports in this run."""

    exit_code = 4
