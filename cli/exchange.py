"""Commands about weights: `diff`, `export`, `import`, `average`."""

from pathlib import Path

import click

from twin_graph.base.here import shortened
from twin_graph.base.text import command
from twin_graph.config.turns import Turns
from twin_graph.errors import UsageError
from twin_graph.snapshots.control import swap_command
from twin_graph.snapshots.run import find, locate

from .params import (
    ANY_REF_HELP,
    PATH,
    REF_HELP,
    Count,
    json_option,
    print_json,
    ref_argument,
    run_argument,
    say,
    stdout,
    trust_option,
)
from .tables import print_table

_MEAN_OF = 16  # snapshots, unless they are named
#: Endings by which people mean another format than tf1, and which it is likely to be.
_FOREIGN = {"pb": "savedmodel", "savedmodel": "savedmodel", "h5": "weights.h5"}
_BY_ENDING = ("onnx", "tflite", "npz", "keras", "weights.h5")


@click.command(epilog=ANY_REF_HELP.replace("REF is", "FIRST or SECOND is"))
@run_argument
@ref_argument("first")
@ref_argument("second")
@json_option
def diff(run: str, first: str, second: str, as_json: bool) -> None:
    """Compare snapshots FIRST and SECOND of RUN, variable by variable.

    \b
    Examples:
      twin-graph diff pong-seed1-1 latest~1 latest
      twin-graph diff pong-seed1-1 best pong-seed2-1:best
    """
    ours, theirs = (locate(find(run), reference) for reference in (first, second))

    from twin_graph.twin import weights

    rows = weights.diff((ours[0].store(), ours[1]), (theirs[0].store(), theirs[1]))
    if as_json:
        print_json({"first": ours[1].id, "second": theirs[1].id, "variables": [row._asdict() for row in rows]})
        return
    table = [
        [row.name, str(list(row.shape)), f"{row.distance:.4g}", f"{row.relative:.2%}", f"{row.largest:.4g}"]
        for row in rows
    ]
    print_table(("variable", "shape", "distance", "relative", "largest change"), table, left=2)


@click.command(epilog=ANY_REF_HELP)
@run_argument
@ref_argument()
@click.argument("path", type=PATH)
@click.option(
    "--format",
    "form",
    type=click.Choice(["tf1", "savedmodel", *_BY_ENDING]),
    help=f"Format of PATH.  [default: by its ending: {', '.join(f'.{ending}' for ending in _BY_ENDING)}; else tf1]",
)
@trust_option
@json_option
def export(run: str, ref: str, path: Path, form: str | None, as_json: bool) -> None:
    """Write snapshot REF of RUN to PATH for other programs.

    tf1 is for `tf.train.import_meta_graph` and `Saver.restore` (PATH.meta, PATH.index, PATH.data-...): act with q_tm1,
    or keep training with train_op. It writes `checkpoint` beside them, for `tf.train.latest_checkpoint`, unless the
    folder has one. savedmodel is a folder with a signature from observations to q_values. onnx and
    tflite are one file, from observations to q_values; onnx needs an extra: pip install 'twin-graph[onnx]'. npz holds
    the variables by name. keras and weights.h5 are for `keras.models.load_model` and `load_weights`, of runs whose
    network is a Keras model.

    \b
    Examples:
      twin-graph export pong-seed1-1 best network
      twin-graph export pong-seed1-1 best pong.onnx
      twin-graph export pong-seed1-1 best pong --format savedmodel
    """
    by_ending = next((one for one in _BY_ENDING if path.name.lower().endswith(f".{one}")), None)
    ending = path.suffix[1:].lower()
    if form is None and by_ending is None and (wanted := _FOREIGN.get(ending)):
        raise UsageError(f"{path} would be a checkpoint of TensorFlow 1 of this name: give --format {wanted}, or tf1")
    if form and by_ending and form != by_ending:
        raise UsageError(f"{path} ends in .{by_ending}, but --format says {form}: change one of them")
    owner, snapshot = locate(find(run), ref)
    owner.store().prefix(snapshot.id)

    from twin_graph.exchange import export as writing

    form = form or by_ending or "tf1"
    written = writing.export(owner, snapshot, form, path)  # type: ignore[arg-type]
    if as_json:
        print_json({"snapshot": snapshot.id, "format": form, "files": [str(file) for file in written]})
        return
    for file in written:
        stdout.print(shortened(str(file)), soft_wrap=True)
    state = path.with_name("checkpoint")
    if form == "tf1" and state not in written:
        say(f"{state} is there already and stays as it is: tf.train.latest_checkpoint does not find {path}")


