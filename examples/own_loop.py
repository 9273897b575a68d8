"""A loop of one's own around twin-graph's agent: nothing but `act`, `observe`, `learn` and `q_values`.

    python examples/own_loop.py FOLDER [AGENT_STEPS]

FOLDER is made, and is a run like any other afterwards: `twin-graph log FOLDER` lists its snapshots.
"""

import sys

import gymnasium
import numpy as np

import twin_graph


def main(folder: str, steps: int) -> None:
    settings = twin_graph.load(
        "cartpole",
        [("env.count", 1), ("train.start_steps", 500), ("train.n_step", 1), ("target.refresh_every_updates", 100)],
    )
    run = twin_graph.create(folder, settings)
    env = gymnasium.make("CartPole-v1")
    with twin_graph.Agent(run, observation_shape=(4,), n_actions=2) as agent:
        s_tm1, _ = env.reset(seed=settings.seed)
        score = 0.0
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
                print(f"episode {agent.episodes}: return {score:.0f}, target {agent.bootstrap.snapshots[0]}")
                s_tm1, _ = env.reset()
                score = 0.0
        agent.commit()
        print(f"Q at the start of an episode: {agent.q_values(env.reset(seed=0)[0][None])[0]}")
        print(f"newest snapshot: {agent.store.newest.id}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 20_000)
