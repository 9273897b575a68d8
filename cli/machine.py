"""Commands about what can be trained here: `presets`, `doctor`."""

import click
from rich.table import Table

from twin_graph import config

from .params import PresetName, json_option, print_json, stderr, stdout


@click.command()
@click.argument("preset", required=False, type=PresetName())
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
        table = Table.grid(padding=(0, 2))
        for name, description in descriptions.items():
            table.add_row(name, description)
        stdout.print(table)
        return
    settings = config.load(preset)
    if as_json:
        print_json(settings.model_dump())
        return
    defaults = {setting.key: setting.value for setting in config.describe(config.Settings())}
    table = Table(box=None, pad_edge=False, caption="values in bold differ from the default", caption_justify="left")
    for heading in ("setting", "value", "unit", "range", "meaning", "source"):
        table.add_column(heading, overflow="fold", no_wrap=heading == "setting")
    for setting in config.describe(settings):
        changed = setting.value != defaults[setting.key]
        value = str(setting.value) if setting.value != "" else "-"
        table.add_row(
            setting.key,
            f"[bold]{value}[/]" if changed else value,
            setting.unit,
            setting.range or setting.type,
            setting.meaning,
            setting.source,
        )
    stdout.print(table)


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Look at what this machine can do, and how long `train pong` would take on it. Takes about half a minute.

    \b
    Example:
      twin-graph doctor
    """
    with stderr.status("looking at the machine, then training for a few seconds"):
        from twin_graph import doctor as library

        findings = library.examine()
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        table = Table.grid(padding=(0, 2))
        for finding in findings:
            mark = "[green]ok[/]" if finding.ok else "[red]no[/]"
            table.add_row(mark, finding.subject, f"{finding.found}{'' if finding.ok else f'; {finding.advice}'}")
        stdout.print(table)
    if not all(finding.ok for finding in findings):
        raise click.exceptions.Exit(1)
