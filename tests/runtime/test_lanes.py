"""Passes of any grouping, prefixes of blocks, and lanes beside each other: one state, one routing, and nothing of another's."""

import numpy as np
import pytest

from workbench.errors import BadInput
from workbench.experiments.routes import RouteRecorder
from workbench.loading.transfer import RequestFailed
from workbench.paths import bundled_model
from workbench.readers import Disk, PacedReader, PreadConfig, PreadReader, ShuffledReader, TimedReader, VirtualClock
from workbench.readers.base import Reader
from workbench.runtime.config import RuntimeConfig
from workbench.runtime.resident_engine import ResidentEngine
from workbench.runtime.session import Session
from workbench.runtime.streamed import StreamedEngine
from workbench.schema import EventLog
from workbench.schema.envelopes import load_envelope
from workbench.stores import open_store

THREADS = {"expert": 4, "ple": 4, "layer": 2}


@pytest.fixture(scope="module")
def resident():
    with ResidentEngine(bundled_model(), EventLog()) as engine:
        yield engine


@pytest.fixture
def streamed(mini_store, budget_bytes):
    """A streaming engine with a share of the records between the smallest cache and all."""
    made = []

    def build(share=0.0, reader=None, clock=None, **settings):
        config = RuntimeConfig(cache_bytes=budget_bytes(mini_store, share), **settings)
        made.append(StreamedEngine(mini_store, config, EventLog(), reader=reader, clock=clock))
        return made[-1]

    yield build
    for engine in made:
        engine.close()


def digests(session):
    return session.state.digest(), session.routing_digest


def assert_nothing_is_held(engine):
    for pool in engine.scheduler.pools.values():
        slots, filling = pool.slots, [ticket for ticket in pool.tickets.values() if ticket.slot >= 0]
        assert not [ticket for ticket in filling if ticket.demanded]
        free = slots.num_available + slots.num_draining + slots.num_lent
        assert free + len(filling) == slots.num_slots, f"{pool.name}: slots leased"


# ---- one sequence in passes of any length ------------------------------------------------------------------------------


def run_passes(engine, tokens, length):
    """Digests and routes of 8 tokens in passes of `length`, behind two that are alike."""
    recorder = RouteRecorder("prose", "held_out")
    session = Session(engine, route_sink=recorder.record)
    session.prefill(tokens[:2])
    for start in range(2, 10, length):
        session.verify(tokens[start : min(start + length, 10)], len)
    return digests(session), recorder.frame().drop("phase")


def run_rejecting(engine, tokens, length, accepted):
    """The same in blocks of `length` of which `accepted` tokens are committed; the others are wrong guesses, then redone."""
    recorder = RouteRecorder("prose", "held_out")
    session = Session(engine, route_sink=recorder.record)
    session.prefill(tokens[:2])
    start = 2
    while start < 10:
        keep = min(accepted, 10 - start)
        wrong = [tokens[40 + place] for place in range(length - keep)]
        session.verify([*tokens[start : start + keep], *wrong], lambda logits: keep)  # noqa: B023 - called at once
        assert session.lane.num_committed == keep
        start += keep
    return digests(session), recorder.frame().drop("phase")


@pytest.fixture(scope="module")
def by_single_tokens(resident, mini_tokens):
    return run_passes(resident, mini_tokens, 1)


@pytest.mark.parametrize("length", [1, 3, 4, 8])
@pytest.mark.parametrize("share", [None, 0.0, 0.3])
def test_passes_of_any_length_are_one_sequence(resident, streamed, mini_tokens, by_single_tokens, length, share):
    found, routes = run_passes(resident if share is None else streamed(share), mini_tokens, length)
    assert found == by_single_tokens[0]
    assert routes.equals(by_single_tokens[1])


