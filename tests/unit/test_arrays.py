"""Files of arrays, whole and otherwise."""

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from twin_graph.base.arrays import load_all


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def header(text: str, content: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + content


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(6, dtype=np.float32).reshape(2, 3), np.asfortranarray(np.arange(6).reshape(2, 3)), np.array(3.5)),
        *(np.zeros((0, 4), np.uint8), np.array([True, False]), np.array(["a", "bc"])),
    ],
)
def test_whole_arrays_come_back(tmp_path: Path, array: np.ndarray) -> None:
    (tmp_path / "a.npy").write_bytes(npy(array))
    (tmp_path / "a.npys").write_bytes(npy(array) * 2)
    np.savez(tmp_path / "a.npz", one=array, two=array)
    both = load_all(tmp_path / "a.npys", ["one", "two"])
    members = load_all(tmp_path / "a.npz")
    for found in (load_all(tmp_path / "a.npy", ["one"])["one"], *both.values(), *members.values()):
        assert found.dtype == array.dtype
        assert found.flags.writeable
        np.testing.assert_array_equal(found, array)
    assert [*both] == [*members] == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it holds no array"),
        (npy(np.zeros(5))[:-1], "it is cut short"),
        (npy(np.zeros(5)) + b"x", "something follows"),
        (npy(np.array([None], dtype=object)), "not of numbers"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,)}\n", b"x"), "cut short"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775807)}\n"), "cut short"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,)}\n"), "impossible shape"),
        (header("{'descr': '<f8', 'fortran_order': False, 'shape': (True,)}\n", bytes(8)), "impossible shape"),
        (header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {'(' * 4000}"), "it holds no array"),
        (b"\x93NUMPY\x02\x00" + b"\xff" * 4 + b"{}", "header is too long"),
        (b"\x93NUMPY\x09\x00" + b"\xff" * 4, "unknown version"),
    ],
)
def test_what_is_no_whole_array_is_refused_in_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    for name in ("a.npy", "a.npys"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=reason) as error:
            load_all(tmp_path / name, ["one"])
        assert "\n" not in str(error.value)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("one.npy", content)
    with pytest.raises(ValueError, match=reason):
        load_all(tmp_path / "a.npz")


def test_archives_are_stored_whole_and_hold_arrays_only(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, one=np.zeros(10_000))
    with pytest.raises(ValueError, match=r"it is compressed|more than it does"):
        load_all(path)
    for name in ("one", "one.txt"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, npy(np.zeros(1)))
        with pytest.raises(ValueError, match="something else than arrays"):
            load_all(path)
    np.savez(path, one=np.zeros(100), two=np.zeros(100))
    whole = path.read_bytes()
    rng = np.random.default_rng(1)
    reasons = []
    for _ in range(300):
        broken = bytearray(whole)
        for at in rng.integers(len(whole), size=3):
            broken[at] ^= int(rng.integers(1, 256))
        path.write_bytes(broken[: rng.integers(len(whole)) if rng.random() < 0.3 else None])
        try:
            load_all(path)
        except ValueError as error:
            reasons.append(str(error))
    assert len(reasons) > 250
    assert not any("\n" in reason for reason in reasons)
