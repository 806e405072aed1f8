"""Notebooks are thin, carry no outputs, and run from top to bottom by the same path as `workbench notebook`."""

import ast
import json

import pytest

from workbench.errors import BadInput
from workbench.gates.notebooks import NotebookConfig, notebook_file, run_notebook
from workbench.paths import notebooks_folder
from workbench.schema import Status, list_runs
from workbench.simulate import planted

NOTEBOOKS = sorted(notebooks_folder().glob("*.ipynb"))
MOST_CODE_CELLS = 15

# papermill, nbconvert and the kernel's client warn of each other and of the event loop
pytestmark = pytest.mark.filterwarnings("ignore")


def code_cells(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stripped_and_its_cells_are_numbered(path):
    content = json.loads(path.read_text())
    assert [cell["id"] for cell in content["cells"]] == [str(i) for i in range(len(content["cells"]))]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code_cells(path))
    assert "papermill" not in content["metadata"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_calls_the_package_and_defines_nothing(path):
    cells = code_cells(path)
    assert len(cells) <= MOST_CODE_CELLS
    trees = [ast.parse("".join(cell["source"])) for cell in cells]
    assert not [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef | ast.Lambda)]
    assert sum("parameters" in cell["metadata"].get("tags", []) for cell in cells) == 1


@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if path.stem != "start"], ids=lambda path: path.stem)
def test_a_gates_notebook_takes_what_its_command_takes(path):
    import papermill

    assert set(papermill.inspect_notebook(path)) == {"profile", "smoke", "settings", "runs"}


def execute(root, **config):
    folder = run_notebook(NotebookConfig(**config), root=root)
    assert folder.status is Status.FINISHED
    [executed], [page] = folder.artifacts.glob("*.ipynb"), folder.artifacts.glob("*.html")
    assert all(cell["execution_count"] for cell in code_cells(executed))
    return page.read_text()


def test_start_orients_a_newcomer(tmp_path):
    page = execute(tmp_path, name="start")
    assert "workbench gate b_locality" in page
    assert "2,764,800" in page


def test_gate_a_ends_in_its_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "stores" / "mini"))
    settings = ("file_bytes=8MiB", "in_flight_bytes=16MiB", "seconds=0.002", "close_rounds=1", "sizes=['page 4 KiB', 'record']")
    page = execute(tmp_path / "runs", name="A", smoke=True, settings=settings)
    assert "INCONCLUSIVE" in page
    assert page.count('alt="figure: ') == 6
    assert [folder.path.parent.name for folder in list_runs(tmp_path / "runs")] == ["notebook", "gate_a"]


def test_gate_b_ends_in_its_verdict(tmp_path, write_trace):
    routes = planted.repeated(num_requests=3, num_tokens=20, num_layers=1, num_experts=128, top_k=10, seed=1)
    trace = write_trace(tmp_path / "routes.parquet", routes)
    settings = (f"trace={trace}", "fractions=[0.25]", "policies=[]", "resamples=100", "stalls.fractions=[0.25]")
    page = execute(tmp_path / "runs", name="B", smoke=True, settings=settings)
    assert "INCONCLUSIVE (B.sample)" in page
    assert page.count('alt="figure: ') == 9
    assert [folder.path.parent.name for folder in list_runs(tmp_path / "runs")] == ["notebook", "gate_b"]


def test_gate_c_ends_in_its_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "stores" / "mini"))
    small = ("tokens=3", "warm_up_tokens=1", "orders=0", "faults=0", "tiles=[8]", "compare=['early pages']")
    page = execute(tmp_path / "runs", name="C", smoke=True, settings=small)
    assert "INCONCLUSIVE" in page
    assert "C.ple_wait@m2-mini-256gb-slowed-100" in page
    assert page.count('alt="figure: ') == 5
    assert {folder.path.parent.name for folder in list_runs(tmp_path / "runs")} == {"notebook", "gate_c", "abba", "generate"}


def test_a_cell_that_fails_fails_the_run_in_one_line_and_keeps_the_copy(tmp_path):
    with pytest.raises(BadInput, match=r"gate_b_locality.ipynb stopped: BadInput: trace=nowhere: no such file"):
        run_notebook(NotebookConfig(name="b_locality", settings=("trace=nowhere",)), root=tmp_path)
    [folder] = list_runs(tmp_path, "notebook")
    assert folder.status is Status.FAILED
    assert list(folder.artifacts.glob("*.ipynb"))


@pytest.mark.parametrize("name", ["B", "b_locality", "gate_b_locality"])
def test_a_notebook_is_found_by_its_name_or_its_gates(name):
    assert notebook_file(name).name == "gate_b_locality.ipynb"
