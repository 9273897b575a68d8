"""Any Gymnasium environment with discrete actions, on Gymnasium's own vector API."""

from __future__ import annotations

import contextlib
import functools
import importlib
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import ENV_ID_RE, find_highest_version, parse_env_id
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, TransformObservation

import twin_graph.envs.blob
import twin_graph.envs.minatar  # noqa: F401 - both register environments
from twin_graph.base.text import assigned, counted, nearest
from twin_graph.config.settings import EVALUATION_MAX_STEPS, EnvSettings
from twin_graph.envs import EnvSpec, VectorStep, check_finite
from twin_graph.errors import ForeignError, UsageError, foreign_error, place


class Gym:
    """Implements `twin_graph.envs.VectorEnv`; owns the environments.

    Observations of spaces other than Box are flattened. Where `info` has an `action_mask`, or a Dict of observations
    has one beside `observation`, as games of Gymnasium and PettingZoo do, it says which actions are legal. An error
    inside an environment, an observation of another shape than it declares, and a number that is not finite are
    reported with the environment's number.

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
        declared = _look_at(settings)
        if settings.actions is not None:
            raise UsageError(
                f"env.actions chooses among the actions of an Atari game, which {settings.id} is not; use "
                "--set env.actions=null"
            )
        _check_actions(settings.id, declared.actions)
        self._id = settings.id
        limits = [limit for limit in (declared.time_limit, max_steps) if limit is not None]
        time_limit = min(limits, default=EVALUATION_MAX_STEPS if evaluation else None)
        self.endless = time_limit is None
        self.cut_after = None if time_limit == declared.time_limit else time_limit
        assert isinstance(declared.actions, spaces.Discrete)
        n_actions = int(declared.actions.n)
        one = functools.partial(_make_one, settings, declared, time_limit)
        each: list[Callable[[], Any]] = [functools.partial(one, index) for index in range(count)]
        if screens:
            _prepare_drawing(settings.id, declared)
            self._drawn = _Drawn(one(0, render_mode="rgb_array"), settings.id)
            each[0] = lambda: self._drawn
        names = declared.action_names  # of an inner environment, perhaps, which has other actions than its wrapper
        self.action_names = names if len(names) == n_actions else ()
        self.screens_per_second = declared.screens_per_second
        self._env = _vector(each, settings.id, in_processes=settings.vectorization == "async" and not screens)
        box = self._env.single_observation_space
        assert isinstance(box, spaces.Box)
        self._first_action = int(declared.actions.start)
        self.count = count
        dtype = "uint8" if box.dtype == np.uint8 else "float32"
        seen_shape = declared.seen_shape if declared.masked else ()
        self.spec = EnvSpec(box.shape, n_actions, dtype, masked=declared.masked, seen_shape=seen_shape)
        self.evaluation_epsilon = 0.0
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": self.spec.n_actions,
            "time limit, steps": time_limit or "none",
        }
        if settings.kwargs:
            self.protocol["arguments"] = assigned(settings.kwargs)
        if declared.masked:
            self.protocol["actions"] = f"{n_actions}, of which the legal ones"
        if declared.flattened:
            numbers = counted(declared.seen_shape[0], "number")
            self.protocol["observations"] = f"{type(declared.observations).__name__} flattened to {numbers}"

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        with _alive(self._id):
            observations, _ = self._env.reset(seed=[int(seed) for seed in seeds])
        return self._checked(observations)

    def step(self, actions: np.ndarray) -> VectorStep:
        with _alive(self._id):
            observations, rewards, terminated, truncated, info = self._env.step(actions + self._first_action)
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

    def screens(self) -> list[np.ndarray]:
        return self._drawn.shown

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
def _alive(environment_id: str) -> Iterator[None]:
    """Raises `ForeignError` where the process of an environment has ended, for lack of memory for example."""
    try:
        yield
    except (EOFError, ConnectionError) as error:
        raise ForeignError(f"{environment_id}: the process of an environment ended by itself") from error


class _Guarded(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment of a vector, whose errors say which it is and where they were raised.

    Its observations are arrays of their own, of the declared type: it is reset before anybody copies the last one. It
    has no `info`, which nobody reads and which Gymnasium cannot always stack over environments.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        assert isinstance(self.observation_space, spaces.Box)
        self._declared: spaces.Box = self.observation_space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        try:
            observation, _ = self.env.reset(seed=seed, options=options)
            return _as_declared(self._declared, observation, f"{self._name}, reset"), {}
        except ForeignError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign_error(f"{self._name}, reset", error) from error

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        try:
            observation, reward, terminated, truncated, _ = self.env.step(action)
            told = float(reward), bool(terminated), bool(truncated)
            return _as_declared(self._declared, observation, f"{self._name}, step"), *told, {}
        except ForeignError:
            raise
        except (Exception, SystemExit) as error:
            raise foreign_error(f"{self._name}, step", error) from error

    def close(self) -> None:
        try:
            self.env.close()
        except Exception as error:  # what was played is played
            warnings.warn(str(foreign_error(f"{self._name}, close", error)), stacklevel=1)


def _as_declared(box: spaces.Box, observation: Any, where: str) -> np.ndarray:
    """An observation in an array of its own, of the declared type. Raises `ForeignError` where that changes a number
    (floats are rounded, as between float64 and float32), or the shape is another."""
    if np.shape(observation) != box.shape:
        raise ForeignError(
            f"{where}: the observation has shape {list(np.shape(observation))}, and observation_space says "
            f"{list(box.shape)}"
        )
    given = np.asarray(observation)
    with np.errstate(invalid="ignore"):  # NaN as an integer is another number
        own = np.array(given, box.dtype)
    if given.dtype != box.dtype and not np.issubdtype(box.dtype, np.floating) and not np.array_equal(own, given):
        raise ForeignError(f"{where}: observed {given[own != given][0]}, and observation_space says {box.dtype}")
    return own


def _vector(
    each: list[Callable[[], Any]], environment_id: str, *, in_processes: bool
) -> AsyncVectorEnv | SyncVectorEnv:
    if not in_processes:
        return SyncVectorEnv(each, autoreset_mode=AutoresetMode.SAME_STEP)
    # Not forked from this process: its threads, TensorFlow's for example, do not survive that.
    multiprocessing.get_context("forkserver").set_forkserver_preload([__name__])
    # An error in one of them is raised here, too, with its place; Gymnasium warns of it with whole tracebacks.
    warnings.filterwarnings("ignore", r"\S*ERROR: ", module=r"gymnasium\.vector")
    with _alive(environment_id):
        return AsyncVectorEnv(each, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)


def _prepare_drawing(environment_id: str, declared: _Declared) -> None:
    """Raises `UsageError` if it cannot be drawn; tells the libraries that draw what this process is."""
    if "rgb_array" not in declared.render_modes:
        modes = ", ".join(map(str, declared.render_modes)) or "none"
        raise UsageError(f"{environment_id} cannot be drawn: it has no render mode rgb_array (it has {modes})")
    if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # or pygame complains that it finds none
    os.environ.setdefault("SDL_NO_SIGNAL_HANDLERS", "1")  # or SIGTERM ends nothing


class _Drawn(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment that is drawn for people.

    Attributes:
      shown: see `VectorEnv.screens`.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], name: str) -> None:
        super().__init__(env)
        self._name = name
        self._now = np.empty(0)
        self.shown: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        answer = self.env.reset(seed=seed, options=options)
        self._now = self._draw()
        return answer

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        answer = self.env.step(action)
        before, self._now = self._now, self._draw()
        self.shown = [before, self._now]
        return answer

    def _draw(self) -> np.ndarray:
        try:
            screen = np.array(self.env.render())  # some draw the next one into the same array
        except gymnasium.error.DependencyNotInstalled as error:
            raise UsageError(f"{self._name} cannot be drawn: {_first_sentence(error)}") from None
        except Exception as error:
            raise foreign_error(f"{self._name}, render", error) from error
        if screen.ndim != 3 or screen.shape[2] != 3 or screen.dtype != np.uint8:
            raise ForeignError(f"{self._name}, render: it gave {screen.dtype}{list(screen.shape)}, not uint8 [H, W, 3]")
        return screen


class _Masked(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Puts the mask of legal actions at the end of the observation; see `twin_graph.envs.legal`."""

    def __init__(self, env: gymnasium.Env[Any, Any], name: str, n_actions: int) -> None:
        super().__init__(env)
        self._name, self._n_actions = name, n_actions
        self._space = _seen(env.observation_space)
        flat = spaces.flatten_space(self._space)
        bytes_ = flat.dtype in (np.uint8, np.bool_)
        low, high, dtype = (0, 255, np.uint8) if bytes_ else (-np.inf, np.inf, np.float32)
        self._dtype, self._scale = np.dtype(dtype), 255 if _are_flags(flat) else 1
        self.observation_space = spaces.Box(low, high, (spaces.flatdim(self._space) + n_actions,), dtype)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._joined("reset", observation, info), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        joined = self._joined("step", observation, info, terminated=terminated, truncated=truncated)
        return joined, float(reward), terminated, truncated, info

    def _joined(
        self, method: str, observation: Any, info: dict[str, Any], *, terminated: bool = False, truncated: bool = False
    ) -> np.ndarray:
        of = observation if _has_mask(self.env.observation_space) else info
        given = of.get(_MASK, np.zeros(self._n_actions) if terminated else None)
        if given is None:
            raise ForeignError(f"{self._name}, {method}: there is no {_MASK}, and there was one at the first reset")
        legal = np.asarray(given)
        if legal.shape != (self._n_actions,):
            actions = counted(self._n_actions, "action")
            raise ForeignError(f"{self._name}, {method}: {_MASK} has shape {list(legal.shape)} for {actions}")
        if not terminated and not legal.any():
            on = "was truncated, not terminated" if truncated else "goes on"
            raise ForeignError(f"{self._name}, {method}: {_MASK} forbids every action, and the episode {on}")
        observed = observation["observation"] if of is observation else observation
        if isinstance(self._space, spaces.Box):
            observed = _as_declared(self._space, observed, f"{self._name}, {method}")
        seen = np.asarray(spaces.flatten(self._space, observed))
        return np.concatenate([seen.astype(self._dtype) * self._dtype.type(self._scale), legal != 0], dtype=self._dtype)


