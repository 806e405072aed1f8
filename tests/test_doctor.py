import json
import sys

import pytest

from workbench import doctor
from workbench.config import Config
from workbench.doctor import Finding, Level, examine, unproven
from workbench.schema import Evidence, RunFolder


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """An empty home with the lock of this checkout."""
    lock = doctor.paths.home() / "requirements.lock"
    monkeypatch.setenv("WORKBENCH_HOME", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    (tmp_path / "requirements.lock").write_text(lock.read_text())
    return tmp_path


@pytest.fixture
def abandoned_run(home):
    """A result folder whose process is gone."""
    folder = RunFolder.create(home / "runs", "example", Config(), profile="mini", evidence=Evidence.TRACE)
    about = folder.environment | {"pid_started_unix_s": 0}
    (folder.path / "environment.json").write_text(json.dumps(about))
    return folder


def finding(name):
    return next(found for found in examine() if found.check == name)


def test_this_machine_is_good_enough_for_the_tests():
    findings = examine()
    assert len({found.check for found in findings}) == len(findings) == 16
    assert [found for found in findings if found.level is Level.FAIL] == []
    assert all(found.found for found in findings)


def test_whatever_is_missing_has_a_fix():
    assert all(found.fix for found in examine() if found.level is not Level.OK)


def test_a_check_that_breaks_is_a_failure_and_no_traceback(monkeypatch):
    monkeypatch.setitem(doctor._CHECKS, "mlx", lambda: 1 / 0)
    assert finding("mlx") == Finding(
        check="mlx", level=Level.FAIL, found="ZeroDivisionError: division by zero", fix="make .venv/.develop"
    )


def test_another_version_than_the_locked_one_is_told(home):
    lock = home / "requirements.lock"
    lock.write_text(lock.read_text().replace("\npolars==", "\npolars==0."))
    found = finding("versions")
    assert found.level is Level.WARN
    assert found.found.startswith("polars ")
    assert found.found.endswith("is not the locked one")


def test_an_old_python_fails(monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 9, 6))
    assert (finding("python").level, finding("python").found) == (Level.FAIL, "3.9.6")


@pytest.mark.parametrize(("free_bytes", "level"), [(100 * 2**20, Level.FAIL), (5 * 2**30, Level.WARN), (50 * 2**30, Level.OK)])
def test_a_full_disk(monkeypatch, free_bytes, level):
    monkeypatch.setattr(doctor, "free_disk_bytes", lambda folder: free_bytes)
    assert finding("disk").level is level


def test_memory_that_stays_on_small_pages_is_told(monkeypatch):
    monkeypatch.setattr(doctor.sys, "platform", "linux")
    monkeypatch.setattr(doctor, "huge_page_bytes", lambda start, num_bytes: 0)
    assert finding("huge pages").level is Level.WARN
    assert "transparent_hugepage" in finding("huge pages").fix


def test_a_missing_program_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    assert finding("fio").level is Level.WARN
    assert finding("fio").fix.endswith("install fio")


def test_a_store_that_is_missing_or_broken(home):
    folder = home / "data" / "stores" / "mini"
    assert finding("mini store").level is Level.WARN
    assert finding("mini store").fix.startswith("workbench pack ")
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text("{")
    assert finding("mini store").level is Level.FAIL
    assert finding("mini store").fix.startswith(f"rm -r {folder}, then workbench pack ")


def test_a_filesystem_that_refuses_uncached_reads(monkeypatch):
    def refuse(self, path):
        raise doctor.UnmetPrerequisite("its filesystem refuses uncached reads")

    monkeypatch.setattr(doctor.FileTable, "open", refuse)
    assert finding("uncached reads").level is Level.WARN


def test_no_results_yet(home):
    assert finding("runs").found == "0 results, none left running"


def test_a_run_that_never_finished_is_told(abandoned_run):
    found = finding("runs")
    assert (found.level, found.fix) == (Level.WARN, f"rm -r {abandoned_run.path}")
    abandoned_run.finish()
    assert finding("runs").found == "1 results, none left running"


def test_claims_come_from_the_marks_of_tests(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "test_a.py").write_text(
        "import pytest\n\n@pytest.mark.apple('the GPU adds')\n@pytest.mark.soak\ndef test_x(): ...\n"
    )
    (tmp_path / "test_b.py").write_text("def test_y(): ...\n")
    assert unproven(tmp_path) == ["the GPU adds"]
