"""Any Gymnasium environment with discrete actions, on Gymnasium's own vector API."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import ENV_ID_RE, find_highest_version, parse_env_id
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import twin_graph.envs.blob
import twin_graph.envs.minatar  # noqa: F401 - both register environments
from twin_graph.base import doing, modules
from twin_graph.base.signals import WARNINGS
from twin_graph.base.text import assigned, nearest
from twin_graph.config import trust
from twin_graph.config.settings import EVALUATION_MAX_STEPS, EnvSettings
from twin_graph.envs import EnvSpec, VectorEnv, VectorStep, check_finite, lasting, masks
from twin_graph.envs.observations import Reading, check_readable
from twin_graph.envs.one import Drawn, One, first_sentence
from twin_graph.errors import ForeignError, UsageError, foreign_error, place

_LASTING_DOCS = "docs/how-to/own-environment.md"


class Gym(VectorEnv):
    """Implements `twin_graph.envs.VectorEnv`; owns the environments.

    `twin_graph.envs.observations` says how their observations become arrays, `twin_graph.envs.masks` where they may say
    which actions are legal. An error inside an environment, an observation of another shape than it declares, and a
    number that is not finite are reported with the environment's number.

    Args:
      settings: which environment.
      count: how many.
      evaluation: a game that has no limit at all is cut after `EVALUATION_MAX_STEPS`, so that an evaluation ends.
      max_steps: agent steps after which a game is cut, if its own limit does not come before.
      screens: the first environment is also drawn for people; all are then in this process.
    """

    def __init__(
        self,
        settings: EnvSettings,
        *,
        count: int,
        evaluation: bool = False,
        max_steps: int | None = None,
        screens: bool = False,
    ) -> None:
        if settings.actions is not None:
            raise UsageError(
                f"env.actions chooses among the actions of an Atari game, which {settings.id} is not; use "
                "--set env.actions=null"
            )
        self._declared = declared = _look_at(settings)
        self._id = settings.id
        limits = [limit for limit in (declared.time_limit, max_steps) if limit is not None]
        time_limit = min(limits, default=EVALUATION_MAX_STEPS if evaluation else None)
        self.endless = time_limit is None
        self.cut_after = None if time_limit == declared.time_limit else time_limit
        n_actions, reading = int(declared.actions.n), declared.reading
        self._one = one = functools.partial(_make_one, settings, declared, time_limit, evaluation)
        each: list[Callable[[], Any]] = [functools.partial(one, index) for index in range(count)]
        if screens:
            _prepare_drawing(settings.id, declared)
            self._drawn = Drawn(functools.partial(one, 0), settings.id)
            each[0] = lambda: self._drawn
        names = declared.action_names  # of an inner environment, perhaps, which has other actions than its wrapper
        self.action_names = names if len(names) == n_actions else ()
        self.screens_per_second = declared.screens_per_second
        in_processes = settings.vectorization == "async" and not screens
        self._vector_of = functools.partial(_vector, environment_id=settings.id, in_processes=in_processes)
        self._each, self._alone = each, settings.alone
        self._env = self._vector_of(each)
        self.count, self.reading = count, reading
        self.spec = EnvSpec(
            reading.shape,
            n_actions,
            reading.dtype.name,
            masked=reading.mask is not None,
            seen_shape=reading.seen_shape if reading.mask else (),
            first_action=int(declared.actions.start),
            declared=(*reading.declared, f"actions: {declared.actions}"),
            parts=reading.parts,
        )
        self.evaluation_epsilon = 0.0
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": f"{n_actions}, of which the legal ones" if reading.mask else n_actions,
            "time limit, steps": time_limit or "none",
        }
        if settings.kwargs:
            self.protocol["arguments"] = assigned(settings.kwargs)
        if reading.words:
            self.protocol["observations"] = reading.words

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        with _alive(self._id):
            observations, _ = self._env.reset(seed=[int(seed) for seed in seeds])
        return self._checked(observations)

    def step(self, actions: np.ndarray) -> VectorStep:
        with _alive(self._id):
            observations, rewards, terminated, truncated, info = self._env.step(actions + self.spec.first_action)
        s_next = self._checked(observations)
        last_t = terminated | truncated
        s_t = s_next
        if last_t.any():
            s_t = s_next.copy()
            for e in np.flatnonzero(last_t):
                s_t[e] = info["final_obs"][e]
            check_finite(self._id, "observation", s_t)
        r_t = rewards.astype(np.float32)
        check_finite(self._id, "reward", r_t)
        return VectorStep(s_t=s_t, r_t=r_t, terminal_t=terminated, last_t=last_t, s_next=s_next, score_t=r_t)

    def lasting(self) -> dict[str, np.ndarray]:
        if not self._declared.keeps:
            return {}
        with _alive(self._id):
            each = self._env.get_attr("lasting")
        return {name: np.stack([one[name] for one in each]) for name in each[0]}

    def lend(self, lasting: Mapping[str, np.ndarray]) -> None:
        with _alive(self._id):
            each = [{name: array[e % len(array)] for name, array in lasting.items()} for e in range(self.count)]
            self._env.set_attr("lasting", each)

    def notices(self, horizon: int) -> list[str]:
        reading, id_ = self._declared.reading, self._id
        told = [reading.notice] if reading.notice else []
        if unused := self._declared.unused:
            told.append(
                f"{id_} may say which actions are legal ({', '.join(unused)}), and is not asked: `reset` and `step` "
                "can return it as info['action_mask'], one number for each action"
            )
        if (changed := self._try_another(horizon)) is not None:
            why = f"{changed} seems to outlive an episode" if changed else "something outlives an episode"
            told.append(
                f"{id_}: after a reset with the same seed, another game follows: {why}, or chance does not come from "
                "self.np_random. A resumed run will not end like an uninterrupted one, and evaluations begin with a "
                f"fresh environment; see {_LASTING_DOCS}"
            )
        return told

    def _try_another(self, horizon: int) -> str | None:
        """Makes one more environment, as evaluations will, tries it, and closes it; see `One.changes`.

        Raises:
          ForeignError: an environment fails.
          UsageError: there cannot be one more, or these do not survive it.
        """
        doing.now("trying the environment")
        lasting_, seeds = self.lasting(), np.zeros(self.count, np.int64)
        self.reset(seeds)
        with self.aside():
            try:
                another = self._vector_of([functools.partial(self._one, 0)])
            except ForeignError as error:
                raise UsageError(
                    f"one more environment, as evaluations need it, cannot be made: {error}. If only one can exist at "
                    "a time: --set env.alone=true --set env.count=1"
                ) from error
            with _alive(self._id), contextlib.closing(another):
                changed: str | None = another.call("changes", horizon)[0]
        try:
            self.reset(seeds)
        except ForeignError as error:
            raise UsageError(
                f"{error}: after another one was closed, as evaluations will do; give each a process of its own: "
                "--set env.vectorization=async"
            ) from error
        self.lend(lasting_)
        return changed

    @contextlib.contextmanager
    def aside(self) -> Iterator[bool]:
        if not self._alone:
            yield False
            return
        lasting_ = self.lasting()
        self.close()
        try:
            yield True
        finally:
            self._env = self._vector_of(self._each)
            self.lend(lasting_)

    def screens(self) -> list[np.ndarray]:
        return self._drawn.shown()

    def close(self) -> None:
        try:
            self._env.close()
        except (EOFError, ConnectionError):  # one of the processes has ended, and Gymnasium waits for its answer
            assert isinstance(self._env, AsyncVectorEnv)
            for process in self._env.processes:
                process.terminate()
                process.join()
            self._env.closed = True  # or it is tried again when this object goes
        vars(self._env).pop("envs", None)  # or a traceback keeps them until Python ends, and ALE's then complain

    def _checked(self, observations: np.ndarray) -> np.ndarray:
        # A copy: Gymnasium may hand out a buffer that its next step overwrites.
        observations = np.array(observations, self.spec.observation_dtype)
        check_finite(self._id, "observation", observations)
        return observations


@contextlib.contextmanager
def _alive(environment_id: str, advice: str = "") -> Iterator[None]:
    """Raises `ForeignError` where the process of an environment has ended, for lack of memory for example."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ForeignError(f"{environment_id}: the process of an environment ended by itself{advice}") from error