#: As Gymnasium's Taxi has it in `info`, and PettingZoo's classic games beside `observation`.
_MASK = "action_mask"


def _has_mask(observations: spaces.Space[Any]) -> bool:
    return isinstance(observations, spaces.Dict) and set(observations) == {"observation", _MASK}


def _seen(observations: spaces.Space[Any]) -> spaces.Space[Any]:
    """The part of an observation that is not a mask."""
    if _has_mask(observations):
        assert isinstance(observations, spaces.Dict)
        return observations["observation"]
    return observations


def _are_flags(observations: spaces.Space[Any]) -> bool:
    """Whether they are booleans, or bytes of 0 and 1: divided by 255 as brightness is, these would hardly be seen."""
    is_small = isinstance(observations, spaces.Box) and observations.dtype == np.uint8 and observations.high.max() <= 1
    return observations.dtype == np.bool_ or is_small


def _make_one(settings: EnvSettings, declared: _Declared, time_limit: int | None, index: int, **options: Any) -> Any:
    # Ctrl-C reaches every process, and the trainer is the one that answers it. It makes an environment, too.
    if settings.vectorization == "async" and multiprocessing.parent_process():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Gymnasium takes None for the registered limit, and -1 for no limit.
    name = f"{settings.id}, environment {index}"
    try:
        env = _make(settings, **options, max_episode_steps=-1 if time_limit is None else time_limit)
    except (Exception, SystemExit) as error:
        raise foreign_error(name, error) from error
    if declared.masked:
        assert isinstance(declared.actions, spaces.Discrete)
        return _Guarded(_Masked(env, name, int(declared.actions.n)), name)
    if declared.flattened:
        env = FlattenObservation(env)
    if _are_flags(env.observation_space):  # they become bytes of brightness, 0 or 255
        flags = env.observation_space
        assert isinstance(flags, spaces.Box)
        bytes_ = spaces.Box(0, 255, flags.shape, np.uint8)
        bright, dark = np.uint8(255), np.uint8(0)
        env = TransformObservation(env, lambda seen: np.where(_as_declared(flags, seen, name), bright, dark), bytes_)
    return _Guarded(env, name)


