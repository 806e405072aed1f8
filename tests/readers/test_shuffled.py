import numpy as np

from workbench.readers import PreadReader, ShuffledReader

PAGE = 4096


def orders(path, make_reads, seed, count=8):
    with ShuffledReader(PreadReader(), seed) as reader:
        file = reader.open_file(path)
        reads = make_reads(file, [(PAGE * i, PAGE) for i in range(count)])
        assert reader.submit(reads) == count
        seen = []
        while reader.in_flight:
            done = reader.poll(None)
            assert len(done) == 1
            seen.append(done[0].key)
        return seen, reads


def test_every_read_is_reported_once_with_its_bytes_in_an_order_that_the_seed_decides(path, content, make_reads):
    seen, reads = orders(path, make_reads, seed=1)
    assert sorted(seen) == list(range(8))
    for read in reads:
        assert np.array_equal(read.into, content[read.offset : read.offset + PAGE])
    assert orders(path, make_reads, seed=1)[0] == seen
    assert len({tuple(orders(path, make_reads, seed)[0]) for seed in range(6)}) == 6


def test_a_poll_that_does_not_wait_may_find_nothing(path, make_reads):
    with ShuffledReader(PreadReader(), 0) as reader:
        reader.submit(make_reads(reader.open_file(path), [(PAGE * i, PAGE) for i in range(20)]))
        found = [len(reader.poll(0.0)) for _ in range(20)]
        assert {0, 1} == set(found)