@pytest.mark.parametrize("accepted", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("share", [None, 0.0])
def test_every_accepted_prefix_of_a_block_is_the_same_sequence(
    resident, streamed, mini_tokens, by_single_tokens, accepted, share
):
    found, routes = run_rejecting(resident if share is None else streamed(share), mini_tokens, 5, accepted)
    assert found == by_single_tokens[0]
    assert routes.equals(by_single_tokens[1]), "rejected rows leave no route"


def test_a_block_of_which_nothing_is_accepted_leaves_everything_as_it_was(streamed, mini_tokens):
    engine = streamed(0.1)
    session = Session(engine)
    session.prefill(mini_tokens[:3])
    before = digests(session)
    engine.log.clear()
    session.verify(mini_tokens[3:7], lambda logits: 0)
    assert digests(session) == before
    events = engine.log.frame()
    assert events.filter(kind="token").height == 0, "nothing was committed"
    rejected = events.filter(kind="rejected")
    assert rejected["value"].to_list() == [4.0, 4.0]
    read = events.filter(kind="demand").group_by("store").agg(misses="misses").sort("store")
    assert rejected.filter(store="expert")["logical_bytes"].item() <= 27_648 * sum(read["misses"][0])
    assert rejected["logical_bytes"].min() > 0


def test_rejected_rows_are_accounted_for_with_the_bytes_that_they_alone_needed(streamed, mini_tokens):
    engine = streamed(0.1)
    session = Session(engine)
    session.prefill(mini_tokens[:3])
    engine.log.clear()
    session.verify(mini_tokens[3:7], lambda logits: 3)
    events = engine.log.frame()
    token, rejected = events.filter(kind="token"), events.filter(kind="rejected", store="expert")
    assert (token["committed_tokens"].item(), token["position"].item(), token["phase"].item()) == (3, 5, "verify")
    assert (rejected["position"].item(), rejected["value"].item()) == (6, 1.0)
    assert 0 < rejected["logical_bytes"].item() < events.filter(kind="ticket", store="expert")["logical_bytes"].sum()
    assert events.filter(kind="ticket")["token_mask"].unique().to_list() == [0b1111]


# ---- lanes that meet ---------------------------------------------------------------------------------------------------

LENGTHS = (1, 5, 2)
"""Blocks of each lane, behind a prompt."""


def alone(engine, tokens, request=0):
    session = Session(engine, request=request)
    session.prefill(tokens[:4])
    start, logits = 4, []
    for length in LENGTHS:
        logits.append(session.verify(tokens[start : start + length], len))
        start += length
    return digests(session), np.concatenate(logits)


def together(engine, sequences, merged=True):
    """The same of several lanes; `merged`: they meet at every layer."""
    sessions = [Session(engine, request=request) for request, _ in enumerate(sequences)]
    for session, tokens in zip(sessions, sequences, strict=True):
        session.prefill(tokens[:4])
    start, logits = 4, [[] for _ in sequences]
    for length in LENGTHS:
        for session, tokens in zip(sessions, sequences, strict=True):
            engine.start(session.lane, np.array(tokens[start : start + length]), "verify", accept=len)
        if merged:
            engine.join_lockstep([session.lane for session in sessions])
        engine.run(*(session.lane for session in sessions))
        for made, session in zip(logits, sessions, strict=True):
            assert session.lane.error is None
            made.append(session.lane.logits)
        start += length
    return [(digests(session), np.concatenate(made)) for session, made in zip(sessions, logits, strict=True)]


def assert_equal(found, wanted):
    for (own, logits), (wanted_own, wanted_logits) in zip(found, wanted, strict=True):
        assert own == wanted_own
        np.testing.assert_array_equal(logits, wanted_logits)


@pytest.fixture(scope="module")
def sequences(mini_tokens):
    return [mini_tokens[:12], mini_tokens[60:72], mini_tokens[2:14]]


@pytest.fixture(scope="module")
def each_alone(resident, sequences):
    return [alone(resident, tokens) for tokens in sequences]


@pytest.mark.parametrize("merged", [False, True])
def test_lanes_in_memory_have_the_bits_of_each_alone(resident, sequences, each_alone, merged):
    assert_equal(together(resident, sequences, merged), each_alone)


@pytest.mark.parametrize(
    ("share", "settings", "merged"),
    [
        (0.0, {}, False),
        (0.0, {}, True),
        (0.0, {"wave": "barrier"}, True),
        (0.0, {"wave": 2, "split_components": True, "predictor": "next_layer"}, False),
        (0.0, {"wave": 2, "split_components": True, "predictor": "next_layer"}, True),
        (0.05, {"readback": "misses", "predictor": "previous_token"}, True),
        (1.0, {"policy": "lru", "uncached": False, "ple": "late"}, True),
    ],
    ids=str,
)
def test_streamed_lanes_have_the_bits_of_each_alone(streamed, sequences, each_alone, share, settings, merged):
    engine = streamed(share, **settings)
    assert_equal(together(engine, sequences, merged), each_alone)
    assert_nothing_is_held(engine)


def timed():
    clock = VirtualClock()
    return {"reader": TimedReader(PreadReader(), Disk(load_envelope("m4-pro-512gb")), clock), "clock": clock}


READERS = {
    "pread": lambda: {"reader": PreadReader(PreadConfig(threads=THREADS))},
    "paced": lambda: {"reader": PacedReader(PreadReader(), Disk(load_envelope("m5-pro-2tb")))},
    "shuffled": lambda: {"reader": ShuffledReader(PreadReader(), 3)},
    "timed": timed,
}


@pytest.mark.parametrize("reader", READERS)
def test_lanes_that_meet_have_the_same_bits_with_every_reader(streamed, sequences, each_alone, reader):
    assert_equal(together(streamed(0.02, **READERS[reader]()), sequences), each_alone)


def test_two_lanes_can_not_be_one_request(resident):
    first, second = Session(resident), Session(resident)
    resident.start(first.lane, np.array([1]), "decode")
    with pytest.raises(ValueError, match="is under way"):
        resident.start(second.lane, np.array([1]), "decode")
    resident.cancel(first.lane)
    resident.start(first.lane, np.arange(20), "prefill")
    with pytest.raises(ValueError, match="only blocks"):
        resident.join_lockstep([first.lane])
    resident.cancel(first.lane)


# ---- what happens to one lane is no other's business -------------------------------------------------------------------


class Broken(Reader):
    """A reader of which the bytes at some offsets can't be had."""

    def __init__(self, offsets):
        self._inner, self._offsets, self._bad = PreadReader(), offsets, set()

    def open_file(self, path):
        return self._inner.open_file(path)

    def submit(self, reads):
        self._bad |= {read.key for read in reads if read.file == 0 and read.offset in self._offsets}
        return self._inner.submit(reads)

    def poll(self, timeout_s=0.0, at_least=1):
        done = self._inner.poll(timeout_s, at_least)
        for completion in done:
            if completion.key in self._bad:
                completion.error = OSError(5, "planted")
        return done

    def close(self):
        self._inner.close()

    @property
    def in_flight(self):
        return self._inner.in_flight


@pytest.fixture(scope="module")
def chosen(resident, sequences):
    """By sequence and layer, the experts of the first block behind the prompt, and of the prompt."""
    made = []
    for tokens in sequences[:2]:
        by_layer = [set() for _ in range(8)]

        def note(scope, layer, tokens, ids, weights, by_layer=by_layer):
            by_layer[layer] |= set(ids.ravel().tolist())

        session = Session(resident, route_sink=note)
        session.prefill(tokens[:4])
        prompt = [set(layer) for layer in by_layer]
        for layer in by_layer:
            layer.clear()
        session.verify(tokens[4:7], len)
        made.append((by_layer, prompt))
    return made


def two_blocks(engine, sequences, merged):
    """Two lanes behind their prompts, each with a block of three tokens under way."""
    sessions = [Session(engine, request=request) for request in range(2)]
    for session, tokens in zip(sessions, sequences[:2], strict=True):
        session.prefill(tokens[:4])
    before = [digests(session) for session in sessions]
    for session, tokens in zip(sessions, sequences[:2], strict=True):
        engine.start(session.lane, np.array(tokens[4:7]), "verify", accept=len)
    if merged:
        engine.join_lockstep([session.lane for session in sessions])
    return sessions, before


@pytest.fixture(scope="module")
def untroubled(resident, sequences):
    sessions, _ = two_blocks(resident, sequences, merged=False)
    resident.run(*(session.lane for session in sessions))
    return [digests(session) for session in sessions]


def assert_only_the_first_lost(engine, sessions, before, untroubled, sequences):
    engine.run(*(session.lane for session in sessions))
    assert digests(sessions[1]) == untroubled[1], "the other lane went on as if alone"
    assert digests(sessions[0]) == before[0], "nothing of the pass was committed"
    assert_nothing_is_held(engine)
    sessions[0].verify(sequences[0][4:7], len)
    assert digests(sessions[0]) == untroubled[0], "the lane can go on"


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("layer", range(8))
def test_a_lane_whose_bytes_can_not_be_had_fails_alone(mini_store, streamed, sequences, chosen, untroubled, merged, layer):
    (mine, my_prompt), (others, other_prompt) = chosen
    foreign = others[layer] | my_prompt[layer] | other_prompt[layer]
    store, expert = open_store(mini_store), min(mine[layer] - foreign)
    offset = store.experts.record(layer, expert).offset
    broken = {offset - offset % 4096}
    engine = streamed(0.0, reader=Broken(broken))
    sessions, before = two_blocks(engine, sequences, merged)
    engine.run(*(session.lane for session in sessions))
    assert isinstance(sessions[0].lane.error, RequestFailed)
    assert f"layer {layer} could not be read" in str(sessions[0].lane.error)
    broken.clear()
    assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)