def _make(settings: EnvSettings, **options: Any) -> gymnasium.Env[Any, Any]:
    arguments: dict[str, Any] = {**settings.kwargs, **options}
    return gymnasium.make(settings.id, **arguments)


class _Declared(NamedTuple):
    """What an environment declares.

    Attributes:
      actions, observations: their spaces; observations without a mask.
      flattened: whether observations become a vector.
      seen_shape: of what a network is given.
      masked: whether observations come with a mask of legal actions.
      time_limit: in agent steps.
    """

    actions: spaces.Space[Any]
    observations: spaces.Space[Any]
    flattened: bool
    seen_shape: tuple[int, ...]
    masked: bool
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
    try:
        environment = _make(settings)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        hint = nearest(settings.id, [name for name in gymnasium.registry if not _atari_name(name)])
        raise UsageError(f"cannot make {settings.id!r}: {_first_sentence(error)}{hint}") from None
    except ModuleNotFoundError as error:
        where = f"modules are looked for in {Path.cwd()} and among the installed packages"
        raise UsageError(f"cannot make {settings.id!r}: {_first_sentence(error)}; {where}") from None
    except (gymnasium.error.Error, ImportError) as error:
        raise UsageError(f"cannot make {settings.id!r}: {_first_sentence(error)}") from None
    except (Exception, SystemExit) as error:  # of its own code: arguments that it does not take, for example
        raise UsageError(f"cannot make {settings.id!r}: {type(error).__name__}: {error} ({place(error)})") from error
    actions, observations = environment.action_space, environment.observation_space
    time_limit = environment.spec.max_episode_steps if environment.spec else None
    masked = _tells_what_is_legal(environment)
    names, drawn = _action_names(environment, settings.id), environment.metadata
    modes, per_second = drawn.get("render_modes") or (), _SCREENS_PER_SECOND
    with contextlib.suppress(Exception):  # for people alone
        per_second = float(drawn.get("render_fps") or per_second)
    with contextlib.suppress(Exception):  # told of those that are played
        environment.close()
    seen = _seen(observations)
    flattened = not isinstance(seen, spaces.Box)
    _check_observations(settings.id, seen)
    seen_shape = (spaces.flatten_space(seen) if flattened else seen).shape or ()
    return _Declared(actions, seen, flattened, seen_shape, masked, time_limit, names, modes, per_second)


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
    with contextlib.suppress(Exception):  # what it registers is not known before; its errors are told when one is made
        importlib.import_module(module or "ale_py")
    newest = find_highest_version(namespace, stem)
    if newest is None or name in gymnasium.registry:
        return
    versioned = f"{environment_id}-v{newest}"
    raise UsageError(
        f"{environment_id} names no version, and the newest may change: give {_atari_name(versioned) or versioned}"
    )


def _tells_what_is_legal(environment: gymnasium.Env[Any, Any]) -> bool:
    if _has_mask(environment.observation_space):
        return True
    try:
        return _MASK in environment.reset()[1]
    except Exception:  # it is reset again where its errors are told
        return False


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


def _check_observations(environment_id: str, observations: spaces.Space[Any]) -> None:
    """Raises `UsageError` unless they are numbers, or can be flattened to such."""
    try:
        flat = spaces.flatten_space(observations)
        if isinstance(flat, spaces.Box) and spaces.flatdim(flat):
            return
    except NotImplementedError:
        pass
    raise UsageError(
        f"{environment_id} observes {observations}, which cannot be flattened to a fixed number of numbers, at least "
        "one; register it with a wrapper that makes it a Box (gymnasium.wrappers.TransformObservation)"
    )


def _first_sentence(error: Exception) -> str:
    return str(error).split("\n")[0].split(". ")[0].rstrip(".")
