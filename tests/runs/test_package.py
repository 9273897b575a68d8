"""What is shipped: a wheel and an sdist that hold the package and nothing else, and install offline."""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = {"twin_graph": "twin_graph", "twin_graph_cli": "cli"}


def run(*command: object, cwd: Path, **environment: str) -> str:
    env = {**os.environ, **environment}
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(kind: str, source: Path, folder: Path) -> Path:
    """As `python -m build` does, by the setuptools that is installed."""
    code = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
    run(sys.executable, "-c", code, folder, cwd=source)
    [made] = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """An sdist of a copy of this tree, and a wheel of the unpacked sdist."""
    if int(version("setuptools").partition(".")[0]) < 77:
        pytest.skip("building offline needs setuptools 77")
    folder = tmp_path_factory.mktemp("dist")
    others = shutil.ignore_patterns(".*", "checkpoints", "build", "dist", "*.egg-info", "__pycache__")
    sdist = build("sdist", Path(shutil.copytree(ROOT, folder / "tree", ignore=others)), folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [source] = (folder / "unpacked").iterdir()
    return {"sdist": sdist, "wheel": build("wheel", source, folder)}


def test_the_wheel_holds_all_files_of_the_package_and_nothing_else(dist: dict[str, Path]) -> None:
    """Presets, the page of `view` and py.typed; no tests, no docs."""
    wanted = {
        f"{package}/{path.relative_to(ROOT / folder)}"
        for package, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    for part in ("config/presets/pong.toml", "view/static/index.html", "view/static/uplot/LICENSE", "py.typed"):
        assert f"twin_graph/{part}" in wanted
    names = [name for name in zipfile.ZipFile(dist["wheel"]).namelist() if not name.endswith("/")]
    metadata = {name.partition("/")[2] for name in names if ".dist-info/" in name}
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert metadata >= {"licenses/LICENSE", "licenses/twin_graph/view/static/uplot/LICENSE", "entry_points.txt"}


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_offline_and_lists_its_presets(dist: dict[str, Path], kind: str, tmp_path: Path) -> None:
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--no-compile", "--target", tmp_path / "site"]
    run(sys.executable, "-m", "pip", "install", "--quiet", *options, dist[kind], cwd=tmp_path)
    listed = run(sys.executable, "-m", "twin_graph_cli", "presets", cwd=tmp_path, PYTHONPATH=str(tmp_path / "site"))
    for preset in (ROOT / "twin_graph" / "config" / "presets").glob("*.toml"):
        assert preset.stem in listed
    assert (tmp_path / "site" / "bin" / "twin-graph").exists()


def test_the_version_is_the_same_everywhere() -> None:
    number = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {number}\n" in (ROOT / "CITATION.cff").read_text()
    assert (ROOT / "CHANGELOG.md").read_text().partition("\n## ")[2].startswith(f"{number} (")
