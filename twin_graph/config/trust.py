"""Which code a run's settings may run: what the user named on this machine, or has trusted since.

A setting may name code as `module:function`. Whoever sends a run chooses its settings, and a checksum does not say who
wrote them. So settings that were read from a folder run no code until the user's own folder of trusted code has it,
outside of any run. A file there is made

- when a run is begun whose settings the user gave: it trusts this name in the module's file at its path, which the user
  may edit;
- by `--trust-code`: it trusts this name in a file of this content, wherever the file is.

What a module imports is not looked at: who trusts a module trusts what it imports.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph.errors import UntrustedError

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

#: Names to be trusted besides, with commas between them: for machines that keep nothing of the user's.
ALSO_TRUSTED = "TWIN_GRAPH_TRUSTED_CODE"

_BUILT_IN = "built-in"
_DIGITS = 12  # of a hash, for people

_given: set[str] = set()  # names in settings that this process was given by its user
_read: set[str] = set()  # names in settings that were read from folders of runs
_accepted: set[str] = set()  # names that this process was told to trust
_here: list[str] = []  # the folder in which the process began, where modules may be
_offered: list[Callable[[str], object]] = []


class Code(NamedTuple):
    """Code that a setting names.

    Attributes:
      setting: the setting, and its value.
      name: `module:function`.
      file: of the module; None where none is found.
    """

    setting: str
    name: str
    file: Path | None

    def words(self) -> str:
        """For people: `network=evil:pick (/tmp/evil.py, sha256 3fa9c1d2...)`."""
        where = f"{self.file}, sha256 {_sha256(self.file)[:_DIGITS]}..." if self.file else "no file of it is found"
        return f"{self.setting} ({where})"


def named_by(text: Any) -> str:
    """The code that a setting's value names, as `module:function`; empty where it names none."""
    module, separator, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    inside = re.match(r"[\w./-]*", rest)
    return f"{module.strip()}:{inside[0] if inside else ''}" if separator else ""


def named(settings: Settings) -> Iterator[tuple[str, str]]:
    """The settings that name code, as `network=mine:build`, and the code, as `mine:build`."""
    for key, value in settings.model_dump(by_alias=True).items():
        inside = value.items() if isinstance(value, Mapping) else [("", value)]
        for name, one in inside:
            if code := named_by(one):
                yield f"{key}{'.' if name else ''}{name}={one}", code


def give(values: Iterable[Any]) -> None:
    """Takes note of values that the user of this process gave, on the command line or in a program."""
    _given.update(filter(None, map(named_by, values)))


def take(settings: Settings) -> None:
    """Takes note of settings that were read from the folder of a run: others may have written them."""
    _read.update(code for _, code in named(settings))


def is_trusted(name: str) -> bool:
    """Whether code of this name, as `named_by` has it, may be run."""
    if not name or name not in _read or name in _given | _accepted | {*os.environ.get(ALSO_TRUSTED, "").split(",")}:
        return True
    file = file_of(name)
    if file is None:
        return False
    return _by_place(name, file).exists() or bool(_sha256(file) and _by_content(name, file).exists())


def check(setting: str, text: str) -> None:
    """Raises `UntrustedError` if the code that this value of a setting names may not be run."""
    if not is_trusted(name := named_by(text)):
        raise _refusal([Code(f"{setting}={text}", name, file_of(name))], "settings that were read from a run name")


def check_all(settings: Settings, whose: Path) -> None:
    """Raises `UntrustedError`, which names all of it, if some code that settings of a run name may not be run.

    With `--trust-code` it is trusted from here on, and people are told.
    """
    refused = untrusted(settings)
    if refused and not _offered:
        raise _refusal(refused, f"{whose} was not begun here, and its settings name")
    for code in refused:
        accept(code)
        _offered[-1](f"trusted from here on: {code.words()}")


def untrusted(settings: Settings) -> list[Code]:
    """The code that settings name and that may not be run."""
    return [Code(setting, name, file_of(name)) for setting, name in named(settings) if not is_trusted(name)]


def accept(code: Code) -> None:
    """Trusts code from here on, in a file of the content that it has now."""
    _accepted.add(code.name)
    if code.file:
        _write(_by_content(code.name, code.file), f"{code.name} in a file like {code.file}")


def _refusal(refused: Iterable[Code], who: str) -> UntrustedError:
    listed = "; ".join(code.words() for code in refused)
    return UntrustedError(
        f"{who} code: {listed}. Code can do whatever you can do: read it, and if you trust it, give --trust-code, once"
    )


