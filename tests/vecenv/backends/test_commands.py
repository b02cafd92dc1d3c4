"""Workers that a command starts: `python -m vecenv.worker`, worker_numpy.py, and programs that send nonsense.

The contract and the table of faults have `python -m vecenv.worker` too.
"""

import subprocess
import threading
from functools import partial

import numpy as np
import pytest
from gymnasium import spaces

from tests.support.backends import FULL, one_of
from tests.support.command_envs import SPACES, Elsewhere
from tests.support.commands import COMMAND, CommandVectorEnv
from tests.support.ledger import appears
from tests.support.paths import ROOT
from vecenv import DummyVectorEnv, EnvStepError, RemoteObject, SubprocVectorEnv, WorkerDiedError, WorkerTimeoutError
from vecenv.testing import check_vector_env

ENV = "tests.support.command_envs:Elsewhere"
OLD = "tests.support.command_envs:OldStep"
NUMPY_COMMAND = [*COMMAND[:3], str(ROOT / "vecenv/worker_numpy.py")]
both = pytest.mark.parametrize(
    "command", [pytest.param(COMMAND, id="vecenv.worker"), pytest.param(NUMPY_COMMAND, id="worker_numpy", marks=FULL)]
)


@pytest.fixture(scope="module")
def shared():
    with elsewhere(num_workers=2) as venv:
        yield venv


@pytest.fixture
def venv(shared):
    """Two envs that the tests of the module share, and that do nothing odd yet."""
    shared.set_env_attr("what", "")
    return shared


def second_step(venv, what):
    """Return a function that steps the envs. In this step, env 0 does `what`."""
    venv.set_env_attr("what", what, [0])
    venv.reset()
    venv.step([0, 0])
    return lambda: venv.step([0, 0])


def elsewhere(what="", n=2, *, command=COMMAND, **options):
    """Return a vector env of which env 0 does `what` in its second step."""
    fns = [(ENV, {"id": i, "what": "" if i else what}) for i in range(n)]
    return SubprocVectorEnv(fns, worker_command=command, **options)


def program(text):
    """Return a command that runs a program with the parts of a worker at hand."""
    lines = "import os, struct, sys, time; import numpy as np; from vecenv.worker_numpy import *\n"
    return [*COMMAND[:3], "-c", lines + text]


# What crosses.


def test_episodes_equal_those_of_this_process(venv):
    def play(venv):
        rows = list(venv.reset(seed=5))
        for k in range(6):
            rows += venv.step([k % 3, 1], autoreset=[7, -1])
        return [list(row) for row in rows]

    with DummyVectorEnv([partial(Elsewhere, id=i) for i in range(2)]) as here:
        np.testing.assert_equal(play(venv), play(here))
    assert min(venv.stats()["worker_busy_s"]) > 0


@FULL
def test_worker_numpy_keeps_the_contract():
    make = partial(CommandVectorEnv, worker_command=NUMPY_COMMAND, num_workers=2)
    check_vector_env(make, ["rows", "autoreset", "attributes", "env_errors"])


def test_values_cross_in_a_closed_set(venv):
    info = second_step(venv, "tells")()[4][0]
    assert info["numbers"] == [1, 2.5, True, None, float("inf"), 2**70, 0.5, 3]
    assert [type(each) for each in info["numbers"][-2:]] == [np.float32, np.int8]
    assert (info["text"], info["bytes"], info["nested"]) == ("é\ud800", b"\0\xff", ({"$a": (1, [2])},))
    assert (info["array"].dtype, info["array"].tolist()) == (np.dtype(">i2"), [[0, 1, 2], [3, 4, 5]])
    assert info["texts"].tolist() == ["a", "bc"]
    assert info["by number"][2].tolist() == [0, 1, 2]
    assert info["a set"] == RemoteObject("builtins.set", "{1}")
    assert info["an error"] == RemoteObject("builtins.KeyError", "'x'")


