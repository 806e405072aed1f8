import pytest

from workbench.config import Config
from workbench.gates.stage import Stage, file_digest, read_stage, source_digests, stage_of
from workbench.schema import Evidence, RunFolder


@pytest.fixture
def package(tmp_path):
    """`tool.work` imports `tool.helper` inside a function; `tool.helper` imports `tool.deep.base`; `tool.other` stands alone."""
    files = {
        "__init__.py": "",
        "work.py": "import os\ndef run():\n    from tool.helper import half\n    return half(4)\n",
        "helper.py": "import tool.deep.base as base\ndef half(x):\n    return x / base.TWO\n",
        "deep/__init__.py": "",
        "deep/base.py": "TWO = 2\n",
        "other.py": "",
    }
    for name, text in files.items():
        path = tmp_path / "tool" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "tool"


def test_sources_are_all_that_a_module_imports_at_any_depth_and_nothing_else(package):
    names = ["tool/__init__.py", "tool/deep/__init__.py", "tool/deep/base.py", "tool/helper.py", "tool/work.py"]
    assert list(source_digests("tool.work", package)) == names


def test_a_changed_helper_of_a_helper_makes_a_result_stale_and_is_named(package):
    def stage():
        return Stage(config={}, inputs={}, sources=source_digests("tool.work", package), machine="m")

    before = stage()
    (package / "other.py").write_text("unrelated = 1\n")
    assert stage().key == before.key
    (package / "deep" / "base.py").write_text("TWO = 3\n")
    assert stage().key != before.key
    assert stage().differences(before) == ["tool/deep/base.py changed"]


def test_a_module_imported_by_from_package_is_followed(package):
    (package / "work.py").write_text("from tool import helper\n")
    assert "tool/deep/base.py" in source_digests("tool.work", package)


def test_every_part_of_the_key_is_named_when_it_differs():
    older = Stage(config={"a.b": 1, "gone": 2}, inputs={"trace": "1"}, sources={}, machine="one")
    newer = Stage(config={"a.b": 3}, inputs={"trace": "2"}, sources={"x.py": "9"}, machine="two")
    assert newer.differences(older) == [
        "setting a.b differs",
        "setting gone differs",
        "input trace changed",
        "x.py changed",
        "made on another machine",
    ]
    assert older.differences(older) == []


class Inner(Config):
    depth: int = 2


class Outer(Config):
    inner: Inner = Inner()
    shares: tuple[float, ...] = (0.25, 0.5)


def test_a_stage_survives_its_folder(tmp_path):
    stage = stage_of(Outer(), {"trace": "abc"}, "workbench.gates.stage")
    assert stage.config == {"inner.depth": 2, "shares": [0.25, 0.5]}
    assert "workbench/gates/stage.py" in stage.sources
    folder = RunFolder.create(tmp_path, "gate_x", Outer(), profile="mini", evidence=Evidence.TRACE)
    assert read_stage(folder) is None
    stage.write(folder)
    again = read_stage(folder)
    assert again.key == stage.key
    assert stage.differences(again) == []


def test_the_sources_of_gate_b_hold_the_code_that_decides_and_not_the_code_that_files():
    sources = source_digests("workbench.gates.b_locality")
    for name in ("analysis/locality.py", "analysis/bootstrap.py", "schema/verdicts.py", "simulate/replay.py", "policies/lfru.py"):
        assert f"workbench/{name}" in sources
    assert not [name for name in sources if name.startswith(("workbench/cli", "workbench/tracking"))]


def test_a_file_digest_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a").startswith("ba7816bf8f01cfea")
