"""Two learners, each of which bootstraps from snapshots of the other."""

import contextlib
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from attempts import attempt, end, whole_and_killed
from commands import twin_graph
from tables import rows

from twin_graph import config, envs
from twin_graph.agent.agent import Agent
from twin_graph.agent.learner import Learner, Losses, Prepared
from twin_graph.base.streams import Purpose, environment_seeds, stream
from twin_graph.config import turns
from twin_graph.config.settings import Settings
from twin_graph.envs import EnvSpec
from twin_graph.errors import DivergedError, UsageError
from twin_graph.exchange.export import export
from twin_graph.records import report
from twin_graph.records.verify import verify
from twin_graph.replay.ring import Replay, Transition
from twin_graph.replay.sampling import Prioritized
from twin_graph.snapshots import control, swaps
from twin_graph.snapshots.ledger import BY_REQUEST, Commit, Restore
from twin_graph.snapshots.run import Run, create
from twin_graph.targets.pruning import prune
from twin_graph.twin.model import ModelSpec
from twin_graph.twin.twin import Compute, Twin, weights_sha256

Make = Callable[..., Settings]
Train = Callable[[Settings], Run]

# Squared: the Huber loss clips the large errors of the beginning, and with them the target's influence.
MUTUAL = {"mode": "mutual", "loss": "mse", "train__steps": 800, "evaluate__episodes": 0}


def test_a_learner_that_diverges_names_a_snapshot_of_its_own(cartpole: Make, tmp_path: Path) -> None:
    """Both commit at the start, b after a."""
    run = create(tmp_path / "run", cartpole(**MUTUAL, mutual__learn="alternate"))
    with Agent(run, EnvSpec((4,), 2)) as agent, pytest.raises(DivergedError) as diverged:
        while True:
            s_t = np.zeros((1, 4), np.float32)
            nothing_ends = np.zeros(1, bool)
            agent.observe(
                Transition(s_t, agent.act(s_t), np.full(1, 1e30, np.float32), nothing_ends, nothing_ends, s_t)
            )
            agent.learn()
    assert "the loss of learner a is" in str(diverged.value)
    assert "the last good snapshot is 000000-" in str(diverged.value)


