"""Parts of the engine, tested alone and mostly without a process."""

import os
import pickle
import select
import socket
import threading
from collections import OrderedDict
from concurrent.futures import Future
from contextlib import closing

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from vecenv import SharedMemoryError, nest
from vecenv.arguments import as_ids, next_seed, seed_chain, spread_seeds
from vecenv.backends.host.row_writer import copy_containers
from vecenv.backends.ipc.messages import HEADER, Channel
from vecenv.backends.memory.arena import Arena, arena_bytes, used_bytes
from vecenv.backends.memory.shared_memory import PAGE, anonymous_file, reserve
from vecenv.backends.pool.ray_worker import CallChannel, RayWorker
from vecenv.layout import Leaf, ObjectLeaf, common_layout, space_tree
from vecenv.portability import PORTABLE


def test_trees_are_mapped_taken_put_and_stacked():
    tree = {"a": np.arange(3), "b": (np.ones((3, 2)), {"c": np.zeros(3)})}
    assert nest.map(np.ndim, tree) == {"a": 1, "b": (2, {"c": 1})}
    assert [leaf.shape for leaf in nest.leaves(tree)] == [(3,), (3, 2), (3,)]
    rows = [nest.take(tree, i) for i in range(3)]
    filled = nest.map(np.zeros_like, tree)
    for i, row in enumerate(rows):
        nest.put(filled, i, row)
    for again in (nest.stack(rows), filled):
        assert all(map(np.array_equal, nest.leaves(tree), nest.leaves(again)))
    assert nest.map(abs, -1) == 1
    assert list(nest.leaves(5)) == [5]


def test_object_arrays_do_not_look_into_their_values():
    array = nest.object_array([[1, 2], [3, 4]])
    assert (array.shape, array[1]) == ((2,), [3, 4])
    assert nest.object_array([]).shape == (0,)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)), st.integers(1, n))))
def test_ids_of_any_form_are_a_fresh_array_in_their_order(case):
    n, order, k = case
    chosen = order[:k]
    mask = [i in chosen for i in range(n)]
    for given_ids in (chosen, tuple(chosen), np.array(chosen), np.array(chosen, np.uint16)):
        ids = as_ids(given_ids, n)
        assert (ids.tolist(), ids.dtype) == (chosen, np.int64)
        assert not np.shares_memory(ids, given_ids)
    assert as_ids(mask, n).tolist() == as_ids(np.array(mask), n).tolist() == sorted(chosen)
    for one in (chosen[0], np.int64(chosen[0]), np.array(chosen[0])):
        assert as_ids(one, n).tolist() == [chosen[0]]
    assert as_ids(range(k), n).tolist() == list(range(k))


class TestSeeds:
    def test_the_chain(self):
        assert seed_chain(0, 3) == [0, 795726461, 2841183792, 2309840538]
        assert seed_chain(1, 6)[-1] == 3589710766
        assert seed_chain(10, 3)[-1] == 3288080526
        assert all(0 <= next_seed(seed) < 2**32 - 1 for seed in range(50))

    def test_spreading(self):
        assert spread_seeds(3, [0, 2]) == [3, 5]
        assert spread_seeds([None, np.uint8(4)], [0, 2]) == [None, 4]
        assert spread_seeds(None, range(3)) == [None] * 3
        assert spread_seeds(torch.tensor(3), [0, 2]) == [3, 5]
        assert spread_seeds(torch.tensor([4, 7]), [0, 2]) == [4, 7]
        assert all(type(seed) is int for seed in spread_seeds(np.array([1, 2]), [0, 1]))


