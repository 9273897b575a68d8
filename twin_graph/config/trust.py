"""Which code a run's settings may run: what the user named on this machine, or has trusted since.

A setting may name code as `module:function`. Whoever sends a run chooses its settings, and a checksum does not say who
wrote them. So settings that were read from a folder (`take`) run no code until the user has named it in this process
(`give`), or the user's own folder of trusted code has it, outside of any run. A file there is made

- when a run is begun whose settings the user gave (`remember`): it trusts this name in the module's file at its path,
  which the user may edit;
- by `--trust-code` (`accept`): it trusts this name in a file at its path as long as its content, and that of the
  packages that it is in, stay what they are.

What a module imports is not looked at: who trusts a module trusts what it imports.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from twin_graph.base import modules
from twin_graph.errors import UntrustedError, UsageError

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

#: Names to be trusted besides, with commas between them: for machines that keep nothing of the user's.
ALSO_TRUSTED = "TWIN_GRAPH_TRUSTED_CODE"
_DIGITS = 12  # of a hash, for people

_given: set[str] = set()  # names in settings that this process was given by its user
_read: set[str] = set()  # names in settings that were read from folders
_accepted: set[str] = set()  # names that this process was told to trust
_owned: set[str] = set()  # ids of runs that this process began
_told: list[Callable[[str], object]] = []  # whoever gave `--trust-code`
_is_reading = False


class Code(NamedTuple):
    """Code that a setting names.

    Attributes:
      setting: the setting, and its value.
      name: `module:function`.
    """

    setting: str
    name: str

    def words(self) -> str:
        """For people: `network=evil:pick (/tmp/evil.py, sha256 3fa9c1d2...)`."""
        files = modules.files_of(self.module)
        if not files:
            return f"{self.setting} (no file of it is found)"
        *packages, file = files
        after = f", after {', '.join(map(str, packages))}" if packages else ""
        return f"{self.setting} ({file}, sha256 {sha256_of([file])[:_DIGITS]}...{after})"

    @property
    def module(self) -> str:
        return self.name.partition(":")[0]

    @property
    def by_place(self) -> Path:
        """What trusts it as a file of the user's own."""
        return _mark(f"{self.name} in {self._place}")

    @property
    def by_content(self) -> Path:
        """What trusts it as it is now."""
        return _mark(f"{self.name} in {self._place} with {sha256_of(modules.files_of(self.module))}")

    @property
    def _place(self) -> str:
        return str([Path(), *modules.files_of(self.module)][-1].absolute())

    @property
    def is_trusted(self) -> bool:
        """Whether it may be run."""
        known = _given | _accepted | {*os.environ.get(ALSO_TRUSTED, "").split(",")}
        if self.name not in _read or self.name in known or modules.is_the_program(self.module):
            return True
        return bool(modules.files_of(self.module)) and (self.by_place.exists() or self.by_content.exists())


def name_in(value: Any) -> str:
    """The code that a setting's value names, as `module:function`; empty where it names none."""
    module, separator, rest = value.partition(":") if isinstance(value, str) else ("", "", "")
    inside = re.match(r"[\w./-]*", rest)
    return f"{module.strip()}:{inside[0] if inside else ''}" if separator else ""


def named(settings: Settings) -> list[Code]:
    """The code that settings name."""
    found = []
    for key, value in settings.model_dump(by_alias=True).items():
        inside = value.items() if isinstance(value, Mapping) else [("", value)]
        found += [
            Code(f"{key}{'.' if name else ''}{name}={one}", code) for name, one in inside if (code := name_in(one))
        ]
    return found


def untrusted(settings: Settings) -> list[Code]:
    """The code that settings name and that may not be run."""
    return [code for code in named(settings) if not code.is_trusted]


def give(values: Iterable[Any]) -> None:
    """Takes note of values that the user of this process gave, on the command line or in a program."""
    (_read if _is_reading else _given).update(filter(None, map(name_in, values)))


def take(settings: Settings) -> None:
    """Takes note of settings that were read from a folder: others may have written them."""
    _read.update(code.name for code in named(settings))


@contextlib.contextmanager
def reading() -> Iterator[None]:
    """While it lasts, settings are made from what was read from a folder: nothing of them is the user's word."""
    global _is_reading
    before, _is_reading = _is_reading, True
    try:
        yield
    finally:
        _is_reading = before


