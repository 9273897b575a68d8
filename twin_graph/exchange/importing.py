"""Imports checkpoints of other programs as snapshots, and averages snapshots into one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from twin_graph.base.text import nearest
from twin_graph.errors import DamagedError, UsageError
from twin_graph.evaluation.player import spec_of
from twin_graph.snapshots.files import check_no_pattern
from twin_graph.snapshots.ledger import IMPORT, Commit, Counters
from twin_graph.snapshots.store import Provenance, SnapshotStore
from twin_graph.twin.tf import tf
from twin_graph.twin.twin import Twin, weights_sha256
from twin_graph.twin.weights import read_checkpoint

if TYPE_CHECKING:
    from twin_graph.snapshots.run import Run


class Imported(NamedTuple):
    """What was imported.

    Attributes:
      snapshot: of lineage `import`.
      ignored: variables of the checkpoint that this network has no place for.
    """

    snapshot: Commit
    ignored: list[str]


def import_checkpoint(run: Run, prefix: Path, renamed: Mapping[str, str]) -> Imported:
    """Imports an outside Saver checkpoint as a snapshot of a run that is not training.

    Args:
      run: whose network it has to fit.
      prefix: what was passed to `Saver.save`, or one of the files that it wrote, or their folder for the newest there.
      renamed: names in the checkpoint to names in the network; they win over variables that have these names already.

    Raises:
      UsageError: names, shapes or types do not fit; the message says how they could.
      InUseError: the run trains.
    """
    check_no_pattern(prefix, "move the checkpoint elsewhere")
    if re.fullmatch(r"\.(meta|index|data-\d{5}-of-\d{5})", prefix.suffix):
        prefix = prefix.with_suffix("")
    if prefix.is_dir() and not Path(f"{prefix}.index").exists():
        prefix = Path(tf.train.latest_checkpoint(str(prefix)) or prefix)
    if not (prefix.is_file() or Path(f"{prefix}.index").exists()):
        raise UsageError(
            f"there is no TensorFlow Saver checkpoint {prefix}: give what was passed to Saver.save, or one of its files"
        )
    outside = read_checkpoint(prefix)
    if unknown := [old for old in renamed if old not in outside]:
        raise UsageError(f"--map {unknown[0]}: not in {prefix}{nearest(unknown[0], outside)}; it has {_list(outside)}")
    for new in renamed.values():
        if len(twice := [old for old in renamed if renamed[old] == new]) > 1:
            raise UsageError(f"{' and '.join(twice)} are both mapped to {new}; keep one")
    # A mapping wins over a variable that has the name already, as the other network's has in a file of both.
    mapped = set(renamed.values())
    names = {old: renamed.get(old, old) for old in outside if old in renamed or old not in mapped}
    found = {new: outside[old] for old, new in names.items()}
    with run.lock("import"), Twin("import", spec_of(run), learns=False) as twin:
        ours = twin.weights()
        for old, new in renamed.items():
            if new not in ours:
                raise UsageError(
                    f"--map {old}={new}: this network has no {new}{nearest(new, ours)}; it has {_list(ours)}"
                )
        spoken_for = {*renamed, *ours}
        free = {old: value for old, value in outside.items() if old not in spoken_for and not _is_slot(old, outside)}
        weights = dict(_fitting(ours, found, free, prefix))
        snapshot = _commit(run, run.store(), twin, weights, origin=str(prefix.absolute()))
    used = {old for old, new in names.items() if new in weights}
    return Imported(snapshot, sorted(set(outside) - used, key=_as_people_count))


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
            alike = sorted((old for old, value in free.items() if value.shape == ours.shape), key=_as_people_count)
            hint = f"; of that shape it has {_list(alike)}: --map {alike[0]}={name}" if alike else nearest(name, free)
            maps = _by_shape_and_order({other: wanted[other] for other in wanted if other not in found}, free)
            if len(maps) > 1:
                hint += f". All {len(maps)} that are missing, by shape and order, to be checked: {' '.join(maps)}"
            raise UsageError(f"{prefix} has no {name} {list(ours.shape)}{hint or f'; it has {_list(free)}'}")
        if theirs.shape != ours.shape or theirs.dtype != ours.dtype:
            raise UsageError(
                f"{name} is {theirs.dtype}{list(theirs.shape)} in {prefix} and {ours.dtype}{list(ours.shape)} here"
            )
        if not np.isfinite(theirs).all():
            raise DamagedError(f"{name} in {prefix} holds values that are not finite")
        yield name, theirs


def _by_shape_and_order(missing: Mapping[str, np.ndarray], free: Mapping[str, np.ndarray]) -> list[str]:
    """`--map OLD=NEW` for each variable that is missing; empty if one of them can have no partner."""
    left, maps = sorted(free, key=_as_people_count), []
    for name in sorted(missing, key=_as_people_count):
        partner = next((old for old in left if free[old].shape == missing[name].shape), None)
        if partner is None:
            return []
        left.remove(partner)
        maps.append(f"--map {partner}={name}")
    return maps


def _is_slot(name: str, outside: Mapping[str, np.ndarray]) -> bool:
    """Whether it is an optimizer's moment of another variable of the same shape, for example `conv1/bias/Adam`."""
    variable = name.rpartition("/")[0]
    return variable in outside and outside[variable].shape == outside[name].shape


def _as_people_count(name: str) -> list[str | int]:
    """Sorts `Variable_2` before `Variable_10`."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _list(names: Iterable[str]) -> str:
    ordered = sorted(names, key=_as_people_count)
    return ", ".join(ordered[:8]) + (", ..." if len(ordered) > 8 else "")