class TestLayout:
    def test_leaves_of_a_nested_space(self):
        space = spaces.Dict({"a": spaces.Tuple([spaces.Discrete(3), spaces.Text(4)]), "b": spaces.Box(0, 1, (2,))})
        tree = space_tree(space, "obs")
        assert tree["a"] == (Leaf("obs['a'][0]", (), np.dtype(np.int64)), ObjectLeaf("obs['a'][1]", True))
        assert tree["b"] == Leaf("obs['b']", (2,), np.dtype(np.float32))
        assert tree["b"].dtype is np.dtype(np.float32)

    @pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "float32", "float64"])
    def test_a_leaf_has_the_dtype_object_of_arrays_also_in_a_worker(self, dtype):
        leaf = space_tree(spaces.Box(0, 1, (2,), dtype), "obs")
        travelled = pickle.loads(pickle.dumps(leaf))
        assert travelled == leaf
        assert leaf.dtype is travelled.dtype is np.zeros(2, dtype).dtype


class TestArena:
    LAYOUT = common_layout(
        [
            spaces.Dict(
                {"image": spaces.Box(0, 255, (50, 40), np.uint8), "none": spaces.Box(0, 1, (0,)), "t": spaces.Text(2)}
            )
        ],
        [spaces.Box(-1, 1, (3,))],
    )

    def test_arrays_do_not_overlap_and_start_on_pages(self):
        buffer = np.zeros(arena_bytes(self.LAYOUT, 4), np.uint8)
        arena = Arena.build(self.LAYOUT, 4, buffer)
        arrays = [arena.status, arena.action, *arena.outputs()]
        for value, array in enumerate(arrays, 1):
            array[...] = value if array.dtype != bool else True
            assert array.size == 0 or (array.ctypes.data - buffer.ctypes.data) % PAGE == 0
        for value, array in enumerate(arrays, 1):
            assert (array == (value if array.dtype != bool else True)).all()
        assert arena.obs["t"].dtype == object
        assert arena.obs["none"].shape == (4, 0)
        assert [array.shape for array in arena.finals()] == [(4, 50, 40), (4, 0)]

    def test_last_observations_are_apart_from_all_that_every_round_uses(self):
        space = spaces.Dict({"image": spaces.Box(0, 255, (50, 40), np.uint8), "speed": spaces.Box(0, 1, (3,))})
        layout = common_layout([space], [spaces.Box(-1, 1, (3,))])
        buffer = np.zeros(arena_bytes(layout, 4), np.uint8)
        arena = Arena.build(layout, 4, buffer)
        for array in arena.finals():
            array[...] = 7
        assert not buffer[: used_bytes(layout, 4)].any()
        assert (arena.final["image"] == 7).all()
        assert (arena.final["speed"] == 7).all()
        assert [array.shape for array in arena.block(1, 3).finals()] == [(2, 50, 40), (2, 3)]

    @pytest.mark.skipif(PORTABLE, reason="nothing is reserved")
    def test_what_the_system_refuses_is_an_error_that_says_what_it_was_for(self, monkeypatch):
        def refuse(fd, offset, size):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "posix_fallocate", refuse)
        fd = anonymous_file("vecenv-test")
        try:
            with pytest.raises(SharedMemoryError, match=r"3\.0 MiB of shared memory are needed for the moon.*No space"):
                reserve(fd, 3 * 2**20, "the moon")
        finally:
            os.close(fd)


@pytest.fixture
def ends():
    ours, theirs = (Channel(sock) for sock in socket.socketpair())
    yield ours, theirs
    ours.close()
    theirs.close()


def received(channel):
    """Return the frames that have arrived."""
    channel.receive()
    return list(iter(channel.take, None))


@pytest.mark.guarantee("G4.6")
def test_copies_of_infos_are_apart_from_the_env_and_own_classes_are_shared():
    array, shared = np.zeros(1), OrderedDict(x=np.zeros(1))
    graph = spaces.GraphInstance(array, None, None)
    copies = copy_containers({"a": [array], "b": (array, {"c": array}), "graph": graph, "shared": shared})
    array[0] = 5
    assert copies == {"a": [[0]], "b": ([0], {"c": [0]}), "graph": ([0], None, None), "shared": shared}
    assert type(copies["graph"]) is spaces.GraphInstance
    assert copies["shared"] is shared