def reference(settings: Settings) -> tuple[str, list[tuple[int, str]]]:
    """Mutual training by the classic loop, with four twins and no store; who learns and who acts, by the definition.

    Returns:
      The hash of both learners' weights, and for each update its number and whose it was.
    """
    train, period = settings.train, settings.refresh_schedule_of("target").every
    env = envs.make(settings.env, count=settings.env.count)
    spec = ModelSpec.of(settings, env.spec)
    replay = Replay(
        capacity_steps=settings.replay.capacity_steps,
        environments=env.count,
        observation_shape=env.spec.observation_shape,
        dtype=env.spec.observation_dtype,
        stack=env.spec.stack,
        n_step=train.n_step,
        discount=train.discount,
    )
    updates, refreshed, steps, whose = 0, 0, 0, []
    seeds = {"a": settings.seed, "b": settings.seed + 2**30}
    with contextlib.ExitStack() as open_:
        open_.callback(env.close)
        online = {n: open_.enter_context(Twin(n, spec, seed=seeds[n], compute=Compute(threads=1))) for n in "ab"}
        target = {n: open_.enter_context(Twin(n, spec, compute=Compute(threads=1))) for n in "ab"}

        def refresh() -> None:
            weights = {n: online[n].weights() for n in "ab"}
            target["a"].load(weights["b"])
            target["b"].load(weights["a"])

        def learners_of(minibatch: int) -> str:
            if settings.mutual.learn == "both":
                return "ab"
            if settings.mutual.learn == "alternate":
                return "ab"[(updates // settings.mutual.turn_updates) % 2]
            return "ab"[stream(settings.seed, Purpose.WHO_LEARNS, minibatch).integers(2)]

        def q_values(s: np.ndarray) -> np.ndarray:
            a, b = (online[n].q_values(s) for n in "ab")
            if settings.mutual.act == "alternate":
                return (a, b)[(updates // settings.mutual.turn_updates) % 2]
            if settings.mutual.act == "random":
                return (a, b)[stream(settings.seed, Purpose.WHO_ACTS, steps).integers(2)]
            return {"a": a, "b": b, "both": (a + b) / 2}[settings.mutual.act]

        refresh()
        minibatches = 0
        s_tm1 = env.reset(environment_seeds(settings.seed, Purpose.ENVIRONMENT, 0, env.count))
        while steps < train.steps:
            decay = min(1.0, steps / settings.act.epsilon_decay_steps)
            epsilon = settings.act.epsilon_start + decay * (settings.act.epsilon_end - settings.act.epsilon_start)
            random = stream(settings.seed, Purpose.ACT, steps)
            explore = random.random(env.count) < epsilon
            actions = random.integers(0, env.spec.n_actions, size=env.count)
            actions = np.where(explore, actions, q_values(s_tm1).argmax(axis=1))
            answer = env.step(actions)
            replay.add(Transition(s_tm1, actions, answer.r_t, answer.terminal_t, answer.last_t, answer.s_t))
            s_tm1 = answer.s_next
            steps += env.count
            while minibatches < (steps - train.start_steps) // train.every_steps:
                if updates // period > refreshed // period:
                    refreshed = updates
                    refresh()
                batch = replay.sample(train.batch_size, [stream(settings.seed, Purpose.SAMPLE, minibatches)])
                for name in learners_of(minibatches):
                    model = online[name].model
                    feed = {
                        model.s_tm1: batch.s_tm1,
                        model.a_tm1: batch.a_tm1,
                        model.r_t: batch.r_t,
                        model.discount_t: batch.discount_t,
                        model.q_target_t: target[name].q_values(batch.s_t),
                    }
                    online[name].run(model.train_op, feed)
                    updates += 1
                    whose.append((updates, name))
                minibatches += 1
        both = {f"{n}/{key}": value for n in "ab" for key, value in online[n].weights().items()}
    return weights_sha256(both), whose


SCHEMES = [
    {"mutual__learn": "random", "mutual__act": "both"},
    {"mutual__learn": "alternate", "mutual__act": "alternate", "mutual__turn_updates": 30},
    {"mutual__learn": "both", "mutual__act": "random"},
    {"mutual__learn": "both", "mutual__act": "b"},
]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda s: "-".join(map(str, s.values())))
def test_it_is_four_twins_and_explain_knows_whose_update_each_was(
    cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch, scheme: dict[str, Any]
) -> None:
    settings = cartpole(**MUTUAL, **scheme, resume__every_steps=10_000)
    seen: list[tuple[int, str, tuple[str, ...]]] = []
    learn = Learner.train

    def traced(learner: Learner, updates: Sequence[int], prepared: Prepared) -> Losses:
        seen.extend((update + 1, learner.name, learner.target.snapshots) for update in updates)
        return learn(learner, updates, prepared)

    monkeypatch.setattr(Learner, "train", traced)
    run = train(settings)
    state = run.points().newest()
    assert state is not None
    sha256, whose = reference(settings)
    assert [(update, name) for update, name, _ in seen] == whose
    assert state.weights_sha256 == sha256
    assert state.counters.updates == len(whose)
    assert {learner.name: learner.updates for learner in state.learners} == {
        name: sum(whose_it_was == name for _, whose_it_was in whose) for name in "ab"
    }
    lineages = {snapshot.id: snapshot.lineage for snapshot in run.store().snapshots}
    for update, name, snapshots in seen[::7]:
        told = report.explain(run, update)
        assert (told.learner, tuple(s.id for s in told.snapshots)) == (name, snapshots)
        assert {lineages[snapshot] for snapshot in snapshots} == {"b" if name == "a" else "a"}
    manifests = [run.store().manifest(snapshot.id) for snapshot in run.store().snapshots]
    for manifest in manifests:
        own = sum(name == manifest.lineage for update, name in whose if update <= manifest.counters.updates)
        assert manifest.learner_updates == own
    assert verify(run).damage == []


@pytest.mark.parametrize(
    "scheme",
    [
        {"target__policy": "lag(60)", "mutual__learn": "alternate", "mutual__turn_updates": 20},
        {"target__policy": "best(mean)", "evaluate__episodes": 2, "evaluate__every_steps": 200},
        {
            "target__policy": "ensemble(2, min)",
            "train__double": True,
            "train__chunk_steps": 16,
            "mutual__act": "random",
        },
        {"store__shared": True, "train__chunk_steps": 40, "mutual__learn": "both", "replay__prioritized": True},
        {"target__policy": "pinned(2)"},  # which is one learner's
    ],
    ids=lambda s: " ".join(f"{key}={value}" for key, value in s.items()),
)
def test_both_learners_resume_exactly(cartpole: Make, tmp_path: Path, scheme: dict[str, Any]) -> None:
    chosen = cartpole(**{**MUTUAL, "resume__every_steps": 400, "save__every_updates": 20, **scheme})
    whole, killed = whole_and_killed(chosen, tmp_path, 640)
    assert end(killed) == end(whole)
    assert verify(killed).damage == []


def test_a_transition_that_one_of_both_has_not_learnt_keeps_its_priority(
    cartpole: Make, train: Train, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_learners, told = [], []
    learn, learnt = Learner.train, Prioritized.learnt

    def learn_and_tell(learner: Learner, *args: Any) -> Losses:
        made = learn(learner, *args)
        of_learners.append(np.abs(made.td_error).ravel())
        return made

    def tell(sampler: Prioritized, batch: Any, td_error: np.ndarray) -> None:
        told.append(td_error)
        learnt(sampler, batch, td_error)

    monkeypatch.setattr(Learner, "train", learn_and_tell)
    monkeypatch.setattr(Prioritized, "learnt", tell)
    options = {"mutual__learn": "both", "replay__prioritized": True, "train__steps": 400, "evaluate__episodes": 0}
    train(cartpole(**{**MUTUAL, **options}))
    assert len(told) > 20
    a, b = (np.concatenate(of_learners[i::2]) for i in (0, 1))
    np.testing.assert_array_equal(np.concatenate(told), np.maximum(a, b))


def test_overlapped_or_not_both_learners_end_with_the_same_weights(cartpole: Make, train: Train) -> None:
    options = {**MUTUAL, "train__chunk_steps": 24, "mutual__act": "alternate", "mutual__turn_updates": 10}
    assert end(train(cartpole(**options))) == end(train(cartpole(**options, twin__overlap=False)))


def test_no_learner_starts_as_one_of_the_next_seed_does(cartpole: Make, tmp_path: Path) -> None:
    starts = []
    for seed in (1, 2):
        run = create(tmp_path / str(seed), cartpole(**MUTUAL, seed=seed))
        with Agent(run, EnvSpec((4,), 2), environments=run.settings.env.count) as agent:
            starts += [learner.online.weights_sha256() for learner in agent.learners]
    assert len(set(starts)) == 4


def test_a_shared_store_has_one_line_and_a_learner_may_receive_itself(cartpole: Make, train: Train) -> None:
    run = train(cartpole(**MUTUAL, store__shared=True, mutual__learn="alternate", mutual__turn_updates=40))
    snapshots = {snapshot.id: snapshot for snapshot in run.store().snapshots}
    assert {snapshot.lineage for snapshot in snapshots.values()} == {turns.SHARED}
    assert {snapshot.learner for snapshot in snapshots.values()} == {"a", "b"}
    swaps = [event for event in run.ledger.events() if isinstance(event, Restore)]
    received = {(swap.learner, snapshots[swap.snapshots[0]].learner) for swap in swaps}
    assert ("b", "b") in received or ("a", "a") in received
    parents = [snapshot.parent for snapshot in run.store().snapshots]
    assert parents == [None, *[snapshot.id for snapshot in run.store().snapshots[:-1]]]


@pytest.mark.parametrize("learn", ["random", "both"])
def test_the_latest_of_a_shared_store_is_now_the_ones_and_now_the_others(
    cartpole: Make, train: Train, learn: str
) -> None:
    run = train(
        cartpole(
            **{**MUTUAL, "train__steps": 500}, store__shared=True, mutual__learn=learn, target__refresh_every_updates=10
        )
    )
    whose = {snapshot.id: snapshot.learner for snapshot in run.store().snapshots}
    received = [(swap.learner, whose[swap.snapshots[0]]) for swap in run.ledger.events(Restore)]
    counts = {pair: received.count(pair) for pair in itertools.product("ab", repeat=2)}
    assert len(received) > 10
    assert min(counts.values()) >= len(received) // 4 - 2, counts


def test_each_learner_draws_for_itself(cartpole: Make, train: Train) -> None:
    run = train(
        cartpole(**{**MUTUAL, "train__steps": 500}, target__policy="mix(0.5, 4)", target__refresh_every_updates=10)
    )
    draws = [[swap.draw for swap in run.ledger.events(Restore) if swap.learner == name] for name in "ab"]
    assert len(draws[0]) == len(draws[1]) > 5
    assert not set(draws[0]) & set(draws[1])


def test_a_target_is_the_best_of_the_other_learner_until_its_own_evaluations_say_that_it_stalls(
    cartpole: Make, train: Train
) -> None:
    changes = {"evaluate__episodes": 2, "evaluate__every_steps": 40, "target__refresh_every_updates": 5}
    run = train(cartpole(**{**MUTUAL, **changes}, target__policy="best(mean, 2)"))
    snapshots, lines = run.store().snapshots, list(run.evaluation_lines())
    lineages = {snapshot.id: snapshot.lineage for snapshot in snapshots}
    assert len({line["played_at"]["agent_steps"] for line in lines}) == 20
    chosen = set()
    for swap in (event for event in run.ledger.events(Restore) if event.policy == "best(mean, 2)"):
        other = "b" if swap.learner == "a" else "a"
        before = swap.first_update - 1
        newest = [s.id for s in snapshots if s.lineage == other and s.updates <= before][-1]
        best, stood, returns = "", 0, dict[str, list[float]]()
        for line in lines:
            challenger = line["challenger"]
            if lineages[challenger] == other and line["played_at"]["updates"] <= before:
                returns.setdefault(challenger, []).extend(line["returns"])
                if not best or fmean(returns[challenger]) > fmean(returns[best]):
                    best, stood = challenger, 0
                elif challenger != best:
                    stood += 1
        assert swap.snapshots == (best if stood < 2 else newest,)
        chosen.add("best" if stood < 2 else "stalled")
    assert chosen == {"best", "stalled"}


def test_retention_keeps_the_newest_of_a_learner_whose_turn_is_long_past(cartpole: Make, train: Train) -> None:
    run = train(
        cartpole(
            **MUTUAL,
            mutual__learn="alternate",
            mutual__turn_updates=60,
            save__every_updates=5,
            save__keep_last=2,
            save__keep_every=0,
            resume__every_steps=100,
        )
    )
    prune(run, keep_last=1, keep_every=None, dry_run=False)
    store = run.store()
    for name in "ab":
        assert store.has_weights(store.resolve(f"{name}/latest", dict).id)
    assert len(store.available) < len(store.snapshots)


def test_a_swap_by_hand_names_its_learner(cartpole: Make, train: Train) -> None:
    run = train(cartpole(**MUTUAL))
    first = run.resolve("a/latest~1")
    control.ask(
        run.control, "swap", first.id, "target", learner="a", hold=True
    )  # of its own past, which no policy does
    run.change_settings(config.change(run.settings, [("train.steps", 1_200)]))
    attempt(run)
    targets = {target.learner: target for target in report.status(run).targets}
    assert (targets["a"].snapshot, targets["a"].held) == (first.id, True)
    assert (targets["b"].snapshot, targets["b"].held) != (first.id, True)
    own = [update for update in range(150, 250) if report.explain(run, update).learner == "a"]
    assert all(report.explain(run, update).request for update in own if update > 160)


def test_references_name_a_lineage(cartpole: Make, train: Train) -> None:
    run = train(cartpole(**MUTUAL, save__every_updates=20))
    of_a = [snapshot for snapshot in run.store().snapshots if snapshot.lineage == "a"]
    assert run.resolve("a/latest") == of_a[-1]
    assert run.resolve("a/latest~2") == of_a[-3]
    assert run.resolve("a/@update:50") == [snapshot for snapshot in of_a if snapshot.updates <= 50][-1]
    assert run.resolve("b/latest").lineage == "b"
    with pytest.raises(UsageError, match=r"no lineage 'c' in .*; there are a, b"):
        run.resolve("c/latest")


@pytest.mark.parametrize(("settings", "message"), rows("mutual", "contradictions", "settings", "message"))
def test_what_makes_no_sense_is_refused(cartpole: Make, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cartpole(**settings)


def test_an_undo_is_of_the_learner_that_is_named(cartpole: Make, tmp_path: Path) -> None:
    often = {"resume__every_steps": 100, "save__every_updates": 20, "evaluate__episodes": 0}
    run = create(tmp_path / "run", cartpole(mode="mutual", train__steps=1_000, **often))
    attempt(run, 500)
    with pytest.raises(UsageError, match=r"a's online twin loses what .* --into online --learner a` brings.*--yes"):
        swaps.swap(run, "a/latest~1", "online", learner="a")
    swaps.swap(run, "a/latest~1", "online", learner="a", yes=True)
    attempt(run, 700)
    with pytest.raises(UsageError, match="two learners; choose one with --learner"):
        swaps.undo(run, "online", yes=True)
    with pytest.raises(
        UsageError, match=r"into b's online twin; `\S+ swap \S+ --undo --into online --learner a` undoes"
    ):
        swaps.undo(run, "online", learner="b", yes=True)
    swaps.undo(run, "online", learner="a", yes=True)
    attempt(run, 900)
    swapped, undone = run.ledger.events(Restore, text=BY_REQUEST)
    assert (undone.learner, undone.into, undone.snapshots) == ("a", "online", swapped.previous)
    [present] = [commit for commit in run.ledger.events(Commit) if (commit.id,) == undone.previous]
    assert (present.learner, present.counters) == ("a", undone.counters)


def test_proposed_swaps_say_into_whose_twin(cartpole: Make, tmp_path: Path) -> None:
    run = create(tmp_path / "run", cartpole(mode="mutual", train__steps=700, evaluate__episodes=0))
    attempt(run, 600)
    swaps.swap(run, "000000", learner="b", hold=True)
    attempt(run)
    forked = twin_graph("fork", "run", "--run-dir", "fork", cwd=tmp_path)
    assert "the target of b is held by hand: " in forked.stderr
    assert "as by twin-graph swap fork latest --learner b\n" in forked.stderr
    export(run, run.store().newest, "tf1", tmp_path / "network")
    imported = twin_graph("import", "run", "network", cwd=tmp_path)
    [proposed] = re.findall("make it the target: twin-graph (.*)", imported.stderr)
    assert twin_graph(*proposed.split(), "--dry-run", cwd=tmp_path).returncode == 0, proposed