def _vector(
    each: list[Callable[[], Any]], environment_id: str, *, in_processes: bool
) -> AsyncVectorEnv | SyncVectorEnv:
    if not in_processes:
        return SyncVectorEnv(each, autoreset_mode=AutoresetMode.SAME_STEP)
    # Not forked from this process: its threads, TensorFlow's for example, do not survive that.
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    # An error in one of them is raised here, too, with its place; Gymnasium warns of it with whole tracebacks.
    warnings.filterwarnings("ignore", r"\S*ERROR: ", module=r"gymnasium\.vector")
    with _alive(environment_id, _unguarded()), modules.safe_children():
        each = [modules.for_child(one) for one in each]
        return AsyncVectorEnv(each, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)


def _unguarded() -> str:
    """Advice, if the program is a script that each process would run again from its beginning."""
    script = getattr(sys.modules["__main__"], "__file__", None)
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if script and "__main__" not in Path(script).read_text():
            return f'; put what {script} does under: if __name__ == "__main__":'
    return ""


def _prepare_drawing(environment_id: str, declared: _Declared) -> None:
    """Raises `UsageError` if it cannot be drawn; tells the libraries that draw what this process is."""
    if "rgb_array" not in declared.render_modes:
        modes = ", ".join(map(str, declared.render_modes)) or "none"
        raise UsageError(f"{environment_id} cannot be drawn: it has no render mode rgb_array (it has {modes})")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # or pygame complains that it finds none
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # or SIGTERM ends nothing


