r"""purejaxrl's `dqn.py` on the work of peers.py's CartPole: environments, replay and updates in one program of XLA's.

    python -m venv jax && jax/bin/pip install 'jax[cpu]' flax optax flashbax 'gymnax<1'
    jax/bin/python benchmarks/compiled_whole.py CHECKOUT TASK   # called by peers.py, which knows the task

The file is run as it is, but for its network, whose layers get 128 units. It makes one update for each vector step: it
has as many environments as there are agent steps between two updates (2 where the others have 8). Its loss is the
squared error, and nothing leaves the processor's memory: no snapshot, resume point, ledger or score.
"""

import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax

UNITS = 128


class QNetwork(nn.Module):
    """That of the other sides, under the name in dqn.py."""

    action_dim: int

    @nn.compact  # type: ignore[untyped-decorator]
    def __call__(self, x: Any) -> Any:
        for _ in range(2):
            x = nn.relu(nn.Dense(UNITS)(x))
        return nn.Dense(self.action_dim)(x)


def seconds_of(dqn: Any, task: dict[str, Any], steps: int) -> tuple[float, int]:
    """How long a training takes once it is compiled, and its updates."""
    config = {
        "ENV_NAME": task["environment"],
        "NUM_ENVS": task["every"],
        "TRAINING_INTERVAL": task["every"],
        "TOTAL_TIMESTEPS": steps,
        "LEARNING_STARTS": 1_000,
        "BUFFER_SIZE": task["replay"],
        "BUFFER_BATCH_SIZE": task["batch"],
        "TARGET_UPDATE_INTERVAL": task["refresh"],
        "EPSILON_START": task["epsilon"],
        "EPSILON_FINISH": task["epsilon"],
        "EPSILON_ANNEAL_TIME": 1,
        "LR": task["learning_rate"],
        "GAMMA": 0.99,
        "TAU": 1.0,
    }
    train = jax.jit(dqn.make_train(config)).lower(jax.random.PRNGKey(0)).compile()
    jax.block_until_ready(train(jax.random.PRNGKey(0)))
    began = time.perf_counter()
    made = jax.block_until_ready(train(jax.random.PRNGKey(1)))
    return time.perf_counter() - began, int(made["runner_state"][0].n_updates)


def main() -> None:
    sys.path.insert(0, str(Path(sys.argv[1], "purejaxrl")))
    sys.modules.setdefault("wandb", types.ModuleType("wandb"))  # imported there, and not used
    if not hasattr(jax, "tree_map"):  # gone since it was written
        jax.tree_map = jax.tree.map
    import dqn

    dqn.QNetwork = QNetwork
    task = json.loads(sys.argv[2])
    shorter, before = seconds_of(dqn, task, task["warm_up"])
    longer, after = seconds_of(dqn, task, task["warm_up"] + task["timed"])
    work = {"updates": after - before, "batch_size": task["batch"], "seconds": longer - shorter}
    print(json.dumps({"agent_steps": task["timed"], **work}))


if __name__ == "__main__":
    main()