class TestChannel:
    @settings(max_examples=30, deadline=None, derandomize=True)
    @given(st.lists(st.tuples(st.integers(1, 255), st.integers(0, 2**64 - 1), st.binary(max_size=300)), max_size=8))
    def test_frames_arrive_whole_and_in_order(self, frames):
        ours, theirs = (Channel(sock) for sock in socket.socketpair())
        with closing(ours), closing(theirs):
            for kind, number, payload in frames:
                assert ours.post(kind, number, payload[:2], memoryview(payload)[2:])
            assert [tuple(theirs.read()) for _ in frames] == frames
            for kind, number, payload in frames:
                theirs.write(kind, number, payload)
            assert [tuple(frame) for frame in received(ours)] == frames
            assert received(ours) == []

    def test_a_frame_that_comes_in_pieces_is_given_when_it_is_whole(self):
        sock, theirs = socket.socketpair()
        ours = Channel(sock)
        raw = HEADER.pack(3, 7, 9) + b"abc" + HEADER.pack(0, 8, 1)
        want = {HEADER.size + 2: [(7, 9, b"abc")], len(raw) - 1: [(8, 1, b"")]}
        with closing(ours), closing(theirs):
            for k in range(len(raw)):
                theirs.send(raw[k : k + 1])
                assert [tuple(frame) for frame in received(ours)] == want.get(k, [])

    def test_more_than_the_socket_holds_waits_for_a_flush(self, ends):
        ours, theirs = ends
        big = os.urandom(3_000_000)
        assert not ours.post(1, 0, big)
        assert not ours.post(2, 0, b"after")
        frames = []
        reader = threading.Thread(target=lambda: frames.extend(theirs.read() for _ in range(2)))
        reader.start()
        while not ours.flush():
            assert select.select([], [ours], [], 30)[1]
        reader.join(30)
        assert [(frame.kind, frame.payload) for frame in frames] == [(1, big), (2, b"after")]

    def test_two_ends_that_send_much_do_not_wait_for_each_other(self, ends):
        ours, theirs = ends
        big = bytes(3_000_000)
        writer = threading.Thread(target=lambda: (theirs.write(1, 0, big), theirs.read()))
        writer.start()
        ours.post(2, 0, big)
        frames = []
        is_sent = False
        while not (frames and is_sent):
            assert any(select.select([ours], [] if is_sent else [ours], [], 30))
            frames += received(ours)
            is_sent = ours.flush()
        writer.join(30)
        assert [len(frame.payload) for frame in frames] == [len(big)]

    def test_frames_arrive_in_their_order_also_where_the_first_had_no_room(self, ends):
        ours, theirs = ends
        assert not ours.post(1, 0, bytes(3_000_000))
        theirs._in += theirs._sock.recv(1_000_000)  # there is room again
        ours.post(2, 0, b"small")
        frames = received(theirs)
        while len(frames) < 2:
            ours.flush()
            frames += received(theirs)
        assert [(frame.kind, len(frame.payload)) for frame in frames] == [(1, 3_000_000), (2, 5)]

    @pytest.mark.parametrize("last", [[], [5]])
    def test_the_end_of_the_other_side_is_seen_after_its_last_frame_or_by_sending(self, ends, last):
        ours, theirs = ends
        for kind in last:
            theirs.write(kind, 0, b"last")
        theirs.close()
        assert last or ours.post(1, 0, b"never read")
        assert [frame.kind for frame in received(ours)] == last
        assert received(ours) == []
        assert ours.ended
        with pytest.raises(EOFError):
            ours.read()


def test_the_end_of_an_actor_is_waited_for_no_longer_than_allowed():
    call = Future()
    channel = CallChannel(lambda *_, **__: call, [0] * 8)
    channel.start("start")
    assert not channel.await_end(0.0)
    call.set_result(None)
    assert channel.await_end(0.0)
    channel.close()


def test_an_actor_on_this_node_has_a_pid_as_soon_as_it_has_connected():
    """Ray may report the node of an actor after the first answers of its envs."""
    worker = RayWorker(0, range(2))
    assert (worker.pid, worker.where) == (None, "an actor that has not started")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        worker.connected(ours, 123, "10.0.0.1")
        assert (worker.pid, worker.where) == (123, "pid 123 on node 10.0.0.1")
