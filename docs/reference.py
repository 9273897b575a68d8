"""Reference pages made from the code that they describe."""

import inspect
import json
import textwrap
from collections.abc import Iterator

import click

from twin_graph import config
from twin_graph_cli.main import cli


def command_line() -> str:
    """Every command with its arguments and options, from click."""
    lines = ["# Command line", "", *_described(cli, click.Context(cli, info_name="twin-graph"), level=1)]
    return "\n".join(lines)


def _described(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    if level > 1:
        yield f"{'#' * level} `{context.command_path}`\n"
    yield f"```\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```\n"
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        if paragraph.startswith("\b"):  # lines as they are: a file, or examples
            lines = paragraph.removeprefix("\b\n").removeprefix("Examples:\n").removeprefix("Example:\n")
            yield f"```\n{textwrap.dedent(lines)}\n```\n"
        else:
            yield _escaped(paragraph) + "\n"
    for parameter in command.get_params(context):
        if record := parameter.get_help_record(context):
            names, meaning = record
            yield f"`{names}`\n:   {_escaped(meaning)}\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _described(below, click.Context(below, context, info_name=name), level + 1)


def settings() -> str:
    """Every setting with its default, unit, range and source, from its declaration; and the presets."""
    lines = [
        "# Settings",
        "",
        "Settings have dotted names, the same in `--set`, in presets and in `run.json`:",
        "",
        "```\ntwin-graph train pong --set train.batch_size=64 --set target.policy='lag(1000)'\n```",
        "",
        "The values below are the defaults. [Presets](#presets) change some of them.",
    ]
    section = None
    for setting in config.describe(config.Settings()):
        above = setting.key.rpartition(".")[0]
        if above != section:
            section = above
            lines += ["", f"## {f'`{above}`' if above else 'The run'}", "", "| setting | default | |", "|---|---|---|"]
        notes = [setting.range or (setting.type if "|" in setting.type else "")]
        notes += [f"Source: {setting.source}"] if setting.source else []
        meaning = "<br>".join(
            [_escaped(setting.meaning), *(f"<small>{_escaped(note)}</small>" for note in notes if note)]
        )
        default = f"`{json.dumps(setting.value)}` {setting.unit}".strip()
        lines.append(f"| `{setting.key}`{{#{setting.key}}} | {default} | {meaning} |")
    lines += ["", "## Presets", "", "Each preset changes these defaults."]
    defaults = config.Settings()
    for name in config.preset_names():
        lines += ["", f"### `{name}`", "", _escaped(config.preset_description(name)) + ".", "", "```"]
        changes = config.differences(defaults, config.load(name))
        lines += [f"{key} = {json.dumps(value)}" for key, _, value in changes if key != "preset"]
        lines += ["```"]
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
    """Text for people in Markdown, code in backticks as it is."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for character in "\\*_[]<>|":
            parts[i] = parts[i].replace(character, f"&#{ord(character)};")
    return "`".join(parts)
