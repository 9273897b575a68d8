"""Commands about what can be trained here: `presets`, `doctor`."""

import json

import click
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from twin_graph import config

from .params import complete_preset, json_option, print_json, stdout
from .tables import print_facts


@click.command()
@click.argument("preset", required=False, shell_complete=complete_preset)
@json_option
def presets(preset: str | None, as_json: bool) -> None:
    """List the presets, or every setting of PRESET: its value, unit, range, meaning and source.

    \b
    Examples:
      twin-graph presets
      twin-graph presets pong
    """
    if preset is None:
        descriptions = {name: config.preset_description(name) for name in config.preset_names()}
        if as_json:
            print_json(descriptions)
            return
        print_facts(descriptions.items())
        return
    settings = config.load(preset)
    if as_json:
        print_json(settings.model_dump())
        return
    defaults = {setting.key: setting.value for setting in config.describe(config.Settings())}
    for setting in config.describe(settings):
        value = json.dumps(setting.value)  # as --set takes it
        default = defaults[setting.key]
        style = "bold green" if setting.value != default else "green"
        stdout.print(Text.assemble((setting.key, "bold"), " = ", (value, style), f" {setting.unit}"))
        limits = f"; {setting.range}" if setting.range else f"; {setting.type}" if "|" in setting.type else ""
        source = f"source: {setting.source}" if setting.source else ""
        if setting.value != default and default != "":
            source = f"default: {json.dumps(default)}" + (f" ({setting.source})" if setting.source else "")
        rest = f"{limits}{'; ' if source else ''}{source}"
        about = Padding(Text.assemble(setting.meaning, (rest, "dim")), (0, 0, 0, 4), expand=False)
        stdout.print(about, soft_wrap=False)
    stdout.print("\nChange one with --set, for example: --set train.batch_size=64")


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check this machine, and estimate how long `train pong` takes on it. Runs for about half a minute.

    \b
    Example:
      twin-graph doctor
    """
    from twin_graph.training import doctor as library

    findings = library.examine()
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            mark = Text("ok", "green") if finding.ok else Text("no", "red")
            table.add_row(mark, finding.subject, f"{finding.found}{'' if finding.ok else f'; {finding.advice}'}")
        stdout.print(table, soft_wrap=False)
    if not all(finding.ok for finding in findings):
        raise click.exceptions.Exit(1)
