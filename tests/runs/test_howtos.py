"""The pages that one follows from top to bottom: what they tell the reader to type is typed here, in a new folder."""

import re
import socket
from pathlib import Path

import pytest
from commands import bash

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [DOCS / "get-started.md", *sorted((DOCS / "how-to").glob("*.md"))]
BLOCK = re.compile(r"^( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\S+\.(?:py|toml))\n")


def script(page: str) -> str:
    """Its ```sh blocks, and before each the files that blocks above it show: those that begin with `# name.py`."""
    parts = []
    for indent, language, text in BLOCK.findall(page):
        assert not indent, f"nobody would run this indented block:\n{text}"
        if language == "sh":
            parts.append(text)
        elif name := FILE.match(text):
            parts.append(f"cat > {name[1]} <<'END OF FILE'\n{text}END OF FILE\n")
    return "".join(parts)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_command_of_a_page_succeeds(page: Path, tmp_path: Path) -> None:
    commands = script(page.read_text())
    assert "twin-graph" in commands
    with socket.create_server(("127.0.0.1", 0)) as free:  # a page has one server, on a port that others may use here
        commands = re.sub(r"(?<=127\.0\.0\.1:)\d+", str(free.getsockname()[1]), commands)
    done = bash(commands, cwd=tmp_path, timeout=600)
    if done.returncode:
        pytest.fail(f"exit code {done.returncode}\n{done.stdout}", pytrace=False)


@pytest.mark.parametrize("broken", ["twin-graph status nowhere", "twin-graph log nowhere | cat", "wait $late"])
def test_a_command_that_fails_fails_its_page(broken: str, tmp_path: Path) -> None:
    blocks = ["twin-graph trane cartpole & late=$!", broken, "touch after"]
    commands = script("".join(f"```sh\n{block}\n```\n" for block in blocks))
    assert bash(commands, cwd=tmp_path, timeout=60).returncode != 0
    assert not (tmp_path / "after").exists()
