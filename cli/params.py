"""Parameters that several commands share, with their shell completion."""

import json
import sys
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem
from rich.console import Console

from twin_graph import config
from twin_graph.snapshots.run import RUNS

#: For people: progress and logs.
stderr = Console(stderr=True, highlight=False)
#: For results.
# In a pipe nothing is cut to the width of a terminal that is not there.
stdout = Console(highlight=False, width=None if sys.stdout.isatty() else 1000)


def say(text: str) -> None:
    """One line for people, on stderr; never broken by us, so that paths and hashes can be copied."""
    stderr.print(text, soft_wrap=True)


def print_json(document: Any) -> None:
    """The one JSON document of a command run with `--json`."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=False))


class RunName(click.ParamType[str]):
    """A run's folder, or its name under `checkpoints/`."""

    name = "run"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        names = (path.parent.name for path in RUNS.glob("*/run.json"))
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)] or [
            CompletionItem(incomplete, type="dir")
        ]


class PresetName(click.ParamType[str]):
    """A preset; whether it exists is the library's to say."""

    name = "preset"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [
            CompletionItem(name, help=config.preset_description(name))
            for name in config.preset_names()
            if name.startswith(incomplete)
        ]


class Assignment(click.ParamType[str]):
    """`key=value` for a setting."""

    name = "key=value"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        return [CompletionItem(f"{key}=") for key in config.setting_names() if key.startswith(incomplete)]


run_argument: Callable[[Any], Any] = click.argument("run", type=RunName())
json_option: Callable[[Any], Any] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else there."
)
