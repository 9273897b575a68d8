"""Modules that people name in settings: their files, found without running any code, and how they come to be imported.

Commands look for them among the installed packages, and then in the folder in which they were started.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

_T = TypeVar("_T")
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_SAFE_PATH = "PYTHONSAFEPATH"  # of Python: a child does not look for modules in the present folder first
_BUILT_IN = "built-in"

_here: list[str] = []  # the folder in which the command was started


def is_name(text: str) -> bool:
    """Whether it can be the name of a module, as `package.module`."""
    return _NAME.fullmatch(text) is not None


def is_the_program(module: str) -> bool:
    """Whether a name means the program that runs, which its user wrote; in a command it means nothing of the kind."""
    return module == "__main__" and not _here


def find_here(folder: str = "") -> None:
    """Lets this process find modules that settings name in the present folder, or this one: last.

    Bytecode that lies there is not read, which may be that of another source than the one beside it. The process needs
    to have been started without that folder in its path, as by `python -P -m` or by a console script.
    """
    with contextlib.suppress(FileNotFoundError):
        _here.append(folder or str(Path.cwd()))
        sys.path_hooks.insert(0, _finder_here)


def files_of(module: str) -> list[Path]:
    """What is run when a module is imported: files of the packages that it is in, then its own. Empty where none is
    found."""
    if module in sys.builtin_module_names:
        return [Path(_BUILT_IN)]
    if not is_name(module):
        return []
    return _found(module, None) or _found(module, _here) or _loaded(module)


def prepare(module: str) -> None:
    """Lets a module that settings name be imported if it is in the folder of `find_here`. From then on, other imports
    find that folder, too, after all others."""
    if not _found(module, None) and _found(module, _here):
        sys.path.extend(folder for folder in _here if folder not in sys.path)


@contextlib.contextmanager
def safe_children() -> Iterator[None]:
    """While it lasts, Python processes that a command starts do not look for modules in the present folder first."""
    before = os.environ.get(_SAFE_PATH)
    if _here:
        os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_SAFE_PATH, None)


def for_child(make: Callable[[], _T]) -> Callable[[], _T]:
    """The same, to be called by a child process of `safe_children`: it finds the modules that this process finds."""
    return _Made(tuple(_here), make) if _here else make


class _Made:
    def __init__(self, folders: Sequence[str], make: Callable[[], Any]) -> None:
        self._folders, self._make = folders, make

    def __call__(self) -> Any:
        if multiprocessing.parent_process():
            os.environ.pop(_SAFE_PATH, None)  # what the child starts is not ours
        for folder in self._folders:
            if folder not in _here:
                find_here(folder)
        return self._make()


class _SourceLoader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


def _finder_here(path: str) -> importlib.machinery.FileFinder:
    """For `sys.path_hooks`: the finder of a folder in that of `find_here`, but for what is installed there."""
    installed = (entry for entry in sys.path if entry and entry not in _here)
    is_here = any(Path(path).is_relative_to(folder) for folder in _here)
    if not is_here or any(Path(path).is_relative_to(entry) for entry in installed):
        raise ImportError(path)
    extensions = importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES
    return importlib.machinery.FileFinder(path, extensions, (_SourceLoader, importlib.machinery.SOURCE_SUFFIXES))


def _found(module: str, path: list[str] | None) -> list[Path]:
    """Its files, looked for in these folders, or wherever this process imports from."""
    files, parts = [], module.split(".")
    finders: list[Any] = [importlib.machinery.PathFinder] if path is not None else [*sys.meta_path]
    for i in range(1, len(parts) + 1):
        spec = _spec(".".join(parts[:i]), path, finders)
        if spec is None:
            # A folder without `__init__.py`: in another one, its parent would have to be imported to find it.
            path = [str(inside) for one in path or () if (inside := Path(one, parts[i - 1])).is_dir()]
            continue
        if spec.origin and spec.has_location:
            files.append(Path(spec.origin))
        locations = spec.submodule_search_locations
        path = list(getattr(locations, "_path", locations) or [])
        if not path and i < len(parts):
            return []
    return files if spec is not None and spec.has_location else []


def _spec(name: str, path: list[str] | None, finders: Sequence[Any]) -> importlib.machinery.ModuleSpec | None:
    """As `importlib.util.find_spec`, which imports the packages that a module is in."""
    for finder in finders:
        with contextlib.suppress(Exception):  # of a folder that cannot be read, for example
            if spec := finder.find_spec(name, path):
                return spec  # type: ignore[no-any-return]
    return None


def _loaded(module: str) -> list[Path]:
    file = getattr(sys.modules.get(module), "__file__", None)
    return [Path(file)] if file else []
