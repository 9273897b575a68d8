"""Atari 2600 games on `ale_py`'s own vector emulator, which steps, scales and stacks in C++ threads."""

import functools
import math
import re
from collections.abc import Callable

import ale_py
import gymnasium
import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv

from twin_graph.base.text import nearest
from twin_graph.config.settings import ATARI_EVALUATION_EPSILON, EnvSettings
from twin_graph.envs import EnvSpec, VectorEnv, VectorStep
from twin_graph.errors import UsageError

gymnasium.register_envs(ale_py)

REWARD_CLIP = 1.0  # Mnih et al. 2015


class Atari(VectorEnv):
    """Implements `twin_graph.envs.VectorEnv`; owns the emulators and their threads.

    Observations are uint8 `[stack, H, W]`, the maximum of the last two raw screens in grey, scaled; a game begins with
    one frame after frames of zeros.

    The emulator is asked for neither clipping nor life loss: its own life loss would start a new game at each lost
    life, so that an agent never saw what comes later, and its clipping would hide the true score.

    It returns only what the network sees. For `screens` a second emulator, which draws every frame in
    colour, plays the first one's game: it has the same seed and gets the same actions.
    """

    endless = False
    screens_per_second = 60.0

    def __init__(
        self,
        settings: EnvSettings,
        *,
        count: int,
        evaluation: bool,
        max_steps: int | None = None,
        screens: bool = False,
    ) -> None:
        if settings.kwargs:
            raise UsageError("env.kwargs is not for Atari games: use the settings env.sticky, env.stack and so on")
        max_frames = min(settings.max_frames, max_steps * settings.frame_skip if max_steps else settings.max_frames)
        self.cut_after: int | None = math.ceil(max_frames / settings.frame_skip)
        self._clip = settings.clip_rewards and not evaluation
        self._life_loss = settings.life_loss and not evaluation
        fire_reset = settings.fire_reset and not evaluation
        emulator = _emulator(settings, max_frames, fire_reset=fire_reset)
        self._env = emulator(
            num_envs=count,
            frameskip=settings.frame_skip,
            img_height=settings.image_height,
            img_width=settings.image_width,
            stack_num=settings.stack,
        )
        in_colour = functools.partial(emulator, img_height=210, img_width=160, grayscale=False, maxpool=False)
        self._screen = in_colour(num_envs=1, frameskip=1, stack_num=1) if screens else None
        self._now = np.empty(0)
        self._shown: list[np.ndarray] = []
        self._frame_skip = settings.frame_skip
        self._lives = np.zeros(count, np.int32)
        meanings = [action.name for action in self._env.ale.get_action_set()]
        fires = fire_reset and "FIRE" in meanings
        self._actions = actions_of(settings, meanings)
        self.count = count
        self.spec = EnvSpec(
            observation_shape=(settings.stack, settings.image_height, settings.image_width),
            n_actions=len(self._actions),
            observation_dtype="uint8",
            stack=settings.stack,
            frames_per_step=settings.frame_skip,
            reward_clip=REWARD_CLIP if settings.clip_rewards else None,
        )
        self.action_names = tuple(meanings[i] for i in self._actions)
        self.evaluation_epsilon = ATARI_EVALUATION_EPSILON
        self.protocol: dict[str, str | int | float | bool] = {
            "environment": settings.id,
            "environments": count,
            "actions": " ".join(self.action_names) if settings.actions else self.spec.n_actions,
            "frame skip": settings.frame_skip,
            "sticky actions": settings.sticky,
            "no-ops up to": max(0, settings.noop_max - fires),
            "fire at reset": fires,
            "life loss is terminal": self._life_loss,
            "rewards clipped": self._clip,
            "time limit, frames": max_frames,
            "image": f"{settings.image_height}x{settings.image_width}x{settings.stack}",
        }

    def reset(self, seeds: np.ndarray) -> np.ndarray:
        observations, info = self._env.reset(seed=seeds)
        self._lives = info["lives"]
        if self._screen:
            self._now = self._screen.reset(seed=seeds[:1])[0][0, 0]
        return np.asarray(observations)

    def step(self, actions: np.ndarray) -> VectorStep:
        s_next, score_t, terminated, truncated, info = self._env.step(self._actions[actions])
        last_t = terminated | truncated
        s_t = s_next
        if last_t.any():
            s_t = np.where(last_t[:, None, None, None], info["final_obs"], s_next)
        # Where the game ended, `lives` is already that of the next one.
        life_lost = (info["lives"] < self._lives) & ~last_t
        self._lives = info["lives"]
        score_t = score_t.astype(np.float32)
        if self._screen:
            self._draw(self._screen, self._actions[actions[:1]])
        return VectorStep(
            s_t=s_t,
            r_t=np.clip(score_t, -REWARD_CLIP, REWARD_CLIP) if self._clip else score_t,
            terminal_t=terminated | life_lost if self._life_loss else terminated,
            last_t=last_t,
            s_next=s_next,
            score_t=score_t,
        )

    def _draw(self, screen: AtariVectorEnv, action: np.ndarray) -> None:
        """Plays a step on the second emulator, frame by frame."""
        self._shown = [self._now]
        for _ in range(self._frame_skip):
            observations, _, terminated, truncated, info = screen.step(action)
            self._now = observations[0, 0]
            if terminated[0] or truncated[0]:
                self._shown.append(info["final_obs"][0, 0])
                return
            self._shown.append(self._now)

    def screens(self) -> list[np.ndarray]:
        return self._shown

    def close(self) -> None:
        for env in (self._env, self._screen):
            if env:
                env.close()
                vars(env).pop("ale", None)  # or a traceback keeps the emulator until Python ends, which then complains


