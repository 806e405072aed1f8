"""The bundled model packed once, named by `WORKBENCH_STORE`."""

import pytest

from workbench.paths import bundled_model
from workbench.stores.pack import pack


@pytest.fixture(scope="session")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stores") / "mini"
    pack(bundled_model(), folder)
    return folder


@pytest.fixture
def mini_store(packed, monkeypatch):
    monkeypatch.setenv("WORKBENCH_STORE", str(packed))
    return packed
