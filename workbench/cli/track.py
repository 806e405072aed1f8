"""`workbench track`, `ui` and `lab`: file results in MLflow, and open MLflow or JupyterLab on them."""

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cyclopts import App

from workbench.cli.output import print_table
from workbench.errors import BadInput, UnmetPrerequisite, one_line
from workbench.paths import notebooks_folder, runs_folder
from workbench.schema import Status, list_runs
from workbench.schema.results import arm_tags

if TYPE_CHECKING:
    from workbench.tracking import Filed


def register(app: App) -> None:
    """Adds the commands."""
    tracking = App(name="track", help="Files results in MLflow; `rebuild` deletes all filed runs and files everything anew.")
    tracking.default(track)
    tracking.command(rebuild)
    app.command(tracking)
    app.command(ui)
    app.command(lab)


def track() -> None:
    """Files every result folder that is new or has changed since it was filed.

    Example: workbench track
    """
    from workbench import tracking

    _print_filed(tracking.track(runs_folder()))


def rebuild() -> None:
    """Empties MLflow's store and files every sound, ended result folder anew; result folders stay as they are.

    Example: workbench track rebuild
    """
    from workbench import tracking

    _print_filed(tracking.rebuild(runs_folder()))


def ui(*, port: int = 5000, anyway: bool = False) -> None:
    """Opens MLflow on the results, on this machine only; files new results first.

    Example: workbench ui --port 5001

    Parameters
    ----------
    port
        Port on 127.0.0.1.
    anyway
        Start although a run is in progress, whose times the page would disturb.
    """
    from workbench.tracking import Store, show, track

    running = [folder.path for folder in list_runs(runs_folder()) if folder.status is Status.RUNNING]
    if running and not anyway:
        raise UnmetPrerequisite(f"{running[0]} is still running and the page would disturb its times: wait, or add --anyway")
    store = Store(runs_folder())
    if not store.is_local:
        print(f"results are on {store.uri}", file=sys.stderr)
        return
    _check_port(port)
    runs_folder().mkdir(parents=True, exist_ok=True)
    show(runs_folder())
    track(runs_folder(), store)
    print(f"MLflow: http://127.0.0.1:{port}/?workflowType=machine_learning (Ctrl-C ends it)", file=sys.stderr)
    _become(store.server_command(port), os.environ | store.server_environment)


def _check_port(port: int) -> None:
    """Raises BadInput when no server can listen on `port` of 127.0.0.1."""
    if not 0 < port < 1 << 16:
        raise BadInput(f"port {port} can't be used: ports are 1 to 65535")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise BadInput(f"port {port} of 127.0.0.1 can't be used ({error.strerror}): choose another with --port") from None


def lab(*, browser: bool = True) -> None:
    """Opens JupyterLab on the notebooks.

    Example: workbench lab

    Parameters
    ----------
    browser
        Open a browser as well; --no-browser prints the address only.
    """
    command = [sys.executable, "-m", "jupyterlab", str(notebooks_folder()), *([] if browser else ["--no-browser"])]
    _become(command, os.environ | {"WORKBENCH_RUNS": str(runs_folder())})


def file_results(root: Path) -> None:
    """Files new results after a run and prints their addresses; a failure is reported and never fails the run.

    An arm of a comparison files nothing: the comparison files all arms after the last. With `WORKBENCH_TRACKING=off` nothing is
    filed until `workbench track`.
    """
    if arm_tags() is not None or os.environ.get("WORKBENCH_TRACKING") == "off":
        return
    from workbench.tracking import run_link, track

    try:
        filed = track(root)
    except Exception as error:
        reason = one_line(str(error) or type(error).__name__)
        print(f"not filed in MLflow; `workbench track` files it later ({reason})", file=sys.stderr)
        return
    arms = [each for each in filed if each.is_arm]
    for each in (each for each in filed if not each.is_arm):
        print(f"filed {each.place}: {run_link(each.experiment_id, each.run_id)}", file=sys.stderr)
    if arms:
        _print_arms(arms)


def _print_arms(arms: "list[Filed]") -> None:
    """Links to the last cohort that was filed: curves of its arms, and its arms side by side."""
    from workbench.tracking import compare_link, curves_link

    last = arms[-1]
    cohort = [each for each in arms if each.cohort == last.cohort]
    print(f"filed {len(arms)} arms; curves of the last cohort: {curves_link(last.experiment_id, *last.cohort)}", file=sys.stderr)
    print(f"side by side: {compare_link(last.experiment_id, [each.run_id for each in cohort])}", file=sys.stderr)


def _print_filed(filed: Sequence["Filed"]) -> None:
    rows = [{"folder": each.place, "run": each.run_id} for each in filed]
    if rows:
        print_table(rows)
    else:
        print("nothing new")


def _become(command: list[str], environment: dict[str, str]) -> NoReturn:
    """Replaces this process with the server's, so that every signal reaches the server."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], command, environment)
