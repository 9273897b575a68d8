"""What the machine offers, read from the operating system."""

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

_CONTROL_GROUP = Path("/sys/fs/cgroup")  # of this container, if it is in one (Linux control groups, version 2)
_FEATURES = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16")


class Cpu(NamedTuple):
    """Model name, cores that this process may use, and those of the features that matter to TensorFlow.

    A container that may use the time of two cores has two, however many it sees.
    """

    model: str
    cores: int
    features: tuple[str, ...]


def describe() -> Cpu:
    """This machine's processor; model and features are read from /proc and so known on Linux alone."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    facts = dict(line.split(":", 1) for line in reversed(lines) if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    flags = facts.get("flags", "").split()
    return Cpu(
        model=facts.get("model name") or platform.processor() or platform.machine(),
        cores=_cores(),
        features=tuple(feature for feature in _FEATURES if feature in flags),
    )


def has_bf16() -> bool:
    """Whether the processor multiplies bfloat16 itself, as far as is known."""
    return bool({"avx512_bf16", "amx_bf16"} & set(describe().features))


def emulated(precision: str) -> Iterator[str]:
    """A sentence about a precision (`twin.precision`) that this processor can only emulate; none about any other."""
    if precision == "bf16" and describe().features and not has_bf16():  # features of some machines are not known
        yield "twin.precision=bf16 is several times slower than fp32 here: this processor only emulates bfloat16"


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
