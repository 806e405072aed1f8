"""Rules that the tracked tree keeps."""

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from workbench.units import MIB

ROOT = Path(__file__).parent.parent
TOP_LEVEL = {
    "pyproject.toml", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "requirements.lock",
    "workbench", "predictors", "notebooks", "runs", "data", "tests",
}  # fmt: skip
CODE = [path for package in ("workbench", "predictors") for path in sorted((ROOT / package).rglob("*.py"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def tracked():
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    return [ROOT / name for name in listed.stdout.split("\0") if name]


def test_the_tree_travels_in_one_transfer(tracked):
    assert sum(path.stat().st_size for path in tracked if path.exists()) < 56 * MIB


def test_nothing_else_lies_at_the_top(tracked):
    top = {path.relative_to(ROOT).parts[0] for path in tracked}
    assert {name for name in top if not name.startswith(".")} <= TOP_LEVEL


def test_of_results_only_their_readme_is_tracked(tracked):
    assert [path.name for path in tracked if path.is_relative_to(ROOT / "runs")] == ["README.md"]


def test_modules_are_short():
    assert {str(path.relative_to(ROOT)) for path in CODE if len(path.read_text().splitlines()) > 400} == set()


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    assert {str(path.relative_to(ROOT)) for path in CODE if marks.search(path.read_text())} == set()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_are_thin_and_carry_no_outputs(path):
    cells = json.loads(path.read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert len({cell["id"] for cell in cells}) == len(cells)
    assert len(code) <= 15
    assert not any(re.search(r"(?m)^\s*(def|class) ", "".join(cell["source"])) for cell in code)


def test_the_lock_pins_every_dependency_and_names_no_address():
    lock = (ROOT / "requirements.lock").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    names = {re.match(r"[\w.-]+", line).group().lower() for line in wanted} - {"torch"}
    pinned = set(re.findall(r"(?m)^([\w.-]+)==", lock))
    assert names <= pinned
    assert "torch" not in pinned
    assert "://" not in lock
    assert re.fullmatch(r"(#.*\n|[\w.-]+==\S+( ; .*)?\n)*", lock)


def test_the_torch_that_make_installs_is_in_the_range_of_the_project():
    version = re.search(r"(?m)^TORCH := (\S+)$", (ROOT / "Makefile").read_text()).group(1)
    [allowed] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"]
    low, high = re.fullmatch(r"torch>=(\d+)\.(\d+),<(\d+)\.(\d+)", allowed).group(1, 2), allowed.rsplit("<")[-1].split(".")
    assert tuple(map(int, low)) <= tuple(map(int, version.split(".")[:2])) < tuple(map(int, high))


def test_ci_runs_the_tests_and_the_gates():
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0
    assert script.read_text().splitlines()[-2:] == ["make test", "make gates SMOKE=1"]
