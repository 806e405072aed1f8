import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from workbench.errors import BadInput
from workbench.geometry import Geometry
from workbench.stores import PleStore, open_store
from workbench.stores.manifest import SourceIdentity
from workbench.stores.ple_codecs import AFFINE_ROWS, RowCodec, RowKind
from workbench.stores.ple_writer import PleWriter
from workbench.stores.workspace import Workspace


class Table:
    """A source that has one n-gram table and nothing else."""

    def __init__(self, config, values):
        self.geometry = Geometry.from_config(config)
        self.identity = SourceIdentity(sha256="ab" * 32, num_bytes=1, num_tensors=1)
        self._values = mx.array(values).astype(mx.bfloat16)
        mx.eval(self._values)  # another thread can't evaluate this one's graph

    def ngram_rows(self, layer, first, stop):
        assert layer == 1
        return np.array(self._values[first:stop].view(mx.uint16))

    def ngram_matrices(self, layer, codec, first, stop):
        words, scales, biases = mx.quantize(self._values[first:stop], codec.group_size, codec.bits)
        return np.array(words), np.array(scales.view(mx.uint16)), np.array(biases.view(mx.uint16))

    def decoded(self, kind):
        if kind is RowKind.BF16:
            return np.array(self._values.astype(mx.float32))
        words, scales, biases = mx.quantize(self._values, AFFINE_ROWS.group_size, AFFINE_ROWS.bits)
        return np.array(mx.dequantize(words, scales.astype(mx.float32), biases.astype(mx.float32), 32, 4))


def write_table(folder, table, kind, page_bytes):
    writer = PleWriter(table, 1, RowCodec(kind=kind, row_width=table.geometry.ple_row_width), page_bytes)
    with Workspace(folder, {"page_bytes": page_bytes, "kind": kind}) as work:
        work.write(writer.plan, lambda num_bytes: None)
    return PleStore.open(folder / "ngrams.1.ple")


def read_pages(store):
    content = np.fromfile(store.path, np.uint8)[store.page(0).offset :]
    return content.reshape(store.num_pages, store.page_bytes)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(RowKind),
    page_bytes=st.sampled_from((4096, 16384)),
    heads=st.sampled_from((1, 2)),
    width=st.sampled_from((32, 96, 160)),
    base=st.integers(2, 300),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_come_back_as_mlx_decodes_them(tmp_path_factory, tiny_config, kind, page_bytes, heads, width, base, seed):
    config = {**tiny_config, "heads_per_ngram": heads, "ple_embed_dim": 2 * heads * width, "ngram_vocab_size_base": base}
    rng, num_rows = np.random.default_rng(seed), Geometry.from_config(config).ple_num_rows(0)
    table = Table(config, rng.standard_normal((num_rows, width)).astype(np.float32))
    store = write_table(tmp_path_factory.mktemp("table"), table, kind, page_bytes)
    store.verify()
    rows = rng.integers(0, num_rows, 50)
    pages, slots = store.locate(rows)
    assert pages.max() < store.num_pages
    assert ((slots + 1) * store.row_bytes <= page_bytes).all()
    wanted, index = np.unique(pages, return_inverse=True)
    padded = np.zeros((len(wanted), page_bytes + 64), np.uint8)
    padded[:, :page_bytes] = read_pages(store)[wanted]
    for memory in (padded[:, :page_bytes], np.ascontiguousarray(padded[:, :page_bytes])):
        decoded = store.decode(memory, index, slots)
        assert np.array_equal(decoded.view(np.uint32), table.decoded(kind)[rows].view(np.uint32))


def test_pages_are_aligned_and_a_row_is_one_run_of_bytes(tiny_store):
    store = open_store(tiny_store).ngrams[1]
    assert (store.row_width, store.row_bytes, store.rows_per_page, store.page_bytes) == (32, 20, 204, 4096)
    assert store.page(1).offset % 4096 == 0
    assert store.page(1).offset - store.page(0).offset == store.page(1).num_bytes == 4096
    assert [part.tolist() for part in store.locate(np.array([[0, 203], [204, 409]]))] == [[[0, 0], [1, 2]], [[0, 203], [0, 1]]]
    with pytest.raises(IndexError):
        store.page(store.num_pages)


def test_narrow_rows_are_bf16_and_never_affine():
    assert RowCodec.default(16) == RowCodec(kind=RowKind.BF16, row_width=16)
    assert RowCodec.default(160).row_bytes == 100
    with pytest.raises(BadInput, match="multiple of 32"):
        RowCodec(kind=RowKind.AFFINE4, row_width=16)
