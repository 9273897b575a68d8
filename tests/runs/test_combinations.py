"""Every two learner's switches together: they train, or they are refused with a reason before anything is made."""

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from twin_graph import targets
from twin_graph.config import turns
from twin_graph.config.settings import Settings
from twin_graph.errors import UsageError
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.snapshots.run import Run

Make = Callable[..., Settings]
Row = dict[str, str]

ROLLOUT = {"train__rollout_steps": 5, "train__n_step": 5, "train__every_steps": 40, "train__start_steps": 200}
#: Each switch and its positions. What stands first is the usual.
SWITCHES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "choice": {"single": {}, "double": {"train__double": True}},
    "streams": {"one": {}, "dueling": {"model__dueling": True}},
    "head": {
        "scalar": {},
        "categorical": {"model__head": "categorical", "model__support": [0, 100]},
        "quantile": {"model__head": "quantile", "model__atoms": 11},
        "implicit": {"model__head": "implicit", "model__atoms": 5, "model__atoms_of_target": 6},
        "gauss": {"model__head": "categorical", "model__support": [0, 100], "loss": "hl_gauss"},
    },
    "bonus": {"none": {}, "munchausen": {"train__munchausen": 0.9, "train__n_step": 1}},
    "norm": {"none": {}, "layers": {"model__layer_norm": True}},
    "noise": {"none": {}, "noisy": {"model__noisy": True}},
    "loss": {
        "huber": {},
        "mse_all": {"loss": "mse_all"},
        "dqn3": {"loss": "dqn3", "train__rescale_r": True},
    },
    "target": {"target": {}, "own": {"train__target_q": False}},
    "policy": {
        "latest": {},
        "lag": {"target__policy": "lag(20)"},
        "ensemble": {"target__policy": "ensemble(2, min)"},
        "best": {"target__policy": "best(mean)", "evaluate__episodes": 1, "evaluate__every_steps": 200},
    },
    "optimizer": {
        "adam": {},
        "rmsprop": {"train__optimizer": "rmsprop"},
        "rmsprop_centered": {"train__optimizer": "rmsprop_centered", "train__rmsprop_momentum": 0.9},
        "rmsprop_dqn3": {"train__optimizer": "rmsprop_dqn3", "train__learning_rate": 2.5e-4},
    },
    "gradients": {"free": {}, "clipped": {"train__gradient_clip_norm": 10.0}},
    "rate": {
        "constant": {},
        "linear": {"train__learning_rate_schedule": "linear", "train__learning_rate_updates": 200},
        "staircase": {"train__learning_rate_schedule": "staircase", "train__learning_rate_updates": 20},
    },
    "minibatches": {"one": {"train__batch_size": 40}, "five": {"train__batch_size": 8, "train__accumulate": 5}},
    "sampler": {"uniform": {}, "prioritized": {"replay__prioritized": True}, "rollouts": ROLLOUT},
    "mode": {
        "plain": {},
        "random": {"mode": "mutual"},
        "both": {"mode": "mutual", "mutual__learn": "both", "mutual__act": "alternate"},
        "shared": {"mode": "mutual", "store__shared": True, "mutual__learn": "alternate", "mutual__turn_updates": 20},
    },
    "schedule": {
        "classic": {},
        "chunks": {"train__chunk_steps": 32},
        "serial": {"train__chunk_steps": 32, "twin__overlap": False},
        "compiled": {"train__chunk_steps": 32, "twin__compiled": True},
    },
    "act": {"online": {}, "target": {"act__with": "target"}},
}
REFUSED = {
    frozenset({("choice", "double"), ("target", "own")}),
    *(
        frozenset({("head", head), other})
        for head in ("categorical", "quantile", "implicit", "gauss")
        for other in (("loss", "mse_all"), ("loss", "dqn3"), ("policy", "ensemble"))
    ),
    *(
        frozenset({("bonus", "munchausen"), other})
        for other in (*(("head", "categorical"), ("choice", "double"), ("target", "own"), ("sampler", "rollouts")),)
    ),
    *(frozenset({("target", "own"), ("policy", policy)}) for policy in ("lag", "ensemble", "best")),
    *(frozenset({("target", "own"), ("mode", mode)}) for mode in ("random", "both", "shared")),
    frozenset({("target", "own"), ("act", "target")}),
    *(frozenset({("mode", "shared"), ("policy", policy)}) for policy in ("lag", "ensemble", "best")),
    frozenset({("mode", "both"), ("sampler", "rollouts")}),
    frozenset({("minibatches", "five"), ("schedule", "compiled")}),
}


def pairs(row: Row) -> set[frozenset[tuple[str, str]]]:
    return {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}


def allowed(row: Row) -> bool:
    return not pairs(row) & REFUSED


def rows() -> list[Row]:
    """Few rows in which all pairs that are allowed stand together at least once: the best of some drawn, each time."""
    random = np.random.default_rng(4)  # of the seeds tried, the one with the fewest rows
    every = [(switch, position) for switch, positions in SWITCHES.items() for position in positions]
    missing = {frozenset(p) for p in itertools.combinations(every, 2) if p[0][0] != p[1][0]} - REFUSED
    found: list[Row] = []
    while missing:
        drawn = []
        for _ in range(5):
            row = dict(sorted(missing, key=lambda pair: sorted(pair))[int(random.integers(len(missing)))])
            for switch in random.permutation([s for s in SWITCHES if s not in row]):
                positions = [p for p in SWITCHES[switch] if allowed({**row, switch: p})]
                gains = [len(pairs({**row, switch: p}) & missing) for p in positions]
                row[str(switch)] = positions[int(np.argmax(gains))]
            drawn.append(row)
        best = max(drawn, key=lambda row: len(pairs(row) & missing))
        found.append(best)
        missing -= pairs(best)
    return found


def settings(make: Make, row: Row) -> Settings:
    changes: dict[str, Any] = {
        "train__steps": 640,
        "evaluate__episodes": 0,
        "target__refresh_every_updates": 10,
        "resume__every_steps": 300,
        "replay__capacity_steps": 1_000,
    }
    for switch, position in row.items():
        changes |= SWITCHES[switch][position]
    chosen = make(**changes)
    targets.roles(chosen)
    return chosen


@pytest.mark.parametrize("row", rows(), ids=lambda row: " ".join(row[s] for s in SWITCHES))
def test_every_two_switches_train_together(cartpole: Make, train: Callable[[Settings], Run], row: Row) -> None:
    chosen = settings(cartpole, row)
    run = train(chosen)
    state = run.points().newest()
    assert state is not None
    minibatches = (640 - chosen.train.start_steps) // chosen.train.every_steps
    assert state.counters.updates == minibatches * chosen.updates_per_minibatch > 10
    losses = [line["loss"] for line in run.metric_lines() if "loss" in line]
    assert all(math.isfinite(loss) for loss in losses if loss is not None)
    assert len({snapshot.weights_sha256 for snapshot in run.store().snapshots}) == len(run.store().snapshots) > 2
    if chosen.train.target_q:
        assert report.explain(run, state.counters.updates).learner in turns.Turns(chosen).learners
    assert verify(run).damage == []


@pytest.mark.parametrize("pair", sorted(map(sorted, REFUSED)), ids=lambda pair: "-".join(f"{s}={p}" for s, p in pair))
def test_what_makes_no_sense_together_is_refused(cartpole: Make, pair: list[tuple[str, str]]) -> None:
    row = {switch: next(iter(positions)) for switch, positions in SWITCHES.items()}
    settings(cartpole, row)
    with pytest.raises(UsageError):
        settings(cartpole, {**row, **dict(pair)})
