"""Reference pages made from the code that they describe."""

import inspect
import json
import textwrap
from collections.abc import Iterator

import click
from twin_graph_cli.main import COMMANDS, cli, main

from twin_graph import config


def command_line() -> str:
    """Every command with its arguments and options, from click."""
    ends = inspect.cleandoc(main.__doc__ or "").partition("exits: ")[2]
    context = click.Context(cli, info_name="twin-graph")
    lines = ["# Command line", "", *_described(cli, context, level=1)]
    lines += ["Results go to stdout, progress and messages to stderr.", f"The exit code says how it went: {ends}", ""]
    lines += ["| command | |", "|---|---|"]
    lines += [f"| [{name}](#twin-graph-{name}) | {_escaped(meaning)} |" for name, (_, meaning) in COMMANDS.items()]
    for name in COMMANDS:
        lines += ["", *_below(cli, context, name, level=1)]
    return "\n".join(lines) + "\n"


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
    for option in command.params:
        if record := option.get_help_record(context):
            names, meaning = record
            if meaning:
                yield f"`{names}`\n:   {_escaped(meaning)}\n"


def _below(group: click.Group, context: click.Context, name: str, level: int) -> Iterator[str]:
    command = group.get_command(context, name)
    assert command is not None
    its = click.Context(command, context, info_name=name)
    yield from _described(command, its, level + 1)
    if isinstance(command, click.Group):
        for below in command.list_commands(its):
            yield from _below(command, its, below, level + 1)


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
            lines += [
                "",
                f"## {f'`{above}`' if above else 'The run'}",
                "",
                "| setting | default | meaning |",
                "|---|---|---|",
            ]
        named = "|" in setting.type and not isinstance(setting.value, bool)
        notes = [setting.range or (setting.type if named else "")]
        notes += [f"Source: {setting.source}"] if setting.source else []
        small = [f"<small>{_escaped(note)}</small>" for note in notes if note]
        meaning = "<br>".join([_escaped(setting.meaning), *small])
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


def link(code: str) -> str | None:
    """Where these pages describe what a text names, such as `train.n_step=3` or `twin-graph log RUN`."""
    setting = code.partition("=")[0]
    if "." in setting and config.is_setting(setting) and not setting.startswith(config.FREE):
        return f"reference/settings.md#{setting}"
    words = code.split()
    if words[:1] == ["twin-graph"] and words[1:] and words[1] in COMMANDS:
        return f"reference/command-line.md#twin-graph-{words[1]}"
    return None


def _escaped(text: str) -> str:
    """Text for people in Markdown, code in backticks as it is."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for character in "\\*_[]<>|":
            parts[i] = parts[i].replace(character, f"&#{ord(character)};")
    return "`".join(parts)
