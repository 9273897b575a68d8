"""Imports checkpoints of other programs as snapshots, and averages snapshots into one."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.base.text import as_people_count, nearest, some_of
from twin_graph.errors import DamagedError, UsageError, one_line
from twin_graph.evaluation.player import spec_of
from twin_graph.exchange.checkpoint_files import is_of_keras, prefix_of
from twin_graph.exchange.row_order import DataFormat, flattened, in_our_order
from twin_graph.exchange.slots import averages, moments
from twin_graph.snapshots.ledger import IMPORT, Commit, Counters
from twin_graph.snapshots.store import Provenance, SnapshotStore
from twin_graph.twin import keras_models
from twin_graph.twin.twin import Twin, weights_sha256
from twin_graph.twin.weights import read_checkpoint

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run


class Imported(NamedTuple):
    """What was imported.

    Attributes:
      snapshot: of lineage `import`.
      ignored: variables of the checkpoint that this network has no place for.
      reordered: weights of dense layers whose rows were channels first, and are put in the order of this network.
      assumed: those whose rows were taken for channels last, since nothing said in which order they are.
    """

    snapshot: Commit
    ignored: list[str]
    reordered: list[str]
    assumed: list[str]


def import_checkpoint(
    run: Run, prefix: Path, renamed: Mapping[str, str], data_format: DataFormat | None = None
) -> Imported:
    """Imports an outside Saver checkpoint, or a file of Keras, as a snapshot of a run that is not training.

    Args:
      run: whose network it has to fit.
      prefix: of the checkpoint; see `prefix_of`. Of a run whose network is made by Keras, also a file of Keras, from
        which it takes weights alone: no code of it runs.
      renamed: names in the checkpoint to names in the network; they win over variables that have these names already.
      data_format: of what was flattened before a dense layer there; None for what `prefix.meta` says.

    Raises:
      UsageError: names, shapes or types do not fit, or the order of rows is unknown; the message says what to do.
      InUseError: the run trains.
    """
    if is_of_keras(prefix) and ":" in run.settings.network:
        return _import_keras(run, prefix, renamed)
    prefix = prefix_of(prefix)
    outside = read_checkpoint(prefix)
    slots = moments(outside)
    names = _names(outside, renamed, slots, prefix)
    found = {new: outside[old] for old, new in names.items()}
    with run.lock("import"), Twin("import", spec_of(run), learns=False) as twin:
        ours = twin.weights()
        for old, new in renamed.items():
            if new not in ours:
                raise UsageError(
                    f"--map {old}={new}: this network has no {new}{nearest(new, ours)}; it has {some_of(ours)}"
                )
        spoken_for = {*renamed, *ours, *slots, *averages(outside)}
        free = {old: value for old, value in outside.items() if old not in spoken_for}
        weights = dict(_fitting(ours, found, free, prefix))
        there = {new: old for old, new in names.items()}
        images = flattened(twin.graph.as_graph_def(add_shapes=True), weights)
        rows = in_our_order(weights, images, there, prefix, data_format)
        snapshot = _commit(run, run.store(), twin, rows.weights, origin=str(prefix.absolute()))
    used = {there[name] for name in weights}
    return Imported(snapshot, sorted(set(outside) - used, key=as_people_count), rows.reordered, rows.assumed)


def _import_keras(run: Run, path: Path, renamed: Mapping[str, str]) -> Imported:
    """What `Model.load_weights` reads. Raises `UsageError` if it does not fit."""
    if renamed:
        raise UsageError("--map is for checkpoints: a file of Keras is read by Keras, by its layers")
    with run.lock("import"), Twin("import", spec_of(run), learns=False) as twin:
        model = keras_models.model_of(twin.spec)
        try:
            model.load_weights(path)
        except Exception as error:  # of Keras, and of the libraries by which it reads
            raise UsageError(f"{path} does not fit network={run.settings.network}: {one_line(error)}") from error
        weights = keras_models.weights_of(model)
        snapshot = _commit(run, run.store(), twin, weights, origin=str(path.absolute()))
    return Imported(snapshot, [], [], [])


def _names(
    outside: Mapping[str, np.ndarray], renamed: Mapping[str, str], slots: Collection[str], prefix: Path
) -> dict[str, str]:
    """The names here of what the checkpoint holds, by those there. Raises `UsageError` if a mapping makes no sense."""
    for old, new in renamed.items():
        if old not in outside:
            raise UsageError(f"--map {old}: not in {prefix}{nearest(old, outside)}; it has {some_of(outside)}")
        if old in slots:
            raise UsageError(
                f"--map {old}={new}: {old} is no weights, but what an optimizer keeps of a variable; leave --map out, "
                "and names of weights are proposed"
            )
        if len(twice := [other for other in renamed if renamed[other] == new]) > 1:
            raise UsageError(f"{' and '.join(twice)} are both mapped to {new}; keep one")
    # A mapping wins over a variable that has the name already, as the other network's has in a file of both.
    mapped = set(renamed.values())
    return {old: renamed.get(old, old) for old in outside if old in renamed or old not in mapped}


def average(run: Run, snapshots: Sequence[Commit]) -> Commit:
    """Makes a snapshot of lineage `import` from the mean of snapshots' weights, in a run that is not training.

    Source: averaging weights along the path of the optimizer, Polyak and Juditsky 1992, Izmailov et al. 2018.

    Raises:
      UsageError: they are not snapshots of one network.
      DamagedError: the weights of one are not those committed.
      InUseError: the run trains.
    """
    with run.lock("average"), Twin("average", spec_of(run), learns=False) as twin:
        store, members = run.store(), list[dict[str, np.ndarray]]()
        for snapshot in snapshots:
            store.check_fits(snapshot.id)
            twin.restore_snapshot(snapshot, store)
            members.append(twin.weights())
        weights = {name: np.mean([member[name] for member in members], axis=0) for name in members[0]}
        return _commit(run, store, twin, weights, origin=f"mean of {', '.join(snapshot.id for snapshot in snapshots)}")


def _commit(run: Run, store: SnapshotStore, twin: Twin, weights: Mapping[str, np.ndarray], origin: str) -> Commit:
    twin.load(weights)
    return store.commit(
        twin.save,
        Provenance(
            lineage=IMPORT,
            attempt=max(1, run.ledger.attempt),
            counters=Counters.zero(),
            settings_sha256=run.settings.sha256(),
            weights_sha256=weights_sha256(weights),
            variables=twin.variables,
            origin=origin,
        ),
        store.lasting(store.newest.id) if store.snapshots else {},
    )


def _fitting(
    wanted: Mapping[str, np.ndarray], found: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray], prefix: Path
) -> Iterator[tuple[str, np.ndarray]]:
    """The variables of a network and their values. Raises `UsageError` with a hint from what is `free` to be mapped."""
    for name, ours in wanted.items():
        theirs = found.get(name)
        if theirs is None:
            alike = sorted((old for old, value in free.items() if _alike(value, ours)), key=as_people_count)
            hint = f"; of that shape it has {some_of(alike)}: --map {alike[0]}={name}" if alike else nearest(name, free)
            hint += _all_by_shape_and_order({other: wanted[other] for other in wanted if other not in found}, free)
            raise UsageError(f"{prefix} has no {name} {list(ours.shape)}{hint or f'; it has {some_of(free)}'}")
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise UsageError(
                f"{name} is {theirs.dtype}{list(theirs.shape)} in {prefix} and {ours.dtype}{list(ours.shape)} here"
            )
        if not np.isfinite(theirs).all():
            raise DamagedError(f"{name} in {prefix} holds values that are not finite")
        yield name, theirs


def _all_by_shape_and_order(missing: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray]) -> str:
    """Proposes `--map OLD=NEW` for each of several variables that are missing, and says if others would fit, too.

    Empty if only one is missing, or one can have no partner.
    """
    left, maps = sorted(free, key=as_people_count), []
    for name in sorted(missing, key=as_people_count):
        partner = next((old for old in left if _alike(free[old], missing[name])), None)
        if partner is None:
            return ""
        left.remove(partner)
        maps.append(f"--map {partner}={name}")
    if len(maps) < 2:
        return ""
    others = [old for old in left if any(_alike(free[old], value) for value in missing.values())]
    doubt = f", since {some_of(others)} would fit, too, which may be a target network" if others else ""
    return f". All {len(maps)} that are missing, by shape and order, to be checked{doubt}: {' '.join(maps)}"


def _alike(theirs: np.ndarray, ours: np.ndarray) -> bool:
    return theirs.shape == ours.shape and theirs.dtype == ours.dtype