def _emulator(settings: EnvSettings, max_frames: int, *, fire_reset: bool) -> Callable[..., AtariVectorEnv]:
    """Makes emulators of a game, once it is told how many and what they show."""
    return functools.partial(
        AtariVectorEnv,
        _rom(settings.id),
        repeat_action_probability=settings.sticky,
        noop_max=settings.noop_max + 1,  # ALE draws from 0 to noop_max - 1; FIRE, if pressed, is the first of them
        max_num_frames_per_episode=max_frames,
        use_fire_reset=fire_reset,
        reward_clipping=False,
        episodic_life=False,
        autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP,
    )


def actions_of(settings: EnvSettings, meanings: list[str]) -> np.ndarray:
    """The emulator's number for each of the agent's; `meanings` are those of all that the game has."""
    chosen = list(range(len(meanings))) if settings.actions is None else settings.actions
    if len(chosen) < 2 or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(len(meanings))):
        known = ", ".join(f"{i} {meaning}" for i, meaning in enumerate(meanings))
        raise UsageError(f"env.actions={chosen}: give two or more different actions of {settings.id}: {known}")
    return np.array(chosen)


def present_name(environment_id: str) -> str:
    """`ALE/Pong-v5` for `Pong-v4`, `PongNoFrameskip-v4` and the like; empty if it is no such name of a known game."""
    old = re.fullmatch(r"(\w+?)(-ram)?(Deterministic|NoFrameskip)?-v\d+", environment_id)
    name = f"ALE/{old[1]}-v5" if old else ""
    return name if name in gymnasium.registry else ""


def _rom(environment_id: str) -> str:
    """The ROM's name for a Gymnasium id."""
    known = [name for name in gymnasium.registry if name.startswith("ALE/")]
    if environment_id not in known:
        raise UsageError(f"unknown game {environment_id!r}{nearest(environment_id, known)}")
    specification = gymnasium.spec(environment_id)
    if specification.kwargs.get("obs_type", "rgb") == "ram":
        raise UsageError(f"{environment_id} observes memory; only games seen as images are supported")
    game = specification.kwargs["game"]
    if roms.get_rom_path(game) is None:
        raise UsageError(f"ale-py comes without the ROM of {environment_id}; choose another game")
    return str(game)