def offer(tell: Callable[[str], object]) -> None:
    """From here on, `check_all` trusts what it would refuse, and tells of it: the user gave `--trust-code`."""
    _offered.append(tell)


def remember(settings: Settings) -> None:
    """Trusts, for later processes, what the user named in the settings of a run that begins here.

    Where nothing can be written, child processes alone will know.
    """
    for _, name in named(settings):
        file = file_of(name)
        if (name in _given or name not in _read) and file:
            _given.add(name)
            if not _by_place(name, file).exists() and not _write(_by_place(name, file), f"{name} in {file}"):
                _tell_children(name)


def tell_children(settings: Settings) -> None:
    """Lets processes that this one starts, also on other machines, run what it may run itself of these settings."""
    for _, name in named(settings):
        if is_trusted(name):
            _tell_children(name)


def _tell_children(name: str) -> None:
    known = os.environ.get(ALSO_TRUSTED, "")
    os.environ[ALSO_TRUSTED] = ",".join(dict.fromkeys(filter(None, [*known.split(","), name])))


def claim(run_id: str) -> None:
    """Takes note, for later processes, that a run is the user's own: see `is_own`."""
    _write(_own(run_id), f"run {run_id} was begun here")


def is_own(run_id: str) -> bool:
    """Whether a run was begun here, by its id: only such a run sends anything to where its settings say."""
    return _own(run_id).exists()


def file_of(name: str) -> Path | None:
    """The file of a module, or of `module:function`, found without running any code of it or of its packages."""
    module = name.partition(":")[0]
    known = sys.modules.get(module)
    if known is not None and getattr(known, "__file__", None):
        return Path(str(known.__file__))
    if module in sys.builtin_module_names:
        return Path(_BUILT_IN)
    return _found(module, None) or _found(module, _here)


def find_here() -> None:
    """Lets this process find modules that settings name in the present folder: last, and only these.

    So no other import finds a file there that came with a run. Nor is bytecode read that lies there, which may be that
    of another source than the one beside it. The process needs to have been started without that folder in its path, as
    by `python -P -m` or by a console script.
    """
    with contextlib.suppress(FileNotFoundError):
        _here.append(str(Path.cwd()))
        sys.path_hooks.insert(0, _finder_here)


class _SourceLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _finder_here(path: str) -> importlib.machinery.FileFinder:
    """For `sys.path_hooks`: the finder of a folder in that of `find_here`."""
    if not any(Path(path).is_relative_to(folder) for folder in _here):
        raise ImportError(path)
    extensions = importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES
    return importlib.machinery.FileFinder(path, extensions, (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES))


def prepare(module: str) -> None:
    """Lets a module that settings name be imported, with what it imports, if it is in the folder of `find_here`."""
    if not _found(module, None) and _found(module, _here):
        sys.path.extend(folder for folder in _here if folder not in sys.path)


def _found(module: str, path: list[str] | None) -> Path | None:
    parts = module.split(".")
    origin = None
    for i in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:i]), path)
        if spec is None:
            return None
        origin, path = spec.origin, list(spec.submodule_search_locations or [])
    return Path(origin) if origin and origin not in ("namespace", "frozen") else None


def _spec(name: str, path: list[str] | None) -> importlib.machinery.ModuleSpec | None:
    """As `importlib.util.find_spec`, which imports the packages that a module is in."""
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    finders = sys.meta_path if path is None or "." in name else [importlib.machinery.PathFinder]
    for finder in finders:
        find = getattr(finder, "find_spec", None)
        with contextlib.suppress(Exception):  # of a folder that is not readable, for example
            if find and (spec := find(name, path)):
                return spec  # type: ignore[no-any-return]
    return None


def _by_place(name: str, file: Path) -> Path:
    return _mark(f"{name} in {file.absolute()}")


def _by_content(name: str, file: Path) -> Path:
    return _mark(f"{name} with {_sha256(file)}")


def _own(run_id: str) -> Path:
    return _mark(f"run {run_id}")


def _mark(what: str) -> Path:
    return _folder() / hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()


@functools.cache
def _folder() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    try:
        configuration = Path(given) if Path(given).is_absolute() else Path.home() / ".config"
    except RuntimeError:  # a user without a home
        configuration = Path("/nonexistent")
    return configuration / "twin-graph" / "trusted"


def _write(mark: Path, words: str) -> bool:
    """Whether it could be written. It means something by being there; the words are for people."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.write_text(f"{words}\n", encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return True


def _sha256(file: Path) -> str:
    """Empty where it cannot be read, as of a built-in module."""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""
