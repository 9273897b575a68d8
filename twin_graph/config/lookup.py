"""What people choose by name: an entry of a table, or a function of their own as `module:function`."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic

from twin_graph.base import modules
from twin_graph.base.text import nearest, what_is_wrong
from twin_graph.config import trust
from twin_graph.errors import UsageError, place

if TYPE_CHECKING:
    from twin_graph.config.settings import Settings

T = TypeVar("T")


def sources(settings: Settings) -> dict[str, str]:
    """SHA-256 of the file of each module that a setting names, as `module:function` does, by the module's name.

    Of that file alone, not of what it imports. A process that has imported it already runs the code of then.
    """
    named = {code.module for code in trust.named(settings)}
    return {module: digest for module in sorted(named) if (digest := _sha256_of_file(module))}


def edited(recorded: Mapping[str, str]) -> list[str]:
    """Of the modules that `sources` found, those whose file is another one now."""
    return [module for module, digest in recorded.items() if _sha256_of_file(module) not in ("", digest)]


def _sha256_of_file(module: str) -> str:
    """Empty where there is no file; whoever imports the module says why."""
    files = [file for file in modules.files_of(module)[-1:] if file.is_file()]
    return trust.sha256_of(files) if files else ""


def find(setting: str, name: str, table: Mapping[str, T]) -> T | Any:
    """The entry of this name, or the function that `module:function` names.

    Args:
      setting: the setting that names it, for messages.
      name: its value.
      table: what can be chosen.

    Raises:
      UsageError: there is neither.
      UntrustedError: a run that came from elsewhere names the function.
    """
    if name in table:
        return table[name]
    module, separator, function = name.partition(":")
    if not separator:
        raise UsageError(
            f"{setting}={name}: unknown {setting.rpartition('.')[2]} {name!r}; choose {', '.join(table)}, or your own "
            f"as module:function{nearest(name, table)}"
        )
    trust.check(setting, name)
    modules.prepare(module)
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        where = f"; modules are looked for in {Path.cwd()} and among the installed packages"
        hint = where if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{setting}={name}: {error}{hint}") from None
    except SyntaxError as error:
        raise UsageError(f"{setting}={name}: {error.filename}, line {error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:  # the latter of a script that ends itself
        raise UsageError(f"{setting}={name}: {type(error).__name__}: {error} ({place(error)})") from error
    if not callable(found):
        raise UsageError(f"{setting}={name} is not a function")
    return found


def call(setting: str, text: str, table: Mapping[str, T], *, skip: int) -> tuple[T | Any, dict[str, Any]]:
    """The function that a text such as `mix(0.8, 8)` names, and its arguments by name, checked by their annotations.

    Args:
      setting: whose value it is, for messages.
      text: a name, and the parameters' values in parentheses.
      table: see `find`.
      skip: parameters before those that a person gives.

    Raises:
      UsageError: there is no such function, or the values do not fit it.
    """
    form = re.fullmatch(r"\s*([\w.]+(?::\w+)?)\s*(?:\((.*)\))?\s*", text)
    if not form:
        raise UsageError(f"{setting}={text}: write it as a name with its parameters, for example 'mix(0.8, 8)'")
    name, inside = form[1], (form[2] or "").strip()
    function: Any = find(setting, name, table)
    values = [value.strip() for value in inside.split(",")] if inside else []
    try:
        parameters = list(inspect.signature(function, eval_str=True).parameters.values())[skip:]
    except Exception as error:  # of what is written in C, and of annotations that name what is not there
        raise UsageError(f"{setting}={text}: its parameters cannot be read: {error}") from None
    usage = f"{name}({', '.join(p.name if p.default is p.empty else f'{p.name}={p.default}' for p in parameters)})"
    if len(values) > len(parameters) or any(p.default is p.empty for p in parameters[len(values) :]):
        raise UsageError(f"{setting}={text}: it takes {usage}")
    arguments = {p.name: p.default for p in parameters}
    for parameter, value in zip(parameters, values, strict=False):
        if value == str(parameter.default):  # as `usage` has it, also where no text can be read as it: None
            continue
        if parameter.annotation is parameter.empty:
            raise UsageError(f"{setting}={text}: the parameter {parameter.name} needs a type annotation")
        try:
            arguments[parameter.name] = pydantic.TypeAdapter(parameter.annotation).validate_python(value)
        except pydantic.ValidationError as error:
            wrong = what_is_wrong(error.errors()[0])
            raise UsageError(f"{setting}={text}: {parameter.name}={value}: {wrong}; it takes {usage}") from None
        except pydantic.errors.PydanticUserError:
            raise UsageError(
                f"{setting}={text}: the annotation of {parameter.name} is not one that a text can be read as, such as "
                "int, float or str"
            ) from None
    return function, arguments