@both
def test_spaces_and_computed_attributes_cross(command):
    fns = [("tests.support.command_envs:HasSpace", {"k": k}) for k in range(len(SPACES))]
    with SubprocVectorEnv(fns, num_workers=1, worker_command=command) as venv:
        for found, space in zip(venv.action_space, SPACES, strict=True):
            assert found == space
            assert found.dtype == space.dtype
            assert found.contains(space.sample())
        assert venv.get_env_attr("computed", [0]) == venv.call("computed", id=[0]) == [[1, 2]]
        with pytest.raises(AttributeError, match="has no attribute 'wings'"):
            venv.get_env_attr("wings")


# Errors.


@pytest.mark.guarantee("G8.1")
def test_an_error_of_a_module_that_this_program_lacks_is_its_name_text_and_traceback(venv):
    step = second_step(venv, "raises_own")
    with pytest.raises(EnvStepError, match=r"env 0 failed in step\(\): Own: of a module") as caught:
        step()
    assert caught.value.partial.env_id.tolist() == [1]
    assert "do_raises_own" in str(caught.value.__cause__)
    venv.reset([0])
    assert venv.step([0, 0])[0][:, 1].tolist() == [1, 3]


@both
def test_a_constructor_that_fails(command):
    with pytest.raises(ImportError, match="no_such_module"):
        SubprocVectorEnv(["no_such_module:make"], worker_command=command)
    with pytest.raises(TypeError, match="unexpected keyword argument 'color'"):
        SubprocVectorEnv([(ENV, {"color": 3})], worker_command=command)


@pytest.mark.guarantee("G8.5")
@both
def test_a_worker_that_ends_names_its_command_and_its_last_lines(command, capfd):
    with elsewhere("dies", num_workers=2, command=command) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(WorkerDiedError, match=r"(?s)exited with code 3.*while running env 0.*last words") as caught:
            venv.step([0, 0])
        assert command[-1] in str(caught.value)
        assert caught.value.partial.env_id.tolist() == [1]


@pytest.mark.guarantee("G8.6")
@both
def test_a_hung_env_is_ended_with_its_stack(command):
    with elsewhere("hangs", num_workers=1, step_timeout=0.4, command=command) as venv:
        venv.reset()
        venv.step([0, 0])
        with pytest.raises(WorkerTimeoutError, match=r"(?s)env 0 has been busy for more than step_timeout.*do_hangs"):
            venv.step([0, 0])


@FULL
@both
def test_a_worker_that_answers_is_not_hung_however_long_it_works(command):
    with SubprocVectorEnv([(ENV, {"pause": 0.1})], worker_command=command, step_timeout=1.0) as venv:
        venv.reset()
        for _ in range(15):
            venv.step([0])


def test_prints_of_envs_go_to_stderr(venv, capfd):
    second_step(venv, "prints")()
    err = ""
    while err.count("\n") < 3:  # a thread copies the lines; the test has a time limit
        out, more = capfd.readouterr()
        assert out == ""
        err += more
    assert sorted(err.splitlines()) == ["printed by C", "printed by Python", "printed by a program"]


@both
def test_prints_do_not_wait_until_the_program_waits(command, tmp_path, capfd):
    path = tmp_path / "printed"
    with SubprocVectorEnv([(ENV, {"what": "floods", "path": str(path)})], worker_command=command) as venv:
        venv.reset()
        venv.step([0])
        venv.send([0])
        appears(path, 60)
        venv.recv()
    assert capfd.readouterr().err.count("flooded") == 128


def test_a_text_before_the_handshake_is_skipped():
    with elsewhere(n=1, command=["sh", "-c", 'echo "Welcome to gpu-7"; exec "$@"', "sh", *COMMAND]) as venv:
        venv.reset()


# Programs that are no workers.