def assert_cancels_leave_the_other_lane_alone(engine, sequences, untroubled, merged, tried):
    for steps in tried:
        sessions, before = two_blocks(engine, sequences, merged)
        for _ in range(steps):
            if all(session.lane.forward_pass is not None for session in sessions):
                engine.step()
        if sessions[0].lane.forward_pass is None:
            break
        engine.cancel(sessions[0].lane)
        assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)
    assert steps > 30, "the blocks have as many steps"


@pytest.mark.parametrize(("wave", "merged", "tried"), [(1, True, range(0, 200, 7)), ("barrier", False, range(3, 200, 7))])
def test_a_cancel_at_any_step_leaves_the_other_lane_alone(streamed, sequences, untroubled, wave, merged, tried):
    assert_cancels_leave_the_other_lane_alone(streamed(0.0, wave=wave), sequences, untroubled, merged, tried)


@pytest.mark.soak
@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize("wave", [1, "barrier"])
def test_a_cancel_at_every_step_leaves_the_other_lane_alone(streamed, sequences, untroubled, wave, merged):
    assert_cancels_leave_the_other_lane_alone(streamed(0.0, wave=wave), sequences, untroubled, merged, range(200))


@pytest.mark.parametrize("merged", [False, True])
def test_a_verifier_that_raises_aborts_its_own_pass(streamed, sequences, untroubled, merged):
    engine = streamed(0.0)
    sessions, before = two_blocks(engine, sequences, merged)

    def refuse(logits):
        raise RuntimeError("planted")

    sessions[0].lane.accept = refuse
    with pytest.raises(RuntimeError, match="planted"):
        engine.run(*(session.lane for session in sessions))
    assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)