def _make_one(
    settings: EnvSettings, declared: _Declared, time_limit: int | None, frozen: bool, index: int, **options: Any
) -> One:
    # Ctrl-C and warnings reach every process, and the trainer is the one that answers them. It makes an environment,
    # too. SIGTERM is how it ends the others.
    if settings.vectorization == "async" and multiprocessing.parent_process():
        for number in (signal.SIGINT, *WARNINGS):
            signal.signal(number, signal.SIG_IGN)
    # Gymnasium takes None for the registered limit, and -1 for no limit.
    name = f"{settings.id}, environment {index}"
    try:
        env = _make(settings, **options, max_episode_steps=-1 if time_limit is None else time_limit)
    except (Exception, SystemExit) as error:
        raise foreign_error(name, error) from error
    one = One(env, declared.reading, name)
    if frozen:
        lasting.freeze(one)
    return one


def _make(settings: EnvSettings, **options: Any) -> gymnasium.Env[Any, Any]:
    # Gymnasium's own checker looks at the first step alone; `One` looks at each.
    arguments: dict[str, Any] = {"disable_env_checker": True, **settings.kwargs, **options}
    return gymnasium.make(settings.id, **arguments)


class _Declared(NamedTuple):
    """What an environment declares.

    Attributes:
      actions: their space.
      reading: makes arrays of observations.
      keeps: whether something outlives its episodes; see `twin_graph.envs.lasting`.
      unused: what may say which actions are legal, and is not used.
      time_limit: in agent steps.
    """

    actions: spaces.Discrete
    reading: Reading
    keeps: bool
    unused: Sequence[str]
    time_limit: int | None
    action_names: tuple[str, ...]
    render_modes: Sequence[Any]
    screens_per_second: float


_SCREENS_PER_SECOND = 30.0  # where an environment does not say
#: Of Gymnasium's own environments, by their ids without version. Others may say it by `get_action_meanings()`.
_ACTION_NAMES = {
    "Acrobot": ("torque -1", "none", "torque +1"),
    "CartPole": ("left", "right"),
    "CliffWalking": ("up", "right", "down", "left"),
    "FrozenLake": ("left", "down", "right", "up"),
    "LunarLander": ("none", "left engine", "main engine", "right engine"),
    "MountainCar": ("left", "none", "right"),
}


def _action_names(environment: gymnasium.Env[Any, Any], environment_id: str) -> tuple[str, ...]:
    if environment.has_wrapper_attr("get_action_meanings"):
        with contextlib.suppress(Exception):  # for people alone
            return tuple(map(str, environment.get_wrapper_attr("get_action_meanings")()))
    return _ACTION_NAMES.get(environment_id.rpartition("-")[0], ())


def _look_at(settings: EnvSettings) -> _Declared:
    """Makes an environment to examine. Raises `UsageError`, one line on why it cannot be made or learnt."""
    if present := _atari_name(settings.id):
        raise UsageError(
            f"{settings.id!r} is an old name: write {present}; env.frame_skip and env.sticky do what it said"
        )
    _check_trusted(settings.id)
    try:
        environment = _make(settings)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        hint = _registered_here(settings.id)
        hint = hint or nearest(settings.id, [name for name in gymnasium.registry if not _atari_name(name)])
        raise UsageError(f"cannot make {settings.id!r}: {first_sentence(error)}{hint}") from None
    except ModuleNotFoundError as error:
        where = f"modules are looked for in {Path.cwd()} and among the installed packages"
        raise UsageError(f"cannot make {settings.id!r}: {first_sentence(error)}; {where}") from None
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"cannot make {settings.id!r}: {first_sentence(error)}") from None
    except (Exception, SystemExit) as error:  # of its own code: arguments that it does not take, for example
        raise UsageError(f"cannot make {settings.id!r}: {type(error).__name__}: {error} ({place(error)})") from error
    try:
        return _declared(settings.id, environment)
    finally:
        with contextlib.suppress(Exception):  # told of those that are played
            environment.close()