BEGINS = """
stream = Stream()
os.write(stream.output, MAGIC)
def hello(**more): stream.write(HELLO, 0, encode({"protocol": PROTOCOL, "worker": "mine", **more}))
"""
AT_START = {
    "a text": ("print('Permission denied'); sys.exit(1)", r"without a handshake.*'Permission denied\\n'"),
    "endless text": ("while True: os.write(1, b'yes ' * 1000)", "without the magic bytes: yes yes"),
    "a wrong handshake": ("os.write(1, MAGIC + b'x' * 64)", "a wrong handshake"),
    "another protocol": ("hello(protocol=9)", "protocol 9 of mine, expected 1"),
    "a huge frame": ("hello(); os.write(stream.output, HEADER.pack(1 << 40, 1, 0))", "a frame of kind 1 and"),
    "an unknown kind": ("hello(); stream.write(99, 0)", "a frame of kind 99"),
    "no reports": ("hello(); stream.write(READY, 0, encode([]))", "reported 0 envs, expected 1"),
    "a pickle": ("hello(); stream.write(READY, 0, b'\\x80\\x05N.')", "not a frame of this protocol"),
}


@pytest.mark.parametrize("case", one_of(list(AT_START)))
def test_a_program_that_is_no_worker(case):
    text, message = AT_START[case]
    begins = BEGINS if "hello" in text else ""
    with pytest.raises((WorkerDiedError, ValueError), match=f"(?s){message}"):
        elsewhere(n=1, command=program(f"{begins}{text}\ntime.sleep(60)"), start_timeout=30)


def test_a_program_that_says_nothing():
    with pytest.raises(WorkerTimeoutError, match="has sent no handshake"):
        elsewhere(n=1, command=["sleep", "60"], start_timeout=0.3)
    with pytest.raises(WorkerDiedError, match="exited with code 1 without a handshake"):
        elsewhere(n=1, command=["false"])
    with pytest.raises(WorkerDiedError, match="cannot be started"):
        elsewhere(n=1, command=["/no/such/program"])


