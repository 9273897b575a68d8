"""Pages of the site that are not files in docs/: those from elsewhere in the repository, and those made from the code.

MkDocs calls `on_files` and `on_page_markdown`.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

import reference
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
    "checkpoints/README.md": "reference/records.md",
}
GENERATED = {
    "reference/command-line.md": reference.command_line,
    "reference/settings.md": reference.settings,
}
_FENCE_OR_LINK = re.compile(r"^(```.*?^```)|\[([^\]\[]*)\]\(([^()\s]+)\)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, make in GENERATED.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links at pages of the site. The repository has no address to link other files to: their paths are text."""
    name = page.file.src_uri
    source = next((source for source, target in ELSEWHERE.items() if target == name), f"docs/{name}")

    def rewrite(match: re.Match[str]) -> str:
        code, text, link = match.groups()
        path, hash_, anchor = (link or "").partition("#")
        if code or not path or "://" in path:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in ELSEWHERE or path.startswith("docs/"):
            target = ELSEWHERE.get(path, path.removeprefix("docs/"))
            return f"[{text}]({posixpath.relpath(target, posixpath.dirname(name) or '.')}{hash_}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # which MkDocs reports
        return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"

    return _FENCE_OR_LINK.sub(rewrite, markdown)
