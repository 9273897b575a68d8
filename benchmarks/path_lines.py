"""How much code there is between `twin-graph train` and `session.run`, with all that one minibatch touches.

    python benchmarks/path_lines.py [CHECKOUT]

Counts lines with code: no blank lines, comments or docstrings.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

#: In the order of the walk in CONTRIBUTING.md; where a version has other names for them, those are counted.
PATH = (
    ("cli/train.py",),
    ("twin_graph/training/trainer.py",),
    ("twin_graph/training/loop.py",),
    ("twin_graph/agent/agent.py",),
    ("twin_graph/agent/actor.py",),
    ("twin_graph/replay/ring.py",),
    ("twin_graph/replay/sampling.py",),
    ("twin_graph/agent/learners.py",),
    ("twin_graph/agent/prefetched.py",),
    ("twin_graph/config/turns.py",),
    ("twin_graph/agent/learner.py",),
    ("twin_graph/agent/restored.py", "twin_graph/bootstrap.py"),
    ("twin_graph/twin/twin.py",),
    ("twin_graph/twin/callables.py", "twin_graph/calls.py"),
    ("twin_graph/twin/model.py",),
    ("twin_graph/twin/compiled_updates.py",),
    ("twin_graph/twin/losses.py",),
    ("twin_graph/twin/optimizers.py",),
    ("twin_graph/twin/networks.py",),
)
_NOTHING = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


def code_lines(source: str) -> int:
    """Lines on which there is code."""
    documented = ast.Module | ast.ClassDef | ast.FunctionDef
    docstrings = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, documented) and ast.get_docstring(node) is not None:
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NOTHING:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def main(checkout: Path) -> None:
    total = files = 0
    for names in PATH:
        if path := next((checkout / name for name in names if (checkout / name).exists()), None):
            count = code_lines(path.read_text(encoding="utf-8"))
            print(f"{count:6,}  {path.relative_to(checkout)}")
            total, files = total + count, files + 1
    print(f"{total:6,}  in {files} files")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
