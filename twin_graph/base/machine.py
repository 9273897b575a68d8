"""What the machine offers, read from the operating system."""

import math
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil

from twin_graph.base.text import listed

#: Where Linux describes the processor; other systems have no such file.
CPUINFO = Path("/proc/cpuinfo")

_CONTROL_GROUP = Path("/sys/fs/cgroup")  # of this container, if it is in one (Linux control groups, version 2)
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")
#: What people call the newest instructions that a processor has, by its features; the newest first.
_INSTRUCTION_SETS = {"amx_bf16": "AMX-BF16", "avx512_bf16": "AVX512-BF16", "avx512f": "AVX512", "avx2": "AVX2"}
#: The fields of `Cpu` that only Linux tells, and that records of earlier versions lack.
EXACT = ("family", "model_number", "stepping", "flags")
_FACTS = ("name", "family", "model", "stepping", "flags")  # for people
_SHOWN_FLAGS = 8


class Cpu(NamedTuple):
    """A processor, as far as the operating system says which.

    Attributes:
      model: its marketing name, which several generations may share.
      cores: that this process may use. A container that may use the time of two cores has two, however many it sees.
      features: those of the flags that matter to TensorFlow; none where flags are not known.
      family, model_number, stepping: which one it is; None where that is not known.
      flags: all instructions and abilities that Linux names; None where they are not known.
    """

    model: str
    cores: int
    features: tuple[str, ...]
    family: int | None = None
    model_number: int | None = None
    stepping: int | None = None
    flags: tuple[str, ...] | None = None

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> Self:
        """What `_asdict()` gave, perhaps of an earlier version, and JSON has kept."""
        flags = record.get("flags")
        return cls(
            record["model"],
            record["cores"],
            tuple(record["features"]),
            record.get("family"),
            record.get("model_number"),
            record.get("stepping"),
            None if flags is None else tuple(flags),
        )

    @property
    def instruction_set(self) -> str:
        """`AVX512-BF16`, for example: the newest instructions for TensorFlow's products."""
        newest = (name for feature, name in _INSTRUCTION_SETS.items() if feature in self.features)
        return next(newest, "instruction set not recorded" if self.flags is None else "no AVX2")

    def words(self) -> str:
        """For people: `AMD EPYC (AVX2)`."""
        return f"{self.model} ({self.instruction_set})"

    def exactly(self) -> str:
        """For people: `AMD EPYC (AVX2), family 25, model 1, stepping 1`, as far as that is known."""
        numbers = {"family": self.family, "model": self.model_number, "stepping": self.stepping}
        return ", ".join([self.words(), *(f"{name} {n}" for name, n in numbers.items() if n is not None)])

    def facts(self) -> dict[str, object]:
        """All that is known and can be compared, by what people call it; the instruction set is part of the flags."""
        flags = None if self.flags is None else frozenset(self.flags)
        features = frozenset(self.features) if self.features or flags is not None else None
        values = self.model, self.family, self.model_number, self.stepping, flags, features
        named = zip((*_FACTS, "instruction set"), values, strict=True)
        return {name: value for name, value in named if value is not None}


def differences(then: Cpu, now: Cpu) -> Iterator[tuple[str, str, str]]:
    """What differs between two processors of what is known of both: what it is, and both in words."""
    first, second = then.facts(), now.facts()
    differing = {name for name in first.keys() & second.keys() if first[name] != second[name]}
    if differing - {"flags"}:
        yield "processor", then.exactly(), now.exactly()
    if "flags" in differing:
        ours, theirs = set(then.flags or ()), set(now.flags or ())
        yield (
            "processor's flags",
            _with_without(ours - theirs, theirs - ours),
            _with_without(theirs - ours, ours - theirs),
        )


def _with_without(more: set[str], fewer: set[str]) -> str:
    return ", ".join(f"{word} {_shown(flags)}" for word, flags in (("with", more), ("without", fewer)) if flags)


def _shown(flags: set[str]) -> str:
    """Some of them, those of vector instructions first."""
    names = sorted(flags, key=lambda flag: (not flag.startswith(("amx", "avx", "fma")), flag))
    return ", ".join(names[:_SHOWN_FLAGS]) + (f" and {n} more" if (n := len(names) - _SHOWN_FLAGS) > 0 else "")


def known(*processors: Cpu) -> list[str]:
    """What is known of all of these, by what people call it."""
    names = set.intersection(*(set(processor.facts()) for processor in processors))
    return [
        name
        for name in (*_FACTS, "instruction set")
        if name in names and (name != "instruction set" or "flags" not in names)
    ]


def known_words(*processors: Cpu) -> str:
    """For people: what is known of all of these, and what is not."""
    there = known(*processors)
    missing = [name for name in _FACTS if name not in there]
    return f"the processor's {listed(there)}" + (f", but not its {listed(missing)}" if missing else "")


def describe() -> Cpu:
    """This machine's processor; all but its cores is read from /proc, and so known on Linux alone."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    flags = tuple(facts["flags"].split()) if "flags" in facts else None
    family, number, stepping = (facts.get(name, "") for name in ("cpu family", "model", "stepping"))
    return Cpu(
        model=facts.get("model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        features=tuple(feature for feature in _FEATURES if feature in (flags or ())),
        family=int(family) if family.isdecimal() else None,
        model_number=int(number) if number.isdecimal() else None,
        stepping=int(stepping) if stepping.isdecimal() else None,
        flags=flags,
    )


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself, as far as is known."""
    return bool({"avx512_bf16", "amx_bf16"} & set(describe().features))


def emulated(precision: str) -> Iterator[str]:
    """A sentence about a precision (`twin.precision`) that this processor can only emulate; none about any other."""
    processor = describe()
    if precision == "bf16" and processor.features and not has_bf16():  # features of some machines are not known
        yield f"twin.precision=bf16 is several times slower than fp32 here: {processor.words()} only emulates bfloat16"


def _cores() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = map(int, (_CONTROL_GROUP / "cpu.max").read_text().split())
    except (OSError, ValueError):  # no such group, or its limit is "max"
        return cores
    return min(cores, math.ceil(quota / period))


def memory_free() -> int:
    """Bytes that the machine has free, or that this container's limit leaves. What only caches files counts as free."""
    free = int(psutil.virtual_memory().available)
    try:
        limit = int((_CONTROL_GROUP / "memory.max").read_text())
        used = int((_CONTROL_GROUP / "memory.current").read_text())
        counts = dict(line.split() for line in (_CONTROL_GROUP / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return free
    return min(free, limit - used + int(counts["inactive_file"]))
