import json

import pytest

from workbench.cli import doctor
from workbench.doctor import Finding, Level


@pytest.fixture
def planted(monkeypatch):
    def plant(*levels):
        findings = [Finding(check=f"c{i}", level=level, found="x", fix=f"mend {i}") for i, level in enumerate(levels)]
        monkeypatch.setattr(doctor, "examine", lambda: findings)
        monkeypatch.setattr(doctor, "unproven", lambda tests: ["the GPU adds"])

    return plant


def test_warnings_pass_and_the_next_step_is_the_gates(planted, capsys):
    planted(Level.OK, Level.WARN)
    assert doctor.doctor() == 0
    out = capsys.readouterr().out
    assert "| c1    | warn  | x     | mend 1 |" in out
    assert "- the GPU adds" in out
    assert out.endswith("Next: workbench gate all --anyway\n")


def test_a_failure_fails_and_its_fix_comes_next(planted, capsys):
    planted(Level.WARN, Level.FAIL, Level.FAIL)
    assert doctor.doctor(json=True) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["next"] == "mend 1"
    assert [check["level"] for check in told["checks"]] == ["warn", "FAIL", "FAIL"]
    assert told["unproven_without_a_mac"] == ["the GPU adds"]
