"""Notebooks without a browser: papermill runs a copy, and the copy with an HTML page of it become artifacts of a run folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.config import Config
from workbench.errors import BadInput, did_you_mean
from workbench.files import write_atomically
from workbench.gates import GATES, find_gate
from workbench.paths import Profile, notebooks_folder
from workbench.schema import Evidence, RunFolder

_CELL_TIMEOUT_S = 3600
_KERNEL_ARGUMENTS = [
    # the kernel warns at each start that its loopback connection is not encrypted; people would take it for ours
    "--IPKernelApp.log_level=ERROR"
]


class NotebookConfig(Config):
    """A notebook and the values of its parameters cell."""

    name: str
    """`start`, or a gate's letter or name."""
    profile: Profile = "mini"
    """Profile: model and store."""
    smoke: bool = False
    """Run at smoke size."""
    settings: tuple[str, ...] = ()
    """Settings of the gate, `key=value`."""


def notebook_file(name: str) -> Path:
    """The notebook called `start`, `gate_b_locality`, `b_locality` or `B`. Raises BadInput suggesting the nearest."""
    folder = notebooks_folder()
    known = sorted(path.stem for path in folder.glob("*.ipynb"))
    if name in known:
        return folder / f"{name}.ipynb"
    try:
        return folder / f"gate_{find_gate(name).name}.ipynb"
    except BadInput:
        hint = did_you_mean(name, [*known, *GATES], otherwise=f"there are {', '.join(known)}")
        raise BadInput(f"no such notebook: {name!r}; {hint}") from None


def run_notebook(config: NotebookConfig, *, root: Path) -> RunFolder:
    """Executes the notebook with `config` in its parameters cell; what it runs lands in `root` as well."""
    source = notebook_file(config.name)
    tags = {"notebook": source.stem, "smoke": str(config.smoke).lower()}
    evidence = Evidence.TRACE
    with RunFolder.create(root, "notebook", config, profile=config.profile, evidence=evidence, tags=tags) as folder:
        executed = folder.artifacts / source.name
        _execute(source, executed, {**config.model_dump(mode="json", exclude={"name"}), "runs": str(root)})
        write_atomically(executed.with_suffix(".html"), _page(executed).encode())
        folder.finish()
    return folder


def _execute(source: Path, executed: Path, parameters: Mapping[str, Any]) -> None:
    import papermill
    from papermill.exceptions import PapermillExecutionError

    declared = papermill.inspect_notebook(source)
    chosen = {name: value for name, value in parameters.items() if name in declared}
    try:
        papermill.execute_notebook(
            source,
            executed,
            parameters=chosen,
            cwd=source.parent,
            progress_bar=False,
            execution_timeout=_CELL_TIMEOUT_S,
            extra_arguments=_KERNEL_ARGUMENTS,
        )
    except PapermillExecutionError as error:
        raise BadInput(f"{source.name} stopped: {error.ename}: {error.evalue} (see {executed})") from None


def _page(executed: Path) -> str:
    from nbconvert import HTMLExporter

    page: str = HTMLExporter(embed_images=True, exclude_input_prompt=True, exclude_output_prompt=True).from_filename(
        str(executed)
    )[0]
    return page
