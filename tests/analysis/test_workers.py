import operator
import os

import pytest

from workbench.analysis.workers import completed


@pytest.mark.parametrize("workers", [1, 2])
def test_each_job_comes_back_with_its_index(workers):
    assert dict(completed(operator.mul, [(2, 3), (4, 5), (6, 7)], workers)) == {0: 6, 1: 20, 2: 42}


def test_more_workers_are_other_processes():
    pids = {pid for _, pid in completed(os.getpid, [(), ()], 2)}
    assert os.getpid() not in pids
    assert {pid for _, pid in completed(os.getpid, [(), ()], 1)} == {os.getpid()}


def test_an_error_of_a_job_is_the_callers():
    with pytest.raises(ZeroDivisionError):
        list(completed(operator.truediv, [(1, 0), (1, 1)], 2))


def test_what_has_not_begun_is_dropped_when_the_caller_gives_up(tmp_path):
    results = completed(os.mkdir, [(str(tmp_path / str(i)),) for i in range(5000)], 2)
    next(results)
    results.close()
    assert 1 <= len(list(tmp_path.iterdir())) < 5000