def _registered_here(environment_id: str) -> str:
    """`; shop.py here registers it: write shop:Shop-v0`, if a module in the present folder does, by its text; or empty.

    To import modules in order to find out would run whatever they do.
    """
    if ":" in environment_id:
        return ""
    id_in_quotes = re.compile(rf"""(["'])({re.escape(environment_id)}(?:-v\d+)?)\1""")
    for path in sorted([*Path().glob("*.py"), *Path().glob("*/__init__.py")]):
        text = ""
        with contextlib.suppress(OSError):
            text = path.read_text(encoding="utf-8", errors="replace")
        module = path.parent.name or path.stem
        if "register" in text and module.isidentifier() and (found := id_in_quotes.search(text)):
            return f"; {path} here registers it: write {module}:{found[2]}"
    return ""


def _declared(environment_id: str, environment: gymnasium.Env[Any, Any]) -> _Declared:
    actions, drawn = environment.action_space, environment.metadata
    _check_actions(environment_id, actions)
    assert isinstance(actions, spaces.Discrete)
    keeps = bool(lasting.kept(environment))  # before a reset, as it is lent what is kept before one
    info: dict[str, Any] = {}
    with contextlib.suppress(Exception):  # it is reset again where its errors are told
        _, told = environment.reset()
        info = dict(told)
    mask = masks.find(environment, info)
    check_readable(environment_id, environment.observation_space, mask)
    per_second = _SCREENS_PER_SECOND
    with contextlib.suppress(Exception):  # for people alone
        per_second = float(drawn.get("render_fps") or per_second)
    return _Declared(
        actions,
        Reading(environment.observation_space, actions, mask),
        keeps,
        [] if mask else masks.unused(environment, info),
        environment.spec.max_episode_steps if environment.spec else None,
        _action_names(environment, environment_id),
        drawn.get("render_modes") or (),
        per_second,
    )


def _atari_name(environment_id: str) -> str:
    """The present name of an Atari game, if this is an old one, registered or not; else empty."""
    known = gymnasium.registry.get(environment_id)
    if known and not str(known.entry_point).startswith("ale_py"):
        return ""
    from twin_graph.envs import atari

    return atari.present_name(environment_id)


def check_version(environment_id: str) -> None:
    """Raises `UsageError` if an id means the newest of several versions, which another Gymnasium may add to."""
    module, _, name = environment_id.rpartition(":")
    if not ENV_ID_RE.fullmatch(name):
        return
    namespace, stem, version = parse_env_id(name)
    if version is not None or name in gymnasium.registry:
        return
    _check_trusted(environment_id)
    with contextlib.suppress(Exception):  # what it registers is not known before; its errors are told when one is made
        importlib.import_module(module or "ale_py")
    newest = find_highest_version(namespace, stem)
    if newest is None or name in gymnasium.registry:
        return
    versioned = f"{environment_id}-v{newest}"
    raise UsageError(
        f"{environment_id} names no version, and the newest may change: give {_atari_name(versioned) or versioned}"
    )


def _check_trusted(environment_id: str) -> None:
    """Raises `UntrustedError` if an id names a module that may not be imported."""
    trust.check("env.id", environment_id)
    modules.prepare(environment_id.rpartition(":")[0])


def _check_actions(environment_id: str, actions: spaces.Space[Any]) -> None:
    """Raises `UsageError` unless they are Discrete."""
    if isinstance(actions, spaces.Discrete):
        return
    if isinstance(actions, spaces.Box):
        raise UsageError(f"{environment_id} has continuous actions ({actions}); Q-learning needs discrete ones")
    advice = (
        "; register it with a wrapper that maps each combination to one number of a Discrete space "
        "(gymnasium.wrappers.TransformAction)"
    )
    combined = isinstance(actions, spaces.MultiDiscrete | spaces.MultiBinary)
    raise UsageError(
        f"{environment_id} has actions {actions}; only Discrete ones are supported{advice if combined else ''}"
    )