def test_a_program_without_a_thread_left_starts_no_worker(monkeypatch):
    """The first worker starts. The system allows no thread for the stderr of the second worker."""
    starts = iter([threading.Thread.start])

    def start(thread):
        next(starts, fails)(thread)

    def fails(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(WorkerDiedError, match="cannot be started: can't start new thread"):
        elsewhere(num_workers=2)


NO_ROW = "ANSWERS, 0, b'\\x81' + bytes(12 + 8 + 2)"
IN_A_ROUND = {
    "a short row": ("ANSWERS, 0, b'\\x80' + bytes(5)", "an answer of 6 bytes, expected 23"),
    "a wrong status": ("ANSWERS, 0, b'\\x07' + bytes(22)", "the status 7 for the operation 2"),
    "a last observation": ("ANSWERS, 0, b'\\x82' + bytes(34)", "the status 130 for the operation 2"),
    "a flag of 7": ("ANSWERS, 0, b'\\x80' + bytes(12 + 8) + b'\\7\\0'", "neither 0 nor 1"),
    "no extras": (NO_ROW, "without the values that its status announces"),
    "extras of no env": (f"{NO_ROW} + encode([[9, [None] * 5]])", "without the values"),
    "wrong extras": (f"{NO_ROW} + encode([[0, [3] + [None] * 4]])", "of the wrong types"),
    "text as extras": (f"{NO_ROW} + b'garbage'", "not a frame of this protocol"),
    "an array larger than its message": (
        f'{NO_ROW} + raw(\'[{{"$array":["<f8",[4,1099511627776,1000],0]}}]\')',
        "an array '<f8' of .* bytes in a message of",
    ),
    "a scalar larger than its message": (
        f'{NO_ROW} + raw(\'[{{"$scalar":["<U100000000",0]}}]\')',
        "an array '<U100000000' of .* bytes in a message of",
    ),
    "an array of objects": (f'{NO_ROW} + raw(\'[{{"$array":["O",[1],0]}}]\')', "an array 'O' of 8 bytes"),
    "deep nesting": (f"{NO_ROW} + raw('[' * 100_000)", "not a frame of this protocol"),
    "an unknown info": ("ANSWERS, 0, b'\\x84' + bytes(22) + b'\\1\\0\\5'", "the layout 5, which was not sent"),
    "a second READY": ("READY, 0, b''", "a frame of kind 1"),
    "text": ("0x20656874, 0", "not a frame"),
}
BAD = """
raw = lambda text: struct.pack("<I", len(text)) + text.encode() + bytes(8)
stream = Stream()
start = stream.greet("mine")
if not (bad := start["envs"][0][1].pop("bad", "")):
    Server(stream, start_guard(stream, None), start).serve()
    sys.exit()
space = lambda kind, **fields: Tagged("$space", [kind, fields])
box = space("Box", low=np.full(3, -1, "f4"), high=np.full(3, 100, "f4"), dtype="<f4", shape=[3])
report = Tagged("$report", {"observation_space": box, "action_space": space("Discrete", n=3, start=0, dtype="<i8")})
stream.write(READY, 0, encode([report]))
stream.read_frame(), stream.read_frame()
try: exec(f"stream.write({bad})")
except struct.error: os.write(stream.output, b"Segmentation fault in the simulator")
time.sleep(60)
"""


@pytest.mark.parametrize("cases", one_of([["a short row"], list(IN_A_ROUND)]), ids=["one", "all"])
def test_wrong_frames_fail_their_envs_only(cases):
    fns = [(ENV, {"id": 0}), *((ENV, {"id": 1, "bad": IN_A_ROUND[case][0]}) for case in cases)]
    with SubprocVectorEnv(fns, worker_command=program(BAD), num_workers=len(fns)) as venv:
        with pytest.raises(WorkerDiedError) as caught:
            venv.reset()
        assert caught.value.env_ids == (1,)
        assert caught.value.partial.obs.tolist() == [[0, 0, 0]]
        assert venv.alive() == [True, *[False] * len(cases)]
        for i, case in enumerate(cases, 1):
            with pytest.raises(WorkerDiedError, match=f"(?s){IN_A_ROUND[case][1]}"):
                venv.step([1], [i])
        assert venv.step([1], [0])[0].tolist() == [[0, 1, 1]]


@FULL
def test_another_version_of_vecenv_is_named():
    worker = program('stream = Stream(); start = stream.greet("vecenv 0.0.9")\nServer(stream, [0] * 8, start).serve()')
    with pytest.warns(RuntimeWarning, match=r"have vecenv 0\.0\.9, this program has vecenv \d"):
        elsewhere(n=1, command=worker).close()


def test_the_worker_says_what_it_is_and_ends_without_a_parent():
    shown = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True)
    assert (shown.returncode, shown.stdout) == (0, "")
    assert "a worker for envs that run in another interpreter" in shown.stderr
    for command in (COMMAND, NUMPY_COMMAND):
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True)
        assert (ended.returncode, ended.stderr) == (0, b"")
        assert ended.stdout.startswith(b"\x93VECENV\n")


# Old interfaces. `OldStep` returns what gym-minigrid 1.0.3 and lbforaging 1.1.1 return on gym 0.21.


@both
@pytest.mark.parametrize("agents", [0, 2])
def test_envs_of_old_gym_are_adapted(command, agents):
    with SubprocVectorEnv([(OLD, {"agents": agents})] * 2, num_workers=1, worker_command=command) as venv:
        assert venv.observation_space[0] == spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8)})
        obs, info = venv.reset(seed=3)
        assert obs["image"].shape == (2, 2, 2)
        assert agents or (info[0]["mission"], info[0]["direction"]) == ("get to the goal", 0)
        assert venv.get_env_attr("seeds") == [[3], [4]]
        for _ in range(3):
            obs, rew, terminated, truncated, info = venv.step([1, 1])
        assert rew.tolist() == ([[0.5] * 2] * 2 if agents else [0.5, 0.5])
        assert (terminated.tolist(), truncated.tolist()) == ([False] * 2, [True] * 2)
        assert venv.call("render", mode="rgb_array")[0].shape == (2, 2, 3)


@both
def test_an_env_of_old_gym_without_seeds_says_so(command, capfd):
    with SubprocVectorEnv([(OLD, {"seeded": False})], worker_command=command) as venv:
        venv.reset(seed=3)
    assert "takes no seed in reset() or seed()" in capfd.readouterr().err