@pytest.mark.parametrize("said", [-1, 4, 1.5, None, "2", float("nan")])
def test_a_verifier_that_says_no_number_of_its_tokens_aborts_its_pass(streamed, sequences, untroubled, said):
    engine = streamed(0.0)
    sessions, before = two_blocks(engine, sequences, merged=True)
    sessions[0].lane.accept = lambda logits: said
    with pytest.raises(ValueError, match="of 3 tokens can't be committed"):
        engine.run(*(session.lane for session in sessions))
    assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)


def test_a_verifier_may_cancel_its_own_pass(streamed, sequences, untroubled):
    engine = streamed(0.0)
    sessions, before = two_blocks(engine, sequences, merged=True)
    sessions[0].lane.accept = lambda logits: engine.cancel(sessions[0].lane)
    assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)


@pytest.mark.parametrize("tokens", [[], [-1], [4096], [5, 10**9], [1.0]])
def test_tokens_that_the_model_does_not_have_are_refused(resident, tokens):
    session = Session(resident)
    before = digests(session)
    with pytest.raises(ValueError, match="a pass needs one token id of 0 to 4095 or more"):
        resident.start(session.lane, np.array(tokens), "decode")
    assert digests(session) == before
    assert session.lane.forward_pass is None


def test_lanes_that_wait_for_each_others_slots_end_with_one_of_them_failing(streamed, mini_tokens):
    """At the smallest cache one lane pins records and waits for pages while another pins pages and waits for slots."""

    def holds(session, store):
        return any(demand.store == store for demand in engine.scheduler._demands.get(session.request, {}))

    tokens, failed = mini_tokens * 3, 0
    for first in range(28, 140, 7):
        engine, starts = streamed(0.0, **timed()), (first, first + 40, first + 80)
        sessions = [Session(engine, request=request) for request in range(3)]
        for session, start in zip(sessions, starts, strict=True):
            session.prefill(tokens[start : start + 4])
        for session, start, store in zip(sessions, starts, ("ple", "expert", None), strict=True):
            engine.start(session.lane, np.array(tokens[start + 4 : start + 12]), "verify", accept=len)
            while store and session.lane.forward_pass is not None and not holds(session, store):
                engine.step()
        engine.run(*(session.lane for session in sessions))
        errors = [session.lane.error for session in sessions if session.lane.error is not None]
        assert all("the cache is too small for" in str(error) for error in errors)
        assert len(errors) < 3
        youngest = max(sessions, key=lambda session: session.lane.start_ns)
        assert not errors or youngest.lane.error is errors[0]
        failed = len(errors)
        assert_nothing_is_held(engine)
        for session, start in zip(sessions, starts, strict=True):
            if session.lane.error is not None:
                session.verify(tokens[start + 4 : start + 12], len)
            assert digests(session) == alone_in_block(engine, tokens, start)
        engine.close()
        if failed:
            return
    raise AssertionError("no lane had to wait for another one: the test shows nothing")


