"""Makes the prompt files of this folder from unpacked source packages.

    python data/prompts/collect.py SOURCES

SOURCES holds the packages of README.md, unpacked side by side: source archives of PyPI under their own names, Debian
packages (`dpkg -x FILE.deb SOURCES/NAME`) under the package's name. A prompt is verbatim text of one file: it starts where
a unit starts (a definition, a paragraph, a heading, a question) and stops at the end of a line, a statement or a sentence.
Which units become prompts is decided by the SHA-256 of their text, so a rerun chooses the same.
"""

import ast
import gzip
import hashlib
import json
import re
import struct
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

HERE = Path(__file__).parent
TOKENIZER = Tokenizer.from_file(str(HERE.parent / "qwen4exp-mini-4bit" / "tokenizer.json"))
LENGTHS = (48, 224, 96, 160, 64, 256, 128, 80, 192, 112)
"""Tokens at most, one prompt after another, so that short and long ones alternate."""
MIN_TOKENS = 32

# family, split, how many, source, version, licence, folder in SOURCES, files, how units are found
PLAN = [
    ("python", "train", 5, "click (PyPI)", "8.5.1", "BSD-3-Clause", "click-8.5.1", "src/click/*.py", "python"),
    ("python", "train", 5, "attrs (PyPI)", "26.1.0", "MIT", "attrs-26.1.0", "src/attr/*.py", "python"),
    ("python", "held_out", 5, "starlette (PyPI)", "1.10.0", "BSD-3-Clause", "starlette-1.10.0", "starlette/**/*.py", "python"),
    ("python", "held_out", 5, "toolz (PyPI)", "1.2.0", "BSD-3-Clause", "toolz-1.2.0", "toolz/*.py", "python"),
    *(
        ("rust", "held_out", 4, f"librust-{name}-dev (Debian)", version, licence, f"librust-{name}-dev", "**/src/**/*.rs", "rust")
        for name, version, licence in (
            ("petgraph", "0.6.2-1", "MIT or Apache-2.0"),
            ("indexmap", "1.9.2-1", "Apache-2.0 or MIT"),
            ("csv", "1.1.6-1", "Unlicense or MIT"),
            ("textwrap", "0.16.0-2", "MIT"),
            ("semver", "1.0.14-1", "MIT or Apache-2.0"),
        )
    ),
    ("documentation", "train", 5, "attrs (PyPI)", "26.1.0", "MIT", "attrs-26.1.0", "docs/[a-z]*.md", "headings"),
    ("documentation", "train", 5, "click (PyPI)", "8.5.1", "BSD-3-Clause", "click-8.5.1", "docs/[a-eg-z]*.md", "headings"),
    ("documentation", "held_out", 5, "Flask (PyPI)", "3.1.3", "BSD-3-Clause", "flask-3.1.3", "docs/**/*.rst", "headings"),
    ("documentation", "held_out", 5, "pytest (PyPI)", "9.2.0", "MIT", "pytest-9.2.0", "doc/en/[e-h]*/*.rst", "headings"),
    *(
        ("prose", split, 5, f"r-cran-janeaustenr (Debian), {title.title()}", "1.0.0-1", "public domain text, package MIT",
         "r-cran-janeaustenr", "**/data/Rdata.rdb", f"novel {title}")
        for split, title in (("train", "EMMA"), ("train", "PRIDE AND PREJUDICE"), ("held_out", "PERSUASION"))
    ),
    ("prose", "held_out", 5, "golang-github-klauspost-compress-dev (Debian), The Adventures of Tom Sawyer", "1.15.12+ds1-3",
     "public domain text", "golang-github-klauspost-compress-dev", "**/compress/testdata/Mark.Twain-Tom.Sawyer.txt", "prose"),
    ("lists_tables", "train", 5, "gunicorn (PyPI)", "27.0.1", "MIT", "gunicorn-27.0.1", "docs/content/**/*.md", "tables"),
    ("lists_tables", "train", 5, "gunicorn (PyPI)", "27.0.1", "MIT", "gunicorn-27.0.1", "docs/content/**/*.md", "lists"),
    ("lists_tables", "held_out", 2, "Scrapy (PyPI)", "2.19.0", "BSD-3-Clause", "scrapy-2.19.0", "docs/**/*.rst", "tables"),
    ("lists_tables", "held_out", 2, "lmfit (PyPI)", "1.3.4", "BSD-3-Clause", "lmfit-1.3.4", "doc/*.rst", "tables"),
    ("lists_tables", "held_out", 1, "Flask (PyPI)", "3.1.3", "BSD-3-Clause", "flask-3.1.3", "docs/**/*.rst", "tables"),
    ("lists_tables", "held_out", 2, "Scrapy (PyPI)", "2.19.0", "BSD-3-Clause", "scrapy-2.19.0", "docs/**/*.rst", "lists"),
    ("lists_tables", "held_out", 3, "coverage (PyPI)", "7.17.5", "Apache-2.0", "coverage-7.17.5", "doc/*.rst", "lists"),
    ("question_answer", "held_out", 8, "Scrapy (PyPI)", "2.19.0", "BSD-3-Clause", "scrapy-2.19.0", "docs/faq.rst", "questions"),
    ("question_answer", "held_out", 6, "coverage (PyPI)", "7.17.5", "Apache-2.0", "coverage-7.17.5", "doc/faq.rst", "questions"),
    ("question_answer", "held_out", 3, "Jinja2 (PyPI)", "3.1.6", "BSD-3-Clause", "jinja2-3.1.6", "docs/faq.rst", "questions"),
    ("question_answer", "held_out", 3, "lmfit (PyPI)", "1.3.4", "BSD-3-Clause", "lmfit-1.3.4", "doc/faq.rst", "questions"),
]

