"""Parameters that several commands share, with their shell completion."""

import contextlib
import errno
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, TextIO

import click
from click.shell_completion import CompletionItem
from rich.console import Console
from rich.text import Text

from twin_graph import config
from twin_graph.base.here import absolute, shortened
from twin_graph.base.text import printable
from twin_graph.config import trust
from twin_graph.config.loading import ungrouped
from twin_graph.errors import TwinGraphError, UsageError
from twin_graph.snapshots.files import finite
from twin_graph.snapshots.run import RUNS, find, folders_of_runs


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


class _People(_Console):
    """A console on stderr. The reader may go away, or its disk be full: that never ends a training."""

    def _check_buffer(self) -> None:  # where all writes, its bars' too
        try:
            super()._check_buffer()
        except OSError as error:
            if error.errno == errno.EIO:  # the terminal is gone
                self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # what is left in the buffer of Python's own stream


#: For people: progress and logs.
#: Neither reads markup or names of emoji, which names of runs, policies and conditions may look like.
stderr = _People(stderr=True, markup=False, emoji=False, highlight=False)


#: What `--help` says of the argument REF, where it names a snapshot of RUN, and where it may be another run's.
REF_HELP = "REF is a snapshot's number, its id or the beginning of it, latest, latest~3, best, or @update:12000."
ANY_REF_HELP = f"{REF_HELP} RUN:REF names a snapshot of another run."


#: What JSON lets stand in a string, and a terminal would obey.
_IN_STRINGS = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

#: Names that shells do not read as anything else.
_PLAIN = re.compile(r"[\w][\w.,=+@-]*")
_COMPLETIONS = 30  # of a run with thousands of snapshots the newest are enough to choose from


class ReaderGoneError(Exception):
    """The reader of stdout has gone away: `twin-graph log RUN | head -1`."""


class AbsolutePath(click.Path):
    """A path that stays what it is, whatever folder an environment changes to."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return absolute(path) if path.name else path  # a folder that has no name is told so


PATH = AbsolutePath()


class Count(click.IntRange):
    """A whole number, also as this program prints it: `50,000`."""

    name = "count"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number: Any = ungrouped(str(value))
        return super().convert(number, param, ctx)


class Number(click.FloatRange):
    """A number in a range, which NaN is not, though it is neither below nor above."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number


_own: list[TextIO] = []  # our standard output, while that of other code is another


@contextlib.contextmanager
def foreign_output_apart() -> Iterator[None]:
    """While it lasts, what environments, networks and other foreign code print goes to stderr: results are ours."""
    _own.append(sys.stdout)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = _own.pop()


def results() -> TextIO:
    """Where results are printed."""
    return _own[0] if _own else sys.stdout


def echo(text: str = "") -> None:
    """Prints lines of a result."""
    click.echo(printable(text), file=results())


class _Results(_Console):
    @property
    def file(self) -> IO[str]:
        return results()

    @file.setter
    def file(self, file: IO[str]) -> None: ...

    def on_broken_pipe(self) -> None:
        raise ReaderGoneError


#: For results. No line is broken by us, so that names and hashes can be copied; a pipe has no width.
stdout = _Results(
    markup=False, emoji=False, highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 1000
)


def overrides_of(assignments: Iterable[str], named: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The settings given by --set, and by options of their own where those are not None; a setting by one of them."""
    overrides = [config.parse_assignment(text) for text in assignments]
    given = {key: value for key, value in named.items() if value is not None}
    if twice := next((key for key, _ in overrides if key in given), None):
        raise UsageError(
            f"{twice} is given by --set and by another option or its file, as {given[twice]}; leave one of them out"
        )
    return [*overrides, *given.items()]


def say(text: str, console: Console = stderr) -> None:
    """Prints one line for people, on stderr; never wrapped by us, so that paths and hashes can be copied."""
    console.print(printable(shortened(text), one_line=True), soft_wrap=True)


def extra_is_missing(what: str, extra: str, error: ImportError) -> TwinGraphError:
    """Says which extra has what could not be imported."""
    missing = (error.name or "").partition(".")[0]
    return TwinGraphError(f"{what} needs {missing}: pip install 'twin-graph[{extra}]'")


def protocol_line(protocol: Mapping[str, Any]) -> str:
    """What a score depends on, in one line."""
    plain = {True: "yes", False: "no"}
    return "protocol: " + ", ".join(f"{k} {plain[v] if isinstance(v, bool) else v}" for k, v in protocol.items())


def print_json(document: Any) -> None:
    """The one JSON document of a command run with `--json`; numbers that JSON lacks, such as NaN, become null."""
    ascii_only = results().encoding.lower() != "utf-8"  # what an encoding lacks would be no JSON
    text = json.dumps(finite(document), indent=1, ensure_ascii=ascii_only, allow_nan=False)
    click.echo(_IN_STRINGS.sub(lambda found: f"\\u{ord(found[0]):04x}", text), file=results())


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Runs under `checkpoints/`, or else folders."""
    names = (folder.name for folder in folders_of_runs(RUNS))
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and _PLAIN.fullmatch(name)] or [
        CompletionItem(incomplete, type="dir")
    ]


def complete_preset(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Presets with their descriptions."""
    return [
        CompletionItem(name, help=config.preset_description(name))
        for name in config.preset_names()
        if name.startswith(incomplete)
    ]


def _complete_ref(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """`latest`, `best`, and ids of RUN's snapshots with weights, the newest first."""
    try:
        ids = [snapshot.id for snapshot in reversed(find(ctx.params["run"]).store().available)]
    except TwinGraphError:
        return []
    fitting = [CompletionItem(ref) for ref in ("latest", "best", *ids) if ref.startswith(incomplete)]
    return fitting[:_COMPLETIONS]


def _complete_setting(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Names of settings, up to the equals sign."""
    return [CompletionItem(f"{name}=") for name in config.setting_names() if name.startswith(incomplete)]


def ref_argument(name: str = "ref", **attributes: Any) -> Callable[[Any], Any]:
    """An argument that names a snapshot of RUN, which comes before it."""
    return click.argument(name, shell_complete=_complete_ref, **attributes)


#: A run's folder, or its name under `checkpoints/`.
run_argument: Callable[[Any], Any] = click.argument("run", shell_complete=complete_run)
set_option: Callable[[Any], Any] = click.option(
    "--set",
    "assignments",
    shell_complete=_complete_setting,
    multiple=True,
    metavar="KEY=VALUE",
    help="Change a setting; `twin-graph presets PRESET` lists them. Repeatable.",
)
verbose_option: Callable[[Any], Any] = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Also show loss, Q, epsilon, how long the target has served, and where the time goes.",
)
trust_option: Callable[[Any], Any] = click.option(
    "--trust-code",
    is_flag=True,
    expose_value=False,
    callback=lambda ctx, param, given: trust.trust_all(say) if given else None,  # noqa: ARG005
    help="Let code run that the settings of a run begun elsewhere name. Asked for once.",
)
json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document to stdout, and nothing else."
)
