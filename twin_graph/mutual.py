"""Who is who in `mode=mutual`: functions of settings and counters, for the trainer and for those who read its records.

Learners are told apart by their names: `online` where there is one, `a` and `b` where there are two.
"""

from twin_graph.config import Settings

SHARED = "shared"


def learners(settings: Settings) -> tuple[str, ...]:
    """Their names."""
    return ("a", "b") if settings.mode == "mutual" else ("online",)


def lineage(settings: Settings, learner: str) -> str:
    """Where a learner's snapshots are committed."""
    return SHARED if settings.store.shared else learner


def source(settings: Settings, learner: str) -> str:
    """The lineage from which a learner's target is restored: the other's, if there is one."""
    names = learners(settings)
    return lineage(settings, names[names.index(learner) - 1])


def updates_of_minibatch(settings: Settings) -> int:
    """How many updates learn from one minibatch: two where each learner does."""
    return 2 if settings.mode == "mutual" and settings.mutual.learn == "both" else 1


def learns(settings: Settings, update: int) -> str:
    """Whose update that is, counted from 0."""
    names, mutual = learners(settings), settings.mutual
    if len(names) == 1:
        return names[0]
    if mutual.learn == "alternate":
        return names[update // mutual.turn_updates % 2]
    if mutual.learn == "random":
        return names[_lot(settings, "WHO_LEARNS", update)]
    return names[update % 2]


def act(settings: Settings, agent_step: int, update: int) -> tuple[str, ...]:
    """Whose Q values choose the actions of a vector step: after so many agent steps, with so many updates made."""
    names, mutual = learners(settings), settings.mutual
    if len(names) == 1 or mutual.act == "both":
        return names
    if mutual.act == "alternate":
        return (names[update // mutual.turn_updates % 2],)
    if mutual.act == "random":
        return (names[_lot(settings, "WHO_ACTS", agent_step)],)
    return (mutual.act,)


def _lot(settings: Settings, purpose: str, counter: int) -> int:
    from twin_graph.streams import Purpose, stream  # NumPy: commands that read records need not wait for it

    return int(stream(settings.seed, Purpose[purpose], counter).integers(2))