REJECTED = ("c8b42cc2", "ce91e159", "b9c26dd9", "2586688c")
"""Start of the SHA-256 of the first 32 characters of texts that a reader found unfit: a drawing, half a code block, slurs."""


def num_tokens(text: str) -> int:
    """Tokens of `text` by the bundled tokenizer."""
    return len(TOKENIZER.encode(text, add_special_tokens=False).ids)


def cut(text: str, ends: Iterable[int], limit: int) -> str | None:
    """The longest prefix of `text` that stops at one of `ends` and has at most `limit` tokens, at least half of it."""
    for end in sorted(set(ends), reverse=True):
        prefix = text[:end].rstrip()
        if len(prefix) < 8 * limit and max(MIN_TOKENS, limit // 2) <= num_tokens(prefix) <= limit:
            return prefix
    return None


def line_ends(text: str) -> list[int]:
    """Offsets behind each line."""
    return [match.start() for match in re.finditer(r"\n|\Z", text)]


def paragraph_ends(text: str) -> list[int]:
    """Offsets behind each paragraph under the heading, but not behind one that opens a code block or sits inside one."""
    ends = [match.start() for match in re.finditer(r"\n\s*\n|\Z", text)][1:]
    return [end for end in ends if not text[:end].count("```") % 2 and re.search(r"(?<!:)[^:=]$", last_line(text[:end]))]


def last_line(text: str) -> str:
    """The last line, empty where it is a directive."""
    line = text.rstrip().rsplit("\n", 1)[-1]
    return "" if re.match(r"\s*(\.\.|:|@|`{3}\{|-{4})", line) else line


def python_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """Functions and classes of a module, to be cut behind a statement."""
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)]) - 1
        unit = "".join(lines[first : node.end_lineno])
        inner = [n for n in ast.walk(node) if isinstance(n, ast.stmt) and n.end_lineno]
        yield unit, [len("".join(lines[first : n.end_lineno])) for n in inner]


def rust_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """Items of a module with their doc comments, to be cut behind a line that ends a statement or block."""
    for match in re.finditer(r"(?m)^(?:///.*\n|#\[.*\n)*(?:pub |impl|fn |struct |enum |trait ).*(?:\n(?!\}).*)*\n\}", text):
        unit = match.group()
        yield unit, [end for end in line_ends(unit) if unit[:end].rstrip()[-1:] in ("}", ";")]


def heading_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """Sections of a reStructuredText or Markdown page, heading first."""
    starts = [m.start() for m in re.finditer(r"(?m)^(?:#{1,4} .+|\S.*\n[-=~^.]{4,})$", text)] + [len(text)]
    for start, end in zip(starts, starts[1:]):
        yield text[start:end], paragraph_ends(text[start:end])


def question_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """Sections whose heading asks something, to be cut where the answer has at least 100 characters."""
    for unit, ends in heading_units(text):
        question = unit.split("\n\n", 1)[0]
        if "?" in question:
            yield unit, [end for end in ends if end >= len(question) + 100]


def list_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """A line that announces it, then a list of at least four entries, to be cut behind the third or a later one."""
    for match in re.finditer(r"(?m)^[A-Z#].*\n\n?(?:(?:[-*] |\d+\. ).+\n(?:  +\S.*\n)*\n?){4,}", text):
        unit = match.group()
        starts = [entry.start() for entry in re.finditer(r"(?m)^(?:[-*] |\d+\. )", unit)]
        yield unit, starts[3:]


def table_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """A table of at least four lines, Markdown, grid or simple, to be cut behind a line; its heading comes along."""
    rule = r" *(?:=+(?: +=+)+|\+[-=+]+\+|\|.*\|) *\n"
    for match in re.finditer(rf"(?m)^(?:[A-Z#].*\n\n)?{rule}(?:.*\S.*\n){{3,}}", text):
        unit = match.group()
        grid = "\n+-" in unit
        yield unit, [end for end in line_ends(unit)[5:] if not grid or unit[:end].rsplit("\n", 1)[-1].startswith("+")]