class _TakesDashes(click.Command):
    """A command whose PATH may begin with a dash, as `-3250000` does where a Saver's prefix ended in a slash."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"./{word}" if _is_path(word) else word for word in args])


def _is_path(word: str) -> bool:
    return word.startswith("-") and (word[1:2].isdigit() or Path(f"{word}.index").exists() or Path(word).exists())


@click.command(name="import", cls=_TakesDashes)
@run_argument
@click.argument("path", type=PATH)
@click.option(
    "--map",
    "renames",
    multiple=True,
    metavar="OLD=NEW",
    help="Rename a variable: OLD is its name in PATH, NEW its name in RUN. Repeatable.",
)
@click.option(
    "--data-format",
    type=click.Choice(["NHWC", "NCHW"]),
    help="Whether images had their channels last or first when they were flattened.  [default: as in PATH.meta, else "
    "NHWC]",
)
@trust_option
@json_option
def import_(run: str, path: Path, renames: tuple[str, ...], data_format: str | None, as_json: bool) -> None:
    """Import the Saver checkpoint PATH into RUN as a snapshot, for `swap`; or a file of Keras.

    PATH is what was passed to Saver.save, without an extension, or the folder, for the newest there. Names and
    shapes must match; --map renames a variable, and takes precedence over one that already has the new name. Where
    a dense layer follows convolutions that had channels first, its rows are put in the order of RUN's network. An
    imported snapshot is never `latest`. Where RUN's network is a Keras model, PATH may be a .keras, .weights.h5 or .h5
    file, of which the weights are read.

    \b
    Example:
      twin-graph import pong-seed1-1 /tmp/model-2/network --map Variable=conv1/weights
    """
    found = find(run)
    pairs = [text.partition("=") for text in renames]
    if wrong := [old for old, separator, new in pairs if not (old and separator and new)]:
        raise UsageError(f"--map {wrong[0]}: write it as OLD=NEW")

    if twice := [old for old, _, _ in pairs if sum(old == other for other, _, _ in pairs) > 1]:
        raise UsageError(f"--map {twice[0]} is given twice; keep one")

    from twin_graph.exchange import importing

    renamed = {old: new for old, _, new in pairs}
    imported = importing.import_checkpoint(found, path, renamed, data_format)  # type: ignore[arg-type]
    if as_json:
        document = {"snapshot": imported.snapshot.id, "not_used": imported.ignored}
        print_json({**document, "rows_reordered": imported.reordered, "rows_assumed": imported.assumed})
        return
    order = "height, width, channels"
    if imported.reordered:
        say(f"{', '.join(imported.reordered)}: rows are put in the order {order}; they were channels first")
    if imported.assumed:
        say(
            f"{', '.join(imported.assumed)}: rows are taken for {order}, since there is no .meta beside {path} to say "
            "so; if it was trained with data_format=NCHW, import it with --data-format NCHW"
        )
    if imported.ignored:
        say(f"not used: {', '.join(imported.ignored)}")
    first = Turns(found.settings).learners[0]
    target, online = (
        swap_command(run, imported.snapshot.id, into=into, learner=first) for into in ("target", "online")
    )
    say(f"{imported.snapshot.id}; make it the target: {target}")
    say(f"or train on from it: {online}")


@click.command(epilog=REF_HELP)
@run_argument
@ref_argument("refs", metavar="[REF]...", nargs=-1)
@click.option(
    "--last",
    type=Count(min=2),
    help=f"Without REF: how many of the newest snapshots with weights to average.  [default: {_MEAN_OF}]",
)
@trust_option
@json_option
def average(run: str, refs: tuple[str, ...], last: int | None, as_json: bool) -> None:
    """Average the weights of snapshots REF... into a new snapshot of RUN, which must not be training.

    While a network learns, its policy jumps from snapshot to snapshot; the mean of several often plays better than any
    of them. It has an id for `evaluate`, `record`, `export` and `swap`, and is never `latest`.

    \b
    Examples:
      twin-graph average pong-seed1-1 --last 16
      twin-graph average pong-seed1-1 latest~2 latest~1 latest
    """
    found = find(run)
    store = found.store()
    if refs and last:
        raise UsageError(f"--last {last} is for a mean without REF; leave one of them out")
    if refs:
        chosen = list(dict.fromkeys(found.resolve(reference) for reference in refs))
    else:
        chosen = [snapshot for snapshot in store.available if snapshot.learner == store.newest.learner]
        chosen = chosen[-(last or _MEAN_OF) :]
    if len(chosen) < 2:
        raise UsageError(f"a mean needs two or more snapshots with weights; got {len(chosen)} from {found.folder}")
    for snapshot in chosen:
        store.prefix(snapshot.id)

    from twin_graph.exchange import importing

    mean = importing.average(found, chosen)
    if as_json:
        print_json({"snapshot": mean.id, "of": [snapshot.id for snapshot in chosen]})
        return
    say(f"{mean.id}, the mean of {len(chosen)} snapshots; try it with: {command('evaluate', run, mean.id)}")
