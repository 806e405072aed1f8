"""What the documents say is so: commands exist, figures follow, lists are whole."""

import re
import tomllib
from pathlib import Path

import pytest
from cyclopts import App

from workbench.cli import commands
from workbench.cli.geometry import find_geometry, token_figures
from workbench.doctor import unproven

ROOT = Path(__file__).parent.parent
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "runs/README.md", "data/prompts/README.md", "tests/data/README.md"]
WORKBENCH = re.compile(r"(?m)^(?:\.venv/bin/)?workbench (\w[\w-]*)((?:[ ][^`\n#;]*)?)")


def text_of(name):
    return (ROOT / name).read_text()


def code_of(name):
    """Fenced blocks and inline code."""
    text = text_of(name)
    fenced = re.findall(r"(?ms)^```\w*\n(.*?)^```", text)
    return [*fenced, *re.findall(r"`([^`\n]+)`", re.sub(r"(?ms)^```.*?^```", "", text))]


@pytest.fixture(scope="module")
def app():
    app = App(name="workbench", result_action="return_value")
    commands.register(app)
    return app


def options_of(command):
    return {name for argument in command.assemble_argument_collection(parse_docstring=False) for name in argument.names}


def test_documents_name_commands_and_options_that_exist(app):
    found = [(name, *words) for name in DOCUMENTS for code in code_of(name) for words in WORKBENCH.findall(code)]
    assert len(found) > 8
    known = {name for name in app if not name.startswith("-")}
    for name, command, rest in found:
        assert command in known, f"{name}: workbench {command}"
        given = set(re.findall(r"--[a-z][\w-]*", rest)) - {"--help"}
        assert given <= options_of(app[command]), f"{name}: workbench {command}{rest}"


def test_documents_name_targets_that_make_has():
    targets = set(re.findall(r"(?m)^([a-z]+):", text_of("Makefile")))
    named = {word for name in DOCUMENTS for code in code_of(name) for word in re.findall(r"(?m)^make ([a-z]+)", code)}
    assert {"gates", "test"} <= named <= targets


def test_make_runs_commands_and_scripts_that_exist(app):
    recipes = text_of("Makefile")
    assert set(re.findall(r"\$\(BIN\)/workbench (\w+)", recipes)) <= {name for name in app if not name.startswith("-")}
    assert all((ROOT / script).exists() for script in re.findall(r"\$\(BIN\)/python (\S+\.py)", recipes))


def test_every_command_has_a_help_with_an_example(app):
    for name in app:
        if not name.startswith("-"):
            assert re.search(rf"Example: workbench {name}\b", app[name].default_command.__doc__), name


def test_links_and_named_files_exist():
    for name in DOCUMENTS:
        links = re.findall(r"\]\((?!http|#)([^)]+)\)", text_of(name))
        # a README in data/ may name files of the project that its content comes from
        ours = [] if name.startswith(("data/", "tests/")) else code_of(name)
        files = [code for code in ours if re.fullmatch(r"[\w./-]+/[\w.-]+\.(md|py|toml|ipynb|json|lock)", code)]
        for place in [*links, *files]:
            assert (ROOT / place).exists() or (ROOT / name).parent.joinpath(place).exists(), f"{name}: {place}"


def test_the_tree_lists_every_entry_and_module():
    tree = re.search(r"(?ms)^## What is where\n\n```\n(.*?)^```", text_of("README.md")).group(1)
    named = {word for line in tree.splitlines() for word in re.split(r"\s{2,}", line.strip())[0].split()}
    packages = {f"{p.name}/" for p in (ROOT / "workbench").iterdir() if (p / "__init__.py").exists()}
    modules = {p.name for p in (ROOT / "workbench").glob("*.py")} - {"__init__.py"}
    top = {"workbench/", "predictors/", "notebooks/", "data/", "tests/", "runs/", "Makefile", "pyproject.toml", "LICENSE"}
    top |= {"requirements.lock", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", ".ci/"}
    assert named == packages | modules | top


def test_figures_follow_from_the_geometry():
    table = re.search(r"(?s)<!-- figures: .*?-->\n\n(.*?)\n\n", text_of("README.md")).group(1).splitlines()
    columns = [find_geometry(what) for what in ("mini", "slice", "flash-next")]
    figures = [token_figures(shapes, None) for shapes in columns]
    on_disk = [shapes.num_expert_layers * shapes.num_experts * shapes.record_bytes for shapes in columns]
    rows = {
        "record (one expert's gate, up and down)": [f["record_bytes"] for f in figures],
        "records per token": [f["records_per_token"] for f in figures],
        "routed bytes per token, nothing cached": [f["routed_bytes_per_token"] for f in figures],
        "n-gram rows per token": [f["ple_rows_per_token"] for f in figures],
        "all routed records on disk": on_disk,
    }
    assert table[2:] == [f"| {name} | {' | '.join(f'{value:,}' for value in values)} |" for name, values in rows.items()]


def test_what_is_unproven_is_what_the_tests_say():
    section = re.search(r"(?s)## Unproven without a Mac\n(.*?)\n## ", text_of("README.md")).group(1)
    assert re.findall(r"(?m)^- (.+)$", section) == unproven(ROOT / "tests")


def test_every_dependency_has_its_reason():
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    wanted = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    rows = re.findall(r"(?m)^\| ([\w-]+) \| (.+) \|$", text_of("CONTRIBUTING.md"))
    names = [name for name, _ in rows if name not in ("package", "---")]
    assert sorted(names) == sorted({re.match(r"[\w.-]+", line).group() for line in wanted})
    assert all(reason.strip() for _, reason in rows)


def test_the_changelog_has_a_place_for_what_is_new():
    assert re.search(r"(?m)^## Unreleased$", text_of("CHANGELOG.md"))


def walks():
    """Steps of each walk in CONTRIBUTING: file and dotted name."""
    section = text_of("CONTRIBUTING.md").partition("## Walks")[2].partition("\n## ")[0]
    lists = [re.findall(r"(?m)^\d+\. `([\w/]+\.py)` `([\w.]+)`", part) for part in section.split("\n\n")]
    return [steps for steps in lists if steps]


def test_a_walk_is_short_and_names_what_exists():
    assert [len({file for file, _ in walk}) for walk in walks()] == [8, 8]
    for file, name in [step for walk in walks() for step in walk]:
        code = (ROOT / file).read_text()
        for part in name.split("."):
            assert re.search(rf"(?m)^ *(?:def|class) {part}\b", code), f"{file} has no {part}"


OLD_WORDS = {
    r"leases?|leased|unlease": "pin",
    r"LaneConfig": "ReadLimits",
    r"Traffic": "Reads",
    r"RecordPool|PagePool": "RecordMemory, PageMemory",
    r"Guests": "RetainedRecords",
    r"Meeting": "LockstepGroup",
    r"unplace": "withdraw_slot",
}
"""Words that had another meaning beside, or that nobody from outside knows, and the word that replaced each."""


@pytest.mark.parametrize("old", OLD_WORDS)
def test_an_old_word_does_not_come_back(old):
    # columns of events keep their names
    code = {path: path.read_text().replace('"leases"', "") for path in (ROOT / "workbench").rglob("*.py")}
    found = {str(path.relative_to(ROOT)) for path, text in code.items() if re.search(rf"\b(?:{old})\b", text)}
    assert not found, f"say {OLD_WORDS[old]}"
