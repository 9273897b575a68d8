"""The entry point `twin-graph`: the list of commands, and errors as one line with an exit code."""

import difflib
import errno
import functools
import gc
import importlib
import os
import signal
import sys

import click

from twin_graph.base import modules
from twin_graph.base.here import began_here, shortened
from twin_graph.base.signals import WARNINGS, set_stops
from twin_graph.base.text import printable
from twin_graph.errors import INTERRUPTED_EXIT_CODE, TwinGraphError, place

from .params import ReaderGoneError, foreign_output_apart

_SAYS_ENOUGH = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)

# Command -> module that defines it, and what the list says of it. A module is imported when its command runs, so that
# commands that read records do not wait for TensorFlow.
COMMANDS = {
    "train": ("train", "Train an agent."),
    "resume": ("resume", "Continue a run that ended or was killed."),
    "cluster": ("cluster", "Run a parameter server or a worker of an asynchronous run."),
    "fork": ("fork", "Start a new run from a resume point of another."),
    "point": ("fork", "Make a resume point now."),
    "reproduce": ("reproduce", "Train part of a run again, and compare it with the record."),
    "status": ("records", "Show how a run is doing."),
    "runs": ("records", "List runs."),
    "log": ("records", "List the snapshots of a run."),
    "show": ("records", "Show one snapshot."),
    "explain": ("records", "Show which snapshot an update was bootstrapped from, and why."),
    "view": ("view", "Show runs in a browser, even while they train."),
    "compare": ("compare", "Show where two runs diverge, and by how much."),
    "diff": ("exchange", "Compare the weights of two snapshots."),
    "verify": ("care", "Check a run's files against their recorded hashes."),
    "swap": ("swap", "Restore a snapshot of your choice into a twin."),
    "pin": ("care", "Keep a snapshot's weights."),
    "unpin": ("care", "Unpin a snapshot, so that retention may remove its weights."),
    "prune": ("care", "Remove weights that retention would not keep."),
    "push": ("remote", "Send a run to a bucket or another folder."),
    "pull": ("remote", "Fetch a run that was sent somewhere."),
    "export": ("exchange", "Write a snapshot for other programs."),
    "import": ("exchange", "Import weights from another program."),
    "average": ("exchange", "Average the weights of snapshots into a new one."),
    "evaluate": ("evaluate", "Measure the true score of a snapshot."),
    "play": ("selfplay", "Play against a snapshot, in games of two players."),
    "tournament": ("selfplay", "Rate snapshots that play each other."),
    "record": ("record", "Film a snapshot while it plays."),
    "experiment": ("experiment", "Compare settings over several seeds."),
    "presets": ("machine", "List the presets, or all settings of one."),
    "doctor": ("machine", "Check this machine, and estimate how long training takes on it."),
}


@functools.cache
def _command(name: str) -> click.Command:
    module = importlib.import_module(f".{COMMANDS[name][0]}", __package__)
    command: click.Command = getattr(module, "import_" if name == "import" else name)
    for one in (command, *getattr(command, "commands", {}).values()):
        one.callback = foreign_output_apart()(one.callback)
    return command


class Commands(click.Group):
    """A group whose commands are imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        if name not in COMMANDS:
            return None
        return _command(name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        near = difflib.get_close_matches(args[0], COMMANDS, 1)
        if args[0] not in COMMANDS and near:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_text) for name, (_, help_text) in COMMANDS.items()])


@click.group(cls=Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.version_option(package_name="twin-graph", prog_name="twin-graph")
@click.pass_context
def cli(ctx: click.Context, debug: bool) -> None:  # noqa: ARG001
    """Deep Q-learning on twin TensorFlow graphs; the target network is a snapshot on disk.

    \b
    Example:
      twin-graph train cartpole
      twin-graph runs
      twin-graph log cartpole-seed1-1
    """
    ctx.with_resource(began_here())


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise ReaderGoneError from None


def _tell(error: str) -> None:
    click.echo(printable(shortened(f"Error: {error}")), err=True)


def _run(debug: bool) -> object:
    """Runs the command; returns its exit code, or what it returns instead."""
    given = sys.stdout
    try:
        # Before the command or after it, as messages that propose it do not say where.
        code: object = cli.main([argument for argument in sys.argv[1:] if argument != "--debug"], standalone_mode=False)
        _flush()
    except click.exceptions.Abort:
        click.echo("interrupted", err=True)
        code = INTERRUPTED_EXIT_CODE
    except (ReaderGoneError, SystemExit) as error:
        # click itself exits with 1 where stdout is closed, and leaves a stand-in for it.
        if isinstance(error, SystemExit) and sys.stdout is given:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), given.fileno())
        code = 0
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except TwinGraphError as error:
        if debug:
            raise
        _tell(str(error))
        code = error.exit_code
    except OSError as error:
        if debug:
            raise
        where = f" ({error.filename})" if error.filename else ""
        hint = "" if error.errno in _SAYS_ENOUGH else "; --debug shows where it came from"
        _tell(f"{error.strerror or error}{where}{hint}")
        code = 1
    except MemoryError as error:
        if debug:
            raise
        what = f" ({error})" if str(error) else ""
        advice = "end other programs, or set replay.capacity_steps, env.count or train.batch_size lower"
        _tell(f"memory ran out{what}: {advice}")
        code = 1
    except Exception as error:
        if debug:
            raise
        what = f"{type(error).__name__}: {error} ({place(error)})"
        _tell(f"{what}; --debug shows a traceback")
        code = 1
    return code


def main() -> None:
    """Runs the command line and exits: 0 done, 1 failed, 2 usage, 3 damaged data, 4 in use, 5 diverged,
    130 interrupted."""
    debug = "--debug" in sys.argv
    if sys.stdout.errors == "strict":  # not every terminal has all letters; stderr is so already
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    modules.find_here()  # env.id and target.policy may name a user's own
    command = next((argument for argument in sys.argv if argument in COMMANDS), "")
    if command in ("train", "resume", "reproduce", "experiment"):
        # As Ctrl-C, until the run answers all of them by itself.
        set_stops(signal.default_int_handler, signal.SIGTERM, *WARNINGS)
    if command and COMMANDS[command][0] in ("records", "care"):
        gc.disable()  # they end before there is garbage, and Python would look for it among all records that they read
    with began_here():  # also where an error is told, after the command has ended
        code = _run(debug)
    sys.exit(code if isinstance(code, int) else 0)
