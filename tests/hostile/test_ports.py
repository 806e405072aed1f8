"""A port that can't be used is refused before anything is filed, without an address that would be another program's."""

import socket

import pytest


@pytest.fixture
def taken():
    """A port on which another program listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize("port", ["taken", -1, 65536, 10**9])
def test_a_port_that_can_not_be_used_is_refused(port, taken, end, tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_RUNS", str(tmp_path))
    ended = end(f"ui --port {taken if port == 'taken' else port}")
    ended.check()
    assert ended.status == 2
    assert "can't be used" in ended.err
    assert "http://" not in ended.err
    assert not list(tmp_path.iterdir())
