"""A loop of your own around twin-graph's agent: `act`, `observe`, `learn`, and records that a run of any kind has.

    python examples/own_loop.py FOLDER [AGENT_STEPS]

Run it again with more AGENT_STEPS, or after a crash, and it continues from FOLDER's newest resume point. FOLDER is a
run like any other: `twin-graph log FOLDER` lists its snapshots, `tensorboard --logdir FOLDER` draws its returns.
"""

import sys
from pathlib import Path

import gymnasium
import numpy as np

import twin_graph

POINT_EVERY = 5_000  # agent steps


def main(folder: str, steps: int) -> None:
    if Path(folder).exists():
        run = twin_graph.find(folder)
        point = twin_graph.newest_point(run).point
    else:
        settings = twin_graph.load(
            "cartpole",
            [("env.count", 1), ("train.start_steps", 500), ("train.n_step", 1), ("target.refresh_every_updates", 100)],
        )
        run, point = twin_graph.create(folder, settings), None
    env = gymnasium.make("CartPole-v1")
    with twin_graph.Agent(run, twin_graph.EnvSpec((4,), n_actions=2), point=point) as agent:
        if point is None:
            agent.commit_point()  # so that it can be continued, whenever it is interrupted

        def new_episode() -> tuple[np.ndarray, float]:
            [seed] = agent.environment_seeds()  # a resumed run begins its episodes as an uninterrupted one
            return env.reset(seed=int(seed))[0], 0.0

        s_tm1, score = new_episode()
        while agent.agent_steps < steps:
            [a_tm1] = agent.act(s_tm1[None])
            s_t, reward, terminated, truncated, _ = env.step(int(a_tm1))
            agent.observe(
                twin_graph.Transition(
                    s_tm1=s_tm1[None],
                    a_tm1=np.array([a_tm1]),
                    r_t=np.array([reward], np.float32),
                    terminal_t=np.array([terminated]),
                    last_t=np.array([terminated or truncated]),
                    s_t=s_t[None],
                )
            )
            agent.learn()
            score += float(reward)
            s_tm1 = s_t
            if terminated or truncated:
                agent.log({"episode/return": score, "loss": agent.tally.loss})
                [target] = agent.learners.first.target.snapshots
                print(f"episode {agent.tally.episodes}: return {score:.0f}, target {target}")
                s_tm1, score = new_episode()
            if agent.agent_steps % POINT_EVERY == 0:
                agent.commit_point()  # ends the episode, here as in every run
                s_tm1, score = new_episode()
        agent.commit()
        agent.commit_point()
        print(f"Q at the start of an episode: {agent.q_values(env.reset(seed=0)[0][None])[0]}")
        print(f"newest snapshot: {agent.store.newest.id}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
