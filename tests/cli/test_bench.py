import json
import os
import sys

import pytest
from cyclopts import App

from workbench.cli import bench
from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates.a_storage import fio
from workbench.gates.a_storage.fio import Pairs, Rate, fio_command, pair, parse_fio

# what fio 3 prints, cut down to what is read
FIO = {"fio version": "fio-3.0", "jobs": [{"read": {"io_bytes": 41_943_040, "runtime": 20, "total_ios": 10_240}}]}
QUICK = ("--file-bytes", "8MiB", "--pairs", "2", "--pages", "64", "--depths", "1", "2")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    """Nothing is measured here."""
    monkeypatch.setattr(fio, "REST_S", 0.0)


@pytest.fixture
def command(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(tmp_path / "stores" / "mini"))
    app = App(name="workbench", result_action="return_value")
    bench.register(app)
    return lambda *words: app(["bench", "io", *words], exit_on_error=False, print_error=False)


@pytest.fixture
def fake_fio(tmp_path, monkeypatch):
    """An `fio` that notes its arguments and answers; returns the file of notes."""
    notes, answer = tmp_path / "notes", json.dumps(FIO)
    program = tmp_path / "bin" / "fio"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport os, sys\n"
        "if sys.argv[1] == '--version':\n    print('fio-3.0')\n"
        f"else:\n    open({str(notes)!r}, 'a').write(os.environ['GLIBC_TUNABLES'] + ' ' + ' '.join(sys.argv[1:]) + '\\n')\n"
        f"    print('note: x')\n    print({answer!r})\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return notes


def test_pairs_with_fio_give_ratios_for_each_depth_and_for_the_batch(command, fake_fio, tmp_path, capsys):
    command("--against", "fio", "--json", *QUICK)
    told = json.loads(capsys.readouterr().out)
    assert told["against"].startswith("fio-3.0, ")
    assert [(row["size"], row["depth"], row["pairs"]) for row in told["rows"]] == [
        ("record", 1, 2),
        ("record", 2, 2),
    ]
    record = told["rows"][0]
    assert (record["fio_gbps"], record["fio_reads_per_s"]) == (pytest.approx(2.097152), 512_000)
    assert record["fio_read_bytes"] == 28_672 <= record["ours_read_bytes"] <= 32_768
    assert [(row["pages"], row["depth"], row["pairs"]) for row in told["batches"]] == [(64, 32, 2), (64, 256, 2)]
    assert told["batches"][0]["submit_us_per_page"] > 0
    calls = fake_fio.read_text().splitlines()
    assert len(calls) == 8
    assert calls[0].startswith("glibc.malloc.hugetlb=1 "), "fio's memory is as good as ours"
    assert "--bs=28672" in calls[0]
    assert "--iodepth=1 " in calls[0]
    assert "--number_ios=64" in calls[-1]
    assert list((tmp_path / "stores").iterdir()) == []


def test_without_fio_our_readers_are_measured_alone(command, capsys):
    command(*QUICK)
    told = capsys.readouterr()
    assert "**Records, uncached (physical)**" in told.out
    assert "**Pages of 4 KiB in one batch, `depth` in flight (physical)**" in told.out
    assert "removed afterwards" in told.err


def test_a_missing_fio_is_an_unmet_prerequisite_that_says_how_to_install_it(command, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnmetPrerequisite, match="apt-get install fio") as refusal:
        command("--against", "fio", *QUICK)
    assert refusal.value.exit_code == 3


WRONG = [("--pairs", "0"), ("--pages", "-1"), ("--depths", "0"), ("--depths", "1025"), ("--pages", "2049"), ("--depths", "1000")]


@pytest.mark.parametrize("words", WRONG)
def test_numbers_that_measure_nothing_are_refused(command, words):
    with pytest.raises(BadInput, match=r"must be at least 1|hold 0 to|as many records as"):
        command("--file-bytes", "8MiB", *(() if words[0] == "--pages" else ("--pages", "0")), *words)


def test_the_first_of_a_pair_changes_and_ratios_are_of_pairs():
    order = []

    def run(name, rates):
        def once():
            order.append(name)
            return Rate(gbps=rates.pop(0), reads_per_s=1.0)

        return once

    # the disk doubles its speed between pairs; within a pair ours has nine tenths
    both = pair(6, run("ours", [0.9 * 2**i for i in range(6)]), run("fio", [1.0 * 2**i for i in range(6)]))
    assert order == ["ours", "fio", "fio", "ours"] * 3
    assert (both.ratio.value, both.ratio.low, both.ratio.high) == (pytest.approx(0.9),) * 3
    row = Pairs(ours=both.ours, theirs=both.theirs).row(depth=3)
    assert (row["depth"], row["pairs"], row["spread"]) == (3, 6, pytest.approx(0.0))


def test_fio_reads_uncached_and_never_writes(tmp_path):
    (tmp_path / "file").write_bytes(bytes(4096))
    command = fio_command(tmp_path / "file", 4096, 32, ["--number_ios=8"])
    assert {"--readonly", "--direct=1", "--rw=randread", "--iodepth=32", "--size=4096", "--number_ios=8"} <= set(command)
    assert parse_fio("fio: a warning\n" + json.dumps(FIO)) == Rate(gbps=pytest.approx(2.097152), reads_per_s=512_000)
