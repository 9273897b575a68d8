"""The shape of the code, counted: what CONTRIBUTING.md says of it comes from here.

    python tests/house.py         # rooms, layers, sizes
    python tests/house.py walks   # files in which something is called, in three walks of a CartPole run

`lint-imports` checks who may import whom.
"""

import argparse
import ast
import contextlib
import io
import os
import sys
import tempfile
import threading
import tokenize
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent.parent
#: Rooms that everything uses, and that no walk is about.
_UNDER_EVERYTHING = "base", "config"
_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
_TINY = {
    "train.steps": 600,
    "train.start_steps": 100,
    "train.chunk_steps": 0,
    "twin.compiled": False,
    "twin.precision": "fp32",
    "twin.threads": 1,
    "target.refresh_every_updates": 50,
    "evaluate.every_steps": 300,
    "evaluate.episodes": 2,
}


def code_lines(source: str) -> int:
    """Lines on which there is code: no blank lines, comments or docstrings."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            docstrings |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def longest_chain() -> list[str]:
    """Modules each of which imports the next, where no chain is longer; what is imported for types alone left out."""
    import grimp

    graph = grimp.build_graph("twin_graph", exclude_type_checking_imports=True)
    chains: dict[str, list[str]] = {}

    def chain(module: str) -> list[str]:
        if module not in chains:
            below = [chain(one) for one in sorted(graph.find_modules_directly_imported_by(module))]
            chains[module] = [module, *max(below, key=len, default=[])]
        return chains[module]

    return max((chain(module) for module in sorted(graph.modules)), key=len)


def shape() -> None:
    """Prints the counts."""
    sources = {path: path.read_text() for folder in ("twin_graph", "cli") for path in (HERE / folder).rglob("*.py")}
    functions: list[tuple[int, str]] = []
    parameters: list[tuple[int, str]] = []
    methods: list[tuple[int, str]] = []
    for path, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef):
                functions.append(((node.end_lineno or 0) - node.lineno + 1, f"{path.name}:{node.name}"))
                names = [one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
                if not any("click" in ast.unparse(one) for one in node.decorator_list):
                    count = len(names) - (names[:1] in (["self"], ["cls"]))
                    parameters.append((count, f"{path.name}:{node.name}"))
            if isinstance(node, ast.ClassDef):
                methods.append((sum(isinstance(one, ast.FunctionDef) for one in node.body), f"{path.name}:{node.name}"))
    rooms = [
        path for path in (HERE / "twin_graph").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    chain = longest_chain()
    print(f"{len(rooms)} rooms at the top of twin_graph/")
    print(f"{len(chain)} layers: {' > '.join(one.removeprefix('twin_graph.') for one in chain)}")
    print(f"{sum(map(code_lines, sources.values())):,} lines of code in {len(sources)} files")
    for count, what in (max(functions), max(parameters), max(methods)):
        print(f"at most {count}: {what}")


@contextlib.contextmanager
def seen(files: set[str]) -> Iterator[None]:
    """Adds the files of twin_graph in which something is called meanwhile, in any thread."""
    root = f"{HERE}/twin_graph/"

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(root):
            name = path.removeprefix(root)
            if name.partition("/")[0] not in _UNDER_EVERYTHING:
                files.add(name)

    threading.setprofile_all_threads(profile) if sys.version_info >= (3, 12) else threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile_all_threads(None) if sys.version_info >= (3, 12) else threading.setprofile(None)


def walks() -> dict[str, list[str]]:
    """The files of each walk: one refresh of the target, one scheduled evaluation, one minibatch."""
    sys.path.insert(0, str(HERE))
    from twin_graph import config, envs
    from twin_graph.agent.agent import Agent
    from twin_graph.agent.live_run import LiveRun
    from twin_graph.snapshots.run import create
    from twin_graph.training import trainer
    from twin_graph.training.evaluator import Evaluator

    found: dict[str, set[str]] = {"refresh": set(), "evaluation": set(), "minibatch": set()}
    refresh_if_due, newest, prepare, train = LiveRun.refresh_if_due, Evaluator.newest, Agent.prepare, Agent.train

    def refresh(live: LiveRun) -> None:
        files = set[str]()
        before = live.learners.first.target.snapshots
        with seen(files):
            refresh_if_due(live)
        if live.learners.first.target.snapshots != before:
            found["refresh"] |= files

    def evaluated(evaluator: Evaluator) -> Iterator[Any]:
        found["evaluation"].clear()
        happened = newest(evaluator)
        while True:
            with seen(found["evaluation"]):
                one = next(happened, None)
            if one is None:
                return
            yield one

    def prepared(agent: Agent, updates: range) -> Any:
        found["minibatch"].clear()  # the first also chooses the held-out observations
        with seen(found["minibatch"]):
            return prepare(agent, updates)

    def trained(agent: Agent, ready: Any) -> Any:
        with seen(found["minibatch"]):
            return train(agent, ready)

    LiveRun.refresh_if_due = refresh  # type: ignore[method-assign]
    Agent.prepare, Agent.train = prepared, trained  # type: ignore[method-assign]
    Evaluator.newest = evaluated  # type: ignore[method-assign]
    settings = config.load("cartpole", _TINY)
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(envs.make(settings.env, count=1)) as env:
        for _ in trainer.train(create(Path(folder) / "run", settings), env):
            pass
    return {name: sorted(files) for name, files in found.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["shape", "walks"], default="shape")
    if parser.parse_args().what == "shape":
        os.chdir(HERE)
        sys.path.insert(0, str(HERE))
        shape()
    else:
        for name, files in walks().items():
            print(f"{name}: {len(files)} files: {', '.join(files)}")
