"""Golden traces: whether this tree trains the same weights, bit for bit, as a commit did on the same machine.

    python tests/golden.py record HEAD    trains each setting below with the code of a commit
    python tests/golden.py check          trains them with the code of this tree, and compares

A net for changes that move code and mean to change nothing; not part of the suite. It takes about two minutes.
"""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
RECORD = HERE / ".golden.json"

_SMALL = (
    *("twin.threads=1", "twin.precision=fp32", "train.batch_size=16", "target.refresh_every_updates=40"),
    *("evaluate.episodes=3", "evaluate.every_steps=500", "resume.every_steps=700", "log.every_steps=400"),
)
_VECTORS = (*_SMALL, "train.start_steps=200", "train.every_steps=4", "model.hidden_units=[16]")
_IMAGES = (
    *(*_SMALL, "env.count=2", "train.start_steps=80", "train.every_steps=4", "replay.capacity_steps=1000"),
    *("train.chunk_steps=16", "target.refresh_every_updates=8", "train.batch_size=4", "evaluate.max_steps=50"),
)
#: By name: the preset, agent steps, and settings. `1000+2000`: it ends at 1,000 and is resumed to 2,000.
TRACES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "blocks compiled by XLA": ("cartpole", "1500", (*_VECTORS, "twin.compiled=true")),
    "step by step": (
        "cartpole",
        "1500",
        (*_VECTORS, "train.chunk_steps=0", "twin.compiled=false", "train.n_step=3", "train.double=true"),
    ),
    "prioritized, dueling, resumed": (
        "cartpole",
        "1000+2000",
        (*_VECTORS, "twin.compiled=false", "replay.prioritized=true", "model.dueling=true"),
    ),
    "ensemble": (
        "cartpole",
        "2000",
        (*_VECTORS, "twin.compiled=false", "target.policy=ensemble(3, min)", "save.every_updates=20"),
    ),
    "mix, resumed under best": (
        "cartpole",
        "1000+2000",
        (*_VECTORS, "twin.compiled=false", "target.policy=mix(0.6, 4)", "save.every_updates=20"),
    ),
    "mutual": ("cartpole", "1500", (*_VECTORS, "mode=mutual", "twin.compiled=false")),
    "self-play": (
        "tictactoe",
        "1500",
        (*_VECTORS, "env.count=4", "opponent.refresh_every_updates=30", "save.every_updates=20", "seed=2"),
    ),
    "blob": ("blob", "600", (*_IMAGES, "env.count=1")),
    "pong": ("pong", "300+400", _IMAGES),
    "pong, bf16 and accumulation": ("pong", "300", (*_IMAGES, "twin.precision=bf16", "train.accumulate=2")),
    "dqn2015, dqn3": ("dqn2015", "300", (*_IMAGES, "loss=dqn3", "train.optimizer=rmsprop_dqn3", "env.count=1")),
    "rollouts": (
        "pong-rollouts",
        "320",
        (
            *_SMALL,
            "env.count=4",
            "train.every_steps=20",
            "train.start_steps=80",
            "train.batch_size=20",
            "train.accumulate=1",
            "evaluate.max_steps=50",
            "target.refresh_every_updates=8",
        ),
    ),
    "images shifted": ("atari-100k", "300", (*_IMAGES, "env.count=1")),
}
#: Settings that change when a run is resumed.
_AT_RESUME = {"mix, resumed under best": ["--set", "target.policy=best(mean)"]}
#: The command line of a tree, whose folder `cli` is installed as `twin_graph_cli`.
_COMMAND = """
import importlib.util, sys
tree = sys.argv.pop(1)
sys.path.insert(0, tree)
spec = importlib.util.spec_from_file_location(
    "twin_graph_cli", f"{tree}/cli/__init__.py", submodule_search_locations=[f"{tree}/cli"]
)
sys.modules["twin_graph_cli"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
import twin_graph
assert twin_graph.__file__ == f"{tree}/twin_graph/__init__.py", twin_graph.__file__
module.run()
"""


def trace(name: str, tree: Path) -> str:
    """`weights_sha256` after training a setting with the code of a tree. Raises `RuntimeError` if that fails."""
    preset, lives, settings = TRACES[name]
    first, *others = lives.split("+")
    with tempfile.TemporaryDirectory() as folder:
        run = f"{folder}/run"
        chosen = [word for setting in settings for word in ("--set", setting)]
        answer = _call(tree, folder, ["train", preset, "--steps", first, "--run-dir", run, "--json", *chosen])
        for steps in others:
            changed = _AT_RESUME.get(name, [])
            answer = _call(tree, folder, ["resume", run, "--steps", steps, "--json", *changed])
    return str(json.loads(answer)["weights_sha256"])


def _call(tree: Path, folder: str, arguments: list[str]) -> str:
    # -P: this folder's modules are no others' of the same names.
    command = [sys.executable, "-P", "-c", _COMMAND, str(tree), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"twin-graph {' '.join(arguments)}\n{done.stderr}")
    return done.stdout


def traces(tree: Path) -> dict[str, str]:
    """All of them, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(zip(TRACES, pool.map(lambda name: trace(name, tree), TRACES), strict=True))


def machine() -> str:
    """What weights depend on besides the code: the processor's instructions."""
    flags = next(line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("flags"))
    return " ".join(sorted(flag for flag in flags.split() if flag.startswith(("avx", "amx", "fma"))))


def record(ref: str) -> None:
    """Writes the traces of a commit to `.golden.json`."""
    commit = subprocess.check_output(["git", "rev-parse", "--verify", f"{ref}^{{commit}}"], cwd=HERE, text=True).strip()
    with tempfile.TemporaryDirectory() as tree:
        archive = subprocess.check_output(["git", "archive", commit], cwd=HERE)
        subprocess.run(["tar", "--extract", "--directory", tree], input=archive, check=True)
        found = traces(Path(tree))
    RECORD.write_text(json.dumps({"commit": commit, "machine": machine(), "weights_sha256": found}, indent=1) + "\n")
    print(f"{len(found)} traces of {commit[:8]} in {RECORD}")


def check() -> int:
    """Compares this tree with what was recorded; the exit code."""
    if not RECORD.exists():
        sys.exit("nothing to compare with: `python tests/golden.py record REF` first")
    recorded = json.loads(RECORD.read_text())
    if recorded["machine"] != machine():
        sys.exit("recorded on another kind of processor, which trains other weights: record again here")
    found, wanted = traces(HERE), recorded["weights_sha256"]
    for name, sha256 in found.items():
        print(f"{'equal' if wanted.get(name) == sha256 else 'OTHER'}  {sha256[:16]}  {name}")
    return 0 if found == wanted else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="train with the code of a commit").add_argument("ref", metavar="REF")
    commands.add_parser("check", help="train with this tree's code, and compare")
    arguments = parser.parse_args()
    if arguments.command == "record":
        record(arguments.ref)
    else:
        sys.exit(check())
