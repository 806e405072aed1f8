"""Processes that file the results in a folder and are killed, then three at once; prints their exit statuses.

They are forks of one process, so that MLflow, which takes seconds to import, is imported once. Each opens the store itself.
"""

import json
import os
import signal
import sys
from pathlib import Path

import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
from alembic.runtime import migration
from mlflow import MlflowClient
from sqlalchemy import event
from sqlalchemy.engine import Engine

from workbench.tracking import track


def die(*_args, **_kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def after(count, then):
    """A function that calls `then` from its call of number `count` on."""
    calls = iter(range(count))
    return lambda *_: None if next(calls, None) is not None else then()


def making_the_database():
    done, kill = migration.HeadMaintainer.update_to_step, after(3, die)

    def update(self, step):
        done(self, step)
        kill()

    migration.HeadMaintainer.update_to_step = update


def at_a_statement():
    event.listen(Engine, "before_cursor_execute", after(60, die))


def at_the_end_of_a_run():
    MlflowClient.set_terminated = die


def start(root, hook):
    if (child := os.fork()) == 0:
        try:
            hook()
            track(root)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    return child


def end(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    killed = [end(start(folder, hook)) for hook in (making_the_database, at_the_end_of_a_run, at_a_statement)]
    together = [start(folder, lambda: None) for _ in range(3)]
    print(json.dumps(killed + [end(child) for child in together]))