def prose_units(text: str) -> Iterator[tuple[str, list[int]]]:
    """Paragraphs of at least 60 words, to be cut behind a sentence, the next paragraphs included."""
    paragraphs = [match for match in re.finditer(r"(?:\S.*\n)+", text) if len(match.group().split()) >= 60]
    for match in paragraphs:
        unit = text[match.start() : match.start() + 2400]
        ends = [m.end() for m in re.finditer(r"(?<!\bMr)(?<!\bMrs)(?<!\bDr)(?<!\bSt)[.!?][\"']?(?=\s)", unit)]
        yield unit, [end for end in ends if unit[:end].count('"') % 2 == 0]


def novel(path: Path, title: str) -> str:
    """One text of an R data base: zlib streams of serialised strings, one string a line."""
    data, position = path.read_bytes(), 0
    while position < len(data) - 6:
        stream = zlib.decompressobj()
        try:
            raw = stream.decompress(data[position + 4 :])
        except zlib.error:
            position += 1
            continue
        position = len(data) - len(stream.unused_data)
        lines, at = [], raw.find(b"\x00\x04\x00\x09")
        while at >= 0:
            (size,) = struct.unpack(">i", raw[at + 4 : at + 8])
            lines.append(raw[at + 8 : at + 8 + max(size, 0)].decode("latin-1"))
            at = raw.find(b"\x00\x04\x00\x09", at + 8 + max(size, 0))
        if lines and lines[0].upper() == title:
            return "\n".join(lines) + "\n"
    raise SystemExit(f"{title} is not in {path}")


UNITS = {
    "python": python_units,
    "rust": rust_units,
    "headings": heading_units,
    "questions": question_units,
    "lists": list_units,
    "tables": table_units,
    "prose": prose_units,
}


def candidates(root: Path, folder: str, pattern: str, kind: str) -> list[tuple[str, str, list[int]]]:
    """Every unit of a source as (path, text, ends), in the order of their hashes."""
    found = []
    for path in sorted((root / folder).glob(pattern)):
        if kind.startswith("novel "):
            text, units = novel(path, kind.removeprefix("novel ")), prose_units
        else:
            text, units = path.read_text(encoding="utf-8", errors="replace"), UNITS[kind]
        found += [(str(path.relative_to(root)), unit, ends) for unit, ends in units(text.replace("\r\n", "\n"))]
    return sorted(found, key=lambda unit: hashlib.sha256(unit[1].encode()).hexdigest())


def clean(text: str) -> bool:
    """No odd characters, no long lines, no page of links."""
    plain = all(character in "\n\t" or 32 <= ord(character) < 0x2FFF for character in text) and "�" not in text
    fit = hashlib.sha256(text[:32].encode()).hexdigest()[:8] not in REJECTED
    return plain and fit and max(map(len, text.splitlines())) <= 300 and text.count("http") <= 1 and "include" not in text


def first_fit(units: list[tuple[str, str, list[int]]], limits: Iterable[int], taken: set[str], full: set[str]) -> tuple[str, str]:
    """Path and text of the first unit that can be cut to the first limit that fits any."""
    for limit in limits:
        for path, unit, ends in units:
            text = None if path in full else cut(unit, ends, limit)
            if text is not None and clean(text) and unit not in taken:
                taken.add(unit)
                return path, text
    raise SystemExit("a source has too few fit units")


def collect(root: Path) -> dict[str, list[dict[str, object]]]:
    """The prompts of every family."""
    families: dict[str, list[dict[str, object]]] = {}
    taken: set[str] = set()
    for family, split, count, source, version, licence, folder, pattern, kind in PLAN:
        prompts = families.setdefault(family, [])
        units = candidates(root, folder, pattern, kind)
        share = -(-2 * count // len({path for path, _, _ in units}))
        used: dict[str, int] = {}
        for _ in range(count):
            at = len(prompts) % len(LENGTHS)
            full = {path for path, number in used.items() if number >= share}
            path, text = first_fit(units, LENGTHS[at:] + LENGTHS[:at], taken, full)
            used[path] = used.get(path, 0) + 1
            prompts.append(
                {
                    "id": f"{family}-{len(prompts):02d}",
                    "family": family,
                    "split": split,
                    "source": source,
                    "version": version,
                    "licence": licence,
                    "path": path,
                    "num_tokens": num_tokens(text),
                    "trained_on": False,
                    "text": text,
                }
            )
    return families


def main() -> None:
    """Writes FAMILY.jsonl for each family and manifest.json."""
    files = {}
    for family, prompts in collect(Path(sys.argv[1])).items():
        content = "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts).encode()
        (HERE / f"{family}.jsonl").write_bytes(content)
        files[f"{family}.jsonl"] = hashlib.sha256(content).hexdigest()
    (HERE / "manifest.json").write_text(json.dumps({"version": 1, "files": files}, indent=1) + "\n")


if __name__ == "__main__":
    main()