def check(setting: str, value: str) -> None:
    """Raises `UntrustedError` if the code that this value of a setting names may not be run, `UsageError` if it cannot
    be the name of any."""
    code = Code(f"{setting}={value}", name_in(value))
    if ":" in value and not modules.is_name(value.partition(":")[0]):
        raise UsageError(f"{code.setting}: {value.partition(':')[0]!r} cannot be the name of a module")
    if not code.is_trusted:
        raise _refusal([code], "settings that were read from a folder name")


def check_all(settings: Settings, whose: Path) -> None:
    """Raises `UntrustedError`, which names all of it, if some code that settings of a run name may not be run.

    After `trust_all` it is trusted from here on, and people are told.
    """
    refused = untrusted(settings)
    if refused and not _told:
        raise _refusal(refused, f"{whose} was not begun here, and its settings name")
    for code in refused:
        accept(code)
        _told[-1](f"trusted from here on: {code.words()}")


def _refusal(refused: Iterable[Code], who: str) -> UntrustedError:
    listed = "; ".join(code.words() for code in refused)
    return UntrustedError(
        f"{who} code: {listed}. Code can do whatever you can do: read it, and if you trust it, give --trust-code, once"
    )


def trust_all(tell: Callable[[str], object]) -> None:
    """From here on, `check_all` trusts what it would refuse, and tells of it: the user gave `--trust-code`."""
    _told.append(tell)


def accept(code: Code) -> None:
    """Trusts code from here on, as it is now."""
    _accepted.add(code.name)
    if not modules.files_of(code.module) or not _write(code.by_content, f"{code.words()}, as it is"):
        _tell_children(code)


def remember(settings: Settings) -> None:
    """Trusts, for later processes, what the user named in the settings of a run that begins here."""
    for code in named(settings):
        if (code.name in _given or code.name not in _read) and modules.files_of(code.module):
            _given.add(code.name)
            if not code.by_place.exists() and not _write(code.by_place, code.words()):
                _tell_children(code)


def tell_children(settings: Settings) -> None:
    """Lets processes that this one starts, also on other machines, run what it may run itself of these settings."""
    for code in named(settings):
        if code.is_trusted:
            _tell_children(code)


def _tell_children(code: Code) -> None:
    known = os.environ.get(ALSO_TRUSTED, "")
    os.environ[ALSO_TRUSTED] = ",".join(dict.fromkeys(filter(None, [*known.split(","), code.name])))


def claim(run_id: str) -> None:
    """Takes note that a run is the user's own: see `is_own`."""
    _owned.add(run_id)
    _write(_own(run_id), f"run {run_id} was begun here")


def is_own(run_id: str) -> bool:
    """Whether a run was begun here, by its id: only such a run sends anything to where its settings say."""
    return run_id in _owned or _own(run_id).exists()


def _own(run_id: str) -> Path:
    return _mark(f"run {run_id}")


def _mark(what: str) -> Path:
    return _folder() / hashlib.sha256(what.encode("utf-8", "surrogateescape")).hexdigest()


def _folder() -> Path:
    return configuration() / "trusted"


def configuration() -> Path:
    """The user's own folder for what this package keeps outside of runs."""
    return user_folder("XDG_CONFIG_HOME", ".config")


@functools.cache
def user_folder(variable: str, usual: str) -> Path:
    """This package's folder in the user's own of a kind: where a variable says, or as usual in the home."""
    given = os.environ.get(variable, "")
    try:
        user = Path(given) if Path(given).is_absolute() else Path.home() / usual
    except RuntimeError:  # a user without a home
        user = Path("/nonexistent")
    return user / "twin-graph"


def _write(mark: Path, words: str) -> bool:
    """Whether it could be written. It means something by being there; the words are for people."""
    try:
        mark.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        mark.write_text(f"{words}\n", encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return True


def sha256_of(files: Iterable[Path]) -> str:
    """Of the content of these files, one after the other; what cannot be read, as a built-in module, is empty."""
    digest = hashlib.sha256()
    for file in files:
        with contextlib.suppress(OSError):
            digest.update(file.read_bytes())
    return digest.hexdigest()