def alone_in_block(engine, tokens, start):
    session = Session(engine, request=9)
    session.prefill(tokens[start : start + 4])
    session.verify(tokens[start + 4 : start + 12], len)
    return digests(session)


@pytest.mark.parametrize("change", ["tensors['x'][:] = 0", "tensors['x'] += 1", "tensors.clear()"])
def test_a_predictor_that_writes_to_what_it_looks_at_changes_nothing(streamed, mini_tokens, tmp_path, change):
    path = tmp_path / "writes.py"
    path.write_text(
        "from workbench.prediction import Predictor\n"
        "class Writes(Predictor):\n"
        "    looks_at = 'tap'\n"
        f"    def look(self, scope, layer, tensors):\n        {change}\n        return []\n"
    )
    found = [run_passes(streamed(0.1, predictor=predictor), mini_tokens, 4)[0] for predictor in ("nothing", f"{path}:Writes")]
    assert found[0] == found[1]


def test_an_error_of_one_lane_is_not_raised_where_another_one_runs(streamed, sequences, untroubled):
    engine = streamed(0.0)
    sessions, before = two_blocks(engine, sequences, merged=False)
    sessions[0].lane.accept = lambda logits: 1 / 0
    engine.run(sessions[1].lane)
    assert digests(sessions[1]) == untroubled[1]
    if sessions[0].lane.forward_pass is not None:
        with pytest.raises(ZeroDivisionError):
            engine.run(sessions[0].lane)
    assert isinstance(sessions[0].lane.error, ZeroDivisionError)
    assert_only_the_first_lost(engine, sessions, before, untroubled, sequences)


def test_a_predictor_that_fails_to_learn_leaves_the_pass_committed_and_logged(streamed, mini_tokens, tmp_path):
    path = tmp_path / "forgets.py"
    path.write_text(
        "from workbench.prediction import Predictor\n"
        "class Forgets(Predictor):\n"
        "    def look(self, scope, layer, tensors):\n        return []\n"
        "    def committed(self, scope, layer, keys):\n        return [][scope.phase == 'decode']\n"
    )
    engine = streamed(0.1, predictor=f"{path}:Forgets")
    session = Session(engine)
    with pytest.raises(BadInput, match="predictor Forgets fails at layer 0: IndexError"):
        session.decode(mini_tokens[0])
    assert session.state.position == 1
    assert engine.log.frame().filter(kind="token")["committed_tokens"].to_list() == [1]
    assert_nothing_is_held(engine)


def test_a_block_longer_than_any_is_refused(resident, mini_tokens):
    session = Session(resident)
    with pytest.raises(ValueError, match="a block has at most 8 tokens, got 9"):
        session.verify(mini_tokens[:9], len)
    assert session.state.position == 0
