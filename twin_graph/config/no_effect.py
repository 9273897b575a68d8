"""Settings that have no effect given the others."""

from collections.abc import Callable, Iterable, Iterator

from twin_graph.config.settings import PIXEL_GAMES, Settings

#: Settings, or prefixes of their names, that are used only under a condition, with that condition in words.
_USED_ONLY: dict[tuple[str, ...], tuple[Callable[[Settings], bool], str]] = {
    ("model.hidden_units",): (lambda s: s.network == "mlp" or ":" in s.network, "with network=mlp"),
    ("model.padding",): (
        lambda s: s.network in ("nature", "dopamine", "mnih2013", "minatar", "board") or ":" in s.network,
        "with network=nature, dopamine, mnih2013, minatar or board",
    ),
    ("train.chunk_steps", "twin.compiled", "twin.overlap", "twin.check"): (
        lambda s: not s.workers.count,
        "with workers.count=0",
    ),
    ("workers.servers", "workers.restarts", "workers.gpu_memory_fraction"): (
        lambda s: s.workers.count > 0,
        "with workers.count=1 or more",
    ),
    ("evaluate.every_steps",): (lambda s: s.evaluate.episodes > 0, "with evaluate.episodes=1 or more"),
    ("twin.overlap",): (lambda s: s.train.chunk_steps > 0, "with train.chunk_steps=1 or more"),
    ("model.dueling",): (lambda s: s.network != "blob", "with another network than blob"),
    ("model.atoms_of_",): (lambda s: s.model.head == "implicit", "with model.head=implicit"),
    ("model.atoms",): (lambda s: s.model.head != "scalar", "with model.head=categorical, quantile or implicit"),
    ("model.support",): (lambda s: s.model.head == "categorical", "with model.head=categorical"),
    ("model.noisy_sigma",): (lambda s: s.model.noisy, "with model.noisy=true"),
    ("train.munchausen_",): (lambda s: s.train.munchausen > 0, "with train.munchausen=0.9 or the like"),
    ("train.gauss_sigma",): (lambda s: s.loss == "hl_gauss", "with loss=hl_gauss"),
    ("train.clip_delta",): (lambda s: s.loss == "dqn3", "with loss=dqn3"),
    ("train.adam_",): (lambda s: s.train.optimizer == "adam" or ":" in s.train.optimizer, "with train.optimizer=adam"),
    ("train.rmsprop_",): (
        lambda s: s.train.optimizer in ("rmsprop", "rmsprop_centered") or ":" in s.train.optimizer,
        "with train.optimizer=rmsprop or rmsprop_centered",
    ),
    ("train.learning_rate_end",): (
        lambda s: s.train.learning_rate_schedule == "linear",
        "with train.learning_rate_schedule=linear",
    ),
    ("train.learning_rate_decay",): (
        lambda s: s.train.learning_rate_schedule == "staircase",
        "with train.learning_rate_schedule=staircase",
    ),
    ("train.learning_rate_updates",): (
        lambda s: s.train.learning_rate_schedule != "constant",
        "with train.learning_rate_schedule=linear or staircase",
    ),
    ("replay.priority_", "replay.uniform_", "replay.importance_"): (
        lambda s: s.replay.prioritized,
        "with replay.prioritized=true",
    ),
    ("mutual.",): (lambda s: s.mode == "mutual", "with mode=mutual"),
    ("mutual.turn_updates",): (
        lambda s: "alternate" in (s.mutual.act, s.mutual.learn),
        "with mutual.act=alternate or mutual.learn=alternate",
    ),
    ("opponent.epsilon", "opponent.refresh_"): (
        lambda s: s.opponent.policy is not None,
        "in games of two players, with opponent.policy",
    ),
    ("opponent.epsilon",): (lambda s: s.opponent.policy != "random", "with another opponent.policy than random"),
    ("opponent.refresh_",): (
        lambda s: s.opponent.policy not in ("random", "self"),
        "with another opponent.policy than random or self",
    ),
}

#: Settings, or prefixes of their names, that only environments in some namespaces use.
_USED_ONLY_IN = {
    PIXEL_GAMES: (
        *("env.frame_skip", "env.sticky", "env.noop_max", "env.clip_rewards", "env.max_frames", "env.image_"),
        "env.stack",
    ),
    ("ALE/",): ("env.fire_reset", "env.life_loss"),
    ("OpenSpiel/",): ("evaluate.against",),
}


def without_effect(settings: Settings, keys: Iterable[str]) -> Iterator[str]:
    """A sentence for each of these settings that has no effect next to the others, in the order given.

    Not an error: an experiment sets what only some of its conditions use.
    """
    for key in dict.fromkeys(keys):
        conditions = [
            words for prefixes, (holds, words) in _USED_ONLY.items() if key.startswith(prefixes) and not holds(settings)
        ]
        conditions += [
            f"in {' and '.join(namespaces)} environments"
            for namespaces, prefixes in _USED_ONLY_IN.items()
            if key.startswith(prefixes) and not settings.env.id.startswith(namespaces)
        ]
        if conditions:
            yield f"{key} has no effect here: it is used only {conditions[0]}"
