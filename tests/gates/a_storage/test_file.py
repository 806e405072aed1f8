import numpy as np
import pytest

from workbench.errors import BadInput, UnmetPrerequisite
from workbench.gates.a_storage import file
from workbench.gates.a_storage.file import probe_file
from workbench.units import MIB, PAGE_BYTES


def test_the_file_is_incompressible_whole_and_gone_afterwards(tmp_path):
    with probe_file(tmp_path, 16 * MIB, seed=1) as path:
        content = np.fromfile(path, dtype=np.uint8)
        assert len(content) == 16 * MIB
        # all pages differ, and no byte value is rarer than chance allows
        assert len({page.tobytes() for page in content.reshape(-1, PAGE_BYTES)}) == 16 * MIB // PAGE_BYTES
        assert np.bincount(content, minlength=256).min() > 0.98 * len(content) / 256
        assert [entry.name for entry in tmp_path.iterdir() if entry.suffix == ".part"] == []
    assert list(tmp_path.iterdir()) == []


def test_a_kept_file_is_used_again_unless_it_is_another(tmp_path):
    with probe_file(tmp_path, 8 * MIB, seed=1, keep=True) as path:
        made = path.stat().st_ino
    with probe_file(tmp_path, 8 * MIB, seed=1, keep=True) as path:
        assert path.stat().st_ino == made
    path.write_bytes(bytes(8 * MIB))
    with probe_file(tmp_path, 8 * MIB, seed=1) as path:
        assert path.read_bytes()[:4096] != bytes(4096)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, error):
    def stop(base, number):
        raise error

    monkeypatch.setattr(file, "_chunk", stop)
    with pytest.raises(error), probe_file(tmp_path, 8 * MIB, seed=1):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_run_removes_even_a_whole_file(tmp_path):
    with pytest.raises(KeyboardInterrupt), probe_file(tmp_path, 8 * MIB, seed=1):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_one_run_at_a_time_and_only_where_there_is_room(tmp_path, monkeypatch):
    with (
        probe_file(tmp_path, 8 * MIB, seed=1),
        pytest.raises(BadInput, match="another run"),
        probe_file(tmp_path, 8 * MIB, seed=1),
    ):
        pass
    monkeypatch.setattr(file, "free_disk_bytes", lambda _: 100 * MIB)
    with pytest.raises(UnmetPrerequisite, match="the probe file needs"), probe_file(tmp_path, 8 * MIB, seed=1):
        pass
    monkeypatch.undo()
    with pytest.raises(BadInput, match="multiple of 8 MiB"), probe_file(tmp_path, 9 * MIB, seed=1):
        pass
