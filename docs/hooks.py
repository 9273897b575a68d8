"""Pages of the site that are not files in docs/: those from elsewhere in the repository, and those made from the code.

MkDocs calls the functions whose names begin with `on_`.
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
# Blocks of code and headings stay as they are.
_PARTS = re.compile(
    r"^(?: *```.*?^ *```|#[^\n]*)|\[(?P<text>[^\]\[]*)\]\((?P<link>[^()\s]+)\)|`(?P<code>[^`\n]+)`",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    for page, make in GENERATED.items():
        files.append(File.generated(config, page, content=make()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Points links at pages of the site, and settings and commands at their reference.

    The repository has no address to link other files to: their paths become text.
    """
    name = page.file.src_uri
    source = next((source for source, target in ELSEWHERE.items() if target == name), f"docs/{name}")

    def rewrite(match: re.Match[str]) -> str:
        if code := match["code"]:
            link = None if name in GENERATED else reference.link(code)
            return f"[{match[0]}]({_relative(link, name)})" if link else match[0]
        path, hash_, anchor = (match["link"] or "").partition("#")
        if not path or "://" in path:
            return match[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if path in ELSEWHERE or path.startswith("docs/"):
            target = ELSEWHERE.get(path, path.removeprefix("docs/"))
            return f"[{match['text']}]({_relative(target, name)}{hash_}{anchor})"
        if not (ROOT / path).exists():
            return match[0]  # which MkDocs reports
        return f"`{path}`" if match["text"].strip("`") in path else f"{match['text']} (`{path}`)"

    return _PARTS.sub(rewrite, markdown)


def _relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


def on_page_content(html: str, **_: Any) -> str:
    """Marks short names, which are not to break after a hyphen."""
    return re.sub(r"<code>([^<\n]{1,24})</code>", r'<code class="short">\1</code>', html)
