"""Looks for the prompts in the corpus that the bundled model was trained on.

    python data/prompts/overlap.py PACKAGES

PACKAGES holds the wheels and Debian packages that the model's README lists, as downloaded. White space and repeated
punctuation are collapsed; every run of 64 characters that a prompt shares with a file is told, one line a prompt and file.
The model's corpus left out folders named `_vendor` and the rendered sources in rust-doc, so these are left out here too.
"""

import gzip
import html
import io
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

WIDTH = 64
MULTIPLIER = np.uint64(0x100000001B3)
LEFT_OUT = ("/_vendor/", "/html/src/")
TEXT = (".py", ".pyi", ".rst", ".md", ".txt")
NO_TEXT = (".png", ".jpg", ".svg", ".ico", ".woff", ".woff2", ".js", ".css", ".dat", ".u8")


def normalised(text: str) -> bytes:
    """White space and repeated punctuation collapsed."""
    return re.sub(r"\s+", " ", re.sub(r"([^\w\s])\1{3,}", r"\1", text)).encode("utf-8", "replace")


def hashes(content: bytes) -> np.ndarray:
    """A hash of each run of WIDTH bytes."""
    values = np.frombuffer(content, np.uint8).astype(np.uint64) + np.uint64(1)
    count = max(len(values) - WIDTH + 1, 0)
    found = np.zeros(count, np.uint64)
    for i in range(WIDTH if count else 0):
        found = found * MULTIPLIER + values[i : count + i]
    return found


def files(package: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of each text file of a wheel or a Debian package."""
    if package.suffix == ".whl":
        archive = zipfile.ZipFile(package)
        yield from ((name, archive.read(name)) for name in archive.namelist() if name.endswith(TEXT))
        return
    raw = subprocess.run(["dpkg", "--fsys-tarfile", str(package)], capture_output=True, check=True).stdout
    members = tarfile.open(fileobj=io.BytesIO(raw))
    for member in members:
        content = members.extractfile(member) if member.isfile() and not member.name.endswith(NO_TEXT) else None
        if content:
            yield member.name, content.read()


def text_of(name: str, content: bytes) -> str:
    """A file as text, decompressed, tags stripped."""
    if name.endswith((".gz", ".dz")):
        content = gzip.decompress(content)
    text = content.decode("utf-8", "replace")
    return html.unescape(re.sub(r"<[^>]+>", "", text)) if name.endswith((".html", ".htm")) else text


def main() -> None:
    """Prints what is shared, then how much was searched."""
    owner = {}
    for path in sorted(Path(__file__).parent.glob("*.jsonl")):
        for prompt in map(json.loads, path.read_text().splitlines()):
            content = normalised(prompt["text"])
            for i, value in enumerate(hashes(content)):
                owner[int(value)] = prompt["id"], content[i : i + WIDTH].decode(errors="replace")
    keys = np.array(sorted(owner), np.uint64)
    searched = 0
    for package in sorted(p for p in Path(sys.argv[1]).rglob("*") if p.suffix in (".whl", ".deb")):
        for name, content in files(package):
            if any(part in "/" + name for part in LEFT_OUT):
                continue
            text = text_of(name, content)
            searched += len(text)
            found = hashes(normalised(text))
            at = np.minimum(np.searchsorted(keys, found), len(keys) - 1)
            shared = {owner[int(value)] for value in keys[at[keys[at] == found]]}
            for prompt, run in sorted({prompt: run for prompt, run in shared}.items()):
                print(f"{prompt}: {package.name}: {name}: {run!r}")
    print(f"searched {searched:,} characters for {len(keys):,} runs of {WIDTH}")


if __name__ == "__main__":
    main()
