"""Files that people name: anything but a regular file of the right size and form is refused in one line, at once."""

import os
import socket

import pytest

from workbench.errors import BadInput
from workbench.files import check_output, read_file, read_json, read_json_object, read_text, write_atomically


def is_one_line(found):
    return len(str(found.value).splitlines()) == 1


@pytest.fixture(params=["pipe", "device", "folder", "nothing", "socket", "loop", "unreadable name"])
def no_file(request, tmp_path, monkeypatch):
    """A path where no regular file is; a link to one is followed, since people name it."""
    path = tmp_path / "x"
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "device":
            path = type(path)("/dev/zero")
        case "folder":
            path.mkdir()
        case "socket":
            monkeypatch.chdir(tmp_path)
            socket.socket(socket.AF_UNIX).bind("x")
        case "loop":
            path.symlink_to(path)
        case "unreadable name":
            path = tmp_path / "a\0b"
    return path


@pytest.mark.filterwarnings("ignore:unclosed")
@pytest.mark.parametrize("read", [read_file, read_text, read_json, read_json_object])
def test_what_is_no_regular_file_is_refused_without_blocking(read, no_file):
    with pytest.raises(BadInput) as found:
        read(no_file)
    assert is_one_line(found)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "x"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadInput, match="more than the"):
        read_text(path)


@pytest.mark.parametrize("content", [b"\xff", b"{", b"[" * 100_000, b"1" * 5_000, b"", b"\0"])
def test_what_is_no_json_is_refused_in_one_line(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(BadInput) as found:
        read_json(tmp_path / "x")
    assert is_one_line(found)
    assert len(str(found.value)) < 400


def test_an_object_is_not_any_json(tmp_path):
    (tmp_path / "x").write_text("[1]")
    with pytest.raises(BadInput, match="a JSON object is expected"):
        read_json_object(tmp_path / "x")


def test_output_replaces_a_file_and_nothing_else(tmp_path):
    write_atomically(tmp_path / "new", b"1")
    write_atomically(tmp_path / "new", b"2")
    assert (tmp_path / "new").read_bytes() == b"2"
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("new")
    for name in ("pipe", "folder", "link", "new/file", "a\0b"):
        for write in (check_output, lambda path: write_atomically(path, b"3")):
            with pytest.raises(BadInput, match="can't write") as found:
                write(tmp_path / name)
            assert is_one_line(found)
    with pytest.raises(BadInput, match="can't write"):
        check_output(type(tmp_path)("/dev/null"))
    assert (tmp_path / "new").read_bytes() == b"2"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, error):
    def fail(part, content):
        part.touch()
        raise error

    monkeypatch.setattr(type(tmp_path), "write_bytes", fail)
    with pytest.raises(type(error)):
        write_atomically(tmp_path / "x", b"1")
    assert not list(tmp_path.iterdir())
