"""`workbench abba`, `verdicts`, `report`, `bundle` and `check` from the command line."""

import json

import pytest
from cyclopts import App

from workbench.abba.records import ArmRecord, WatchRecord
from workbench.cli import evidence
from workbench.config import Config
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.schema import Evidence, RunFolder, Status, list_runs

WATCH = WatchRecord(wall_s=1, num_samples=2, longest_gap_s=1, swap_out_bytes=0, memory_pressure=0, other_cores=0, stolen_cores=0)


class Plan(Config):
    """Of a run made for a test."""


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("WORKBENCH_TRACKING", "off")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


@pytest.fixture
def command(runs):
    app = App(name="workbench", result_action="return_value")
    evidence.register(app)
    return lambda *words: app([*words], exit_on_error=False, print_error=False)


@pytest.fixture
def store(tmp_path, monkeypatch):
    """What a comparison looks at of a store before its first arm."""
    folder = tmp_path / "store"
    folder.mkdir()
    for name in ("manifest.json", "experts.em2"):
        (folder / name).write_text("{}")
    monkeypatch.setenv("WORKBENCH_STORE", str(folder))
    return folder


@pytest.fixture
def arms(monkeypatch):
    """Arms that need no process: B has `rates["B"]` tokens a second. Returns the rates and the configurations seen."""
    rates, seen = {"A": 10.0, "B": 10.0}, []

    def run_arm(config, name, *, plan, home, series, watch):
        seen.append(config)
        digest = plan.read_text() if config.change else ""
        about = {"config_digest": digest, "evidence": "physical", "digests": dict.fromkeys(config.digests, "ab")}
        return ArmRecord(
            name=name, exit_code=0, started_ns=0, duration_s=1, value=rates[name[-1]], watch=WATCH, cached_fraction=0.0, **about
        )

    monkeypatch.setattr("workbench.abba.runner.run_arm", run_arm)
    return rates, seen


@pytest.fixture
def base(tmp_path):
    (tmp_path / "base.toml").write_text('turns = ["def main():"]\nmax_tokens = 8\nbandwidth_gbps = 2.0\n')
    return str(tmp_path / "base.toml")


@pytest.mark.parametrize(("rate", "status", "word"), [(12.0, 0, "PASS"), (9.0, 1, "FAIL"), (10.05, 1, "FAIL")])
def test_a_comparison_exits_by_its_verdict(command, capsys, store, arms, base, rate, status, word):
    arms[0]["B"] = rate
    assert command("abba", "--base", base, "--change", "runtime.policy=lru", "--cohorts", "4") == status
    told = capsys.readouterr()
    assert f"**{word}**" in told.out
    assert "e2e/decode_tps, physical, B: runtime.policy=lru" in told.out
    assert "cohort 4 is valid; the series ends here" in told.err


def test_what_is_left_open_is_settled_before_the_first_arm(command, capsys, store, arms, base):
    assert command("abba", "--base", base, "--cohorts", "1", "--cache-state", "cold_store", "--json") == 4
    told = json.loads(capsys.readouterr().out)
    assert told["verdict"]["codes"] == ["abba.indicative"]
    config = arms[1][0]
    assert config.is_null
    assert config.base["attribution_tokens"] == 0
    assert config.base["bandwidth_gbps"] == 2.0
    assert config.base["runtime"]["policy"] == "lfru", "the whole plan is written down"
    assert config.cache_files == (str(store / "experts.em2"),)


def test_a_hot_cache_needs_a_warm_up_in_the_arms_own_process(command, store, arms, base):
    command("abba", "--base", base, "--cohorts", "1", "--cache-state", "hot_cache")
    assert arms[1][0].base["warm_up_tokens"] == 8


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--change", "runtime.polici=lru"], "did you mean policy"),
        (["--change", "max_tokens=8"], "changes nothing"),
        (["--change", "max_tokens"], "not a setting"),
        (["--metric", "e2e/speed"], "no such metric"),
        (["--metric", "overlap/hidden_fraction"], "--better higher or --better lower"),
        (["--set", "cohort=4"], "did you mean cohorts"),
        (["--cohorts", "0"], "cohorts"),
        (["--resume", "20990101"], "no such run"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(command, runs, store, arms, base, words, message):
    with pytest.raises(BadInput, match=message) as refusal:
        command("abba", "--base", base, *words)
    assert len(str(refusal.value).splitlines()) == 1
    assert not list(list_runs(runs))


def test_without_a_store_the_command_that_makes_it_is_named(command, tmp_path, monkeypatch, base):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "none"))
    with pytest.raises(UnmetPrerequisite, match="workbench pack"):
        command("abba", "--base", base)


def test_lower_is_better_where_the_unit_says_so(command, capsys, store, arms, base):
    arms[0]["B"] = 8.0
    command("abba", "--base", base, "--change", "runtime.policy=lru", "--cohorts", "4", "--metric", "e2e/tpot_p95_ms")
    assert "**PASS** (abba.better)" in capsys.readouterr().out


def test_verdicts_hides_superseded_ones_unless_asked(command, capsys, store, arms, base):
    for _ in range(2):
        command("abba", "--base", base, "--cohorts", "1")
    capsys.readouterr()
    command("verdicts")
    told = capsys.readouterr()
    assert told.out.count("abba.indicative") == 1
    assert "superseded verdicts that are not shown: 1" in told.err
    command("verdicts", "--all", "--json")
    rows = json.loads(capsys.readouterr().out)["verdicts"]
    assert [row["superseded by"] is None for row in rows] == [True, False]
    assert rows[0]["criteria"][0]["code"] == "abba.effect"


def test_report_prints_where_it_is(command, capsys, runs, tmp_path):
    command("report", "--out", str(tmp_path / "page.html"))
    assert capsys.readouterr().out.strip() == str(tmp_path / "page.html")
    assert "Hypothesis" in (tmp_path / "page.html").read_text()


def test_a_bundle_is_made_and_checked(command, capsys, runs, tmp_path):
    folder = RunFolder.create(runs, "other", Plan(), profile="mini", evidence=Evidence.TRACE)
    folder.finish()
    command("bundle", folder.path.name[:15])
    told = capsys.readouterr()
    path = told.out.strip()
    assert path == f"other-{folder.path.name}.bundle.tar"
    assert "content digest" in told.err
    assert command("check", path) == 0
    assert "0 FAILED" in capsys.readouterr().out
    altered = bytearray((tmp_path / path).read_bytes())
    altered[altered.index(b"other", 2000)] ^= 1
    (tmp_path / "altered.tar").write_bytes(altered)
    status = command("check", "altered.tar", "--json")
    assert (status, json.loads(capsys.readouterr().out)["passed"]) == (1, False)
    (tmp_path / "garbage").write_bytes(b"garbage")
    for name in ("garbage", "missing"):
        with pytest.raises(BadInput) as refusal:
            command("check", name)
        assert len(str(refusal.value).splitlines()) == 1


def test_runs_are_found_by_any_of_their_names(command, runs):
    first, second = (RunFolder.create(runs, "other", Plan(), profile="mini", evidence=Evidence.TRACE) for _ in range(2))
    for name in (str(first.path), first.path.name, f"other/{first.path.name}"):
        assert evidence.find_run(name).path == first.path
    with pytest.raises(BadInput, match="2 runs match"):
        evidence.find_run(first.path.name[:8])
    with pytest.raises(BadInput, match="no such run"):
        evidence.find_run("nothing")
    assert second.status is Status.RUNNING
