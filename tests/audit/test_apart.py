"""Runs of an audit are made in a fresh process: the same bits, nothing of this process, and the old run out of reach."""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch

import feduhb
from audit.auditing import QUIET, draw_federation
from audit.reaching import Dies, Forgets, Holds, Mine, Reads, Spies
from feduhb.audit import apart
from feduhb.audit.apart import FailedRunError, ProcessError, run_apart, separate, write_job
from feduhb.audit.audit import audit
from feduhb.audit.recipes import CannotRebuild, follow, follow_method, write_method, write_recipe
from feduhb.core.types import Updates
from feduhb.errors import AggregationError
from feduhb.methods import settings_of
from feduhb.methods.feduhb import HeavyBall
from feduhb.runs import prepare
from feduhb.runs.checkpoint import load_params
from feduhb.runs.config import TrainSettings
from feduhb.runs.private import find_work

HOW = {"epochs": 1, "batch_size": 8, "lr": 0.1, "engine": "loop", "show": None}


def own_rule(answers: Iterable[Updates], weight: float = 1.0) -> torch.Tensor:
    """A rule of the user's own."""
    return weight * feduhb.weighted_mean(answers)


@dataclass(frozen=True)
class Odd:
    """A stop rule of the user's own."""

    least: int = 3

    def __call__(self, moved: Any, /) -> None: ...

    def threshold(self, moved: Any, /) -> None: ...


@pytest.fixture(scope="module", autouse=True)
def forked_workers():
    """Here the processes are real ones."""
    apart.stop_server()
    yield
    apart.stop_server()


@pytest.fixture(scope="module")
def federation():
    return feduhb.load("digits", clients=4, per_client=60, held_out=0.25, model="softmax")


@pytest.fixture(scope="module")
def trained(federation, tmp_path_factory):
    return feduhb.train(federation, 3, out=tmp_path_factory.mktemp("runs") / "trained", **HOW)


def unlearn(trained, method: Any = "feduhb", **more):
    return feduhb.unlearn(trained, ["c00"], method=method, rounds=3, stop=feduhb.never, show=None, **more)


def make_job(federation, method, out, engine: Any = "loop"):
    settings = TrainSettings(rounds=3, epochs=1, batch_size=8, lr=0.1, engine="loop")
    return write_job(
        federation, method, feduhb.never, engine, settings=settings, rounds=3, block=None, out=out, bound={}, forgot=None,
        ancestors=(), models=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def needs_hiding(federation, tmp_path_factory):
    """Skip a test where the system does not let a process hide folders from itself; fail where CI found that it does."""
    place = tmp_path_factory.mktemp("hiding")
    job = make_job(federation, feduhb.FedUHB(epochs=1), place / "out")
    if (why := run_apart(job, [place], None)) is not None:
        why = f"this system does not let a process hide folders from itself: {why}"
        pytest.fail(why) if os.environ.get("FEDUHB_CI_HIDES") else pytest.skip(why)


@pytest.mark.parametrize(
    "value",
    [
        3,
        0.5,
        "text",
        None,
        True,
        feduhb.median,
        partial(feduhb.trimmed_mean, trim=0.2),
        own_rule,
        partial(own_rule, weight=0.5),
        feduhb.dynamic_stop(0.3, window=4),
        feduhb.never,
        Odd(5),
        feduhb.Loop,
        partial(feduhb.Pool, threads=1),
    ],
)
def test_a_recipe_gives_the_value_again(value):
    recipe = pickle.loads(pickle.dumps(write_recipe(value, "it")))  # noqa: S301
    made = follow(recipe)
    if type(value) is partial:
        assert (made.func, made.args, made.keywords) == (value.func, value.args, value.keywords)
    else:
        assert made == value
        assert type(made) is type(value)


@pytest.mark.parametrize(
    "method",
    [
        feduhb.FedUHB(momentum=0.5, epochs=2, aggregate=partial(feduhb.krum, hostile=1)),
        feduhb.FedEraser(interval=3),
        feduhb.FedRecover(warmup=4, correction=3),
        feduhb.Nesterov(step_size=0.5, momentum=0.5, epochs=2, aggregate=feduhb.median),
        feduhb.FedAdam(lr=0.1, epochs=2),
        feduhb.FedYogi(b1=0.5, tau=0.1),
        feduhb.FedNadam(b2=0.9),
        feduhb.FedExP(eps=0.1),
        Mine(step_size=0.5),
        Reads(path="somewhere"),
    ],
)
def test_a_method_is_made_again_from_its_recipe(method):
    made = follow_method(write_method(method))
    assert (type(made), settings_of(made)) == (type(method), settings_of(method))


def local_rule(answers: Any) -> Any:
    return answers


def make_closure() -> Any:
    return lambda answers: local_rule(answers)


class Wide(str):
    """A text that may carry more than its characters."""

    __slots__ = ("weights",)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (feduhb.FedUHB(aggregate=make_closure()), "its setting 'aggregate' is defined inside a function"),
        (Reads(path="x" * 1001), "its setting 'path' is a str, which is not a plain setting"),
        (Reads(path=Wide("x")), "its setting 'path' is a Wide, which is not a plain setting"),
        (Reads(path=2**70), "its setting 'path' is an int, which is not a plain setting"),  # pyright: ignore[reportArgumentType]
        (feduhb.FedUHB(aggregate=torch.nn.Linear(2, 2)), "its setting 'aggregate' is a Linear"),
        (
            feduhb.FedUHB(aggregate=partial(feduhb.trimmed_mean, trim=torch.zeros(2))),  # pyright: ignore[reportArgumentType]
            "its setting 'aggregate' is a Tensor",
        ),
    ],
)
def test_what_is_not_plain_has_no_recipe(method, words):
    with pytest.raises(CannotRebuild, match=words):
        write_method(method)


def test_a_class_that_only_has_the_name_of_another_has_no_recipe():
    class FedUHB(feduhb.FedUHB):
        """Poses as the package's own."""

    with pytest.raises(CannotRebuild, match="the class of feduhb is defined inside a function"):
        write_method(FedUHB())
    FedUHB.__module__, FedUHB.__qualname__ = feduhb.FedUHB.__module__, "FedUHB"
    with pytest.raises(CannotRebuild, match=r"is not what feduhb\.methods\.feduhb defines as FedUHB"):
        write_method(FedUHB())


def test_a_method_that_changes_its_settings_is_not_made_again():
    with pytest.raises(CannotRebuild, match="does not keep the settings that it is made with"):
        follow_method(write_method(Forgets()))


def test_a_script_without_a_guard_has_no_recipe(tmp_path, monkeypatch):
    import __main__

    script = tmp_path / "script.py"
    script.write_text("print('work')\n")
    monkeypatch.setattr(__main__, "__file__", str(script), raising=False)
    monkeypatch.setattr(Mine, "__module__", "__main__")
    monkeypatch.setattr(__main__, "Mine", Mine, raising=False)
    with pytest.raises(CannotRebuild, match="which would run whole if it were imported"):
        write_method(Mine())
    source = "import feduhb\nclass Mine(feduhb.FedUHB):\n    pass\nif __name__ == '__main__':\n    raise SystemExit"
    script.write_text(source)
    monkeypatch.setitem(sys.modules, "__script__", None)  # to be removed again at the end
    del sys.modules["__script__"]
    made = follow_method(write_method(Mine(momentum=0.25)))
    assert type(made) is not Mine
    assert (type(made).__module__, made.momentum) == ("__script__", 0.25)  # pyright: ignore[reportAttributeAccessIssue]


def test_a_job_holds_the_rows_of_its_clients_alone(federation):
    sent = separate(federation.without(["c00"]))
    assert sent.fingerprints() == federation.without(["c00"]).fingerprints()
    for own in (*sent.clients.values(), *sent.held_out.values(), sent.test):
        assert own.x.untyped_storage().nbytes() == own.x.nbytes
        assert len(own.x) == len(own.rows)


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_a_fresh_process_gives_the_same_bits(federation, tmp_path, engine):
    seen = []
    method = feduhb.FedUHB(epochs=1)
    run_apart(make_job(federation, method, tmp_path / "apart", engine), [], seen.append)
    job = make_job(federation, method, tmp_path / "here", engine)
    here = prepare.run_method(federation, method, job.settings, rounds=3, engine=engine)
    assert torch.equal(load_params(tmp_path / "apart" / "state.safetensors"), here.params)
    assert [(record.round, record.moved) for record in seen] == [
        (record.round, record.moved) for record in here.rounds
    ]


@pytest.fixture
def spied(federation, tmp_path, monkeypatch):
    """What a method finds in a fresh process, with the folder of an old file hidden and not hidden."""
    old, work = tmp_path / "old.txt", tmp_path / "work"
    old.write_text("old weights")
    monkeypatch.setenv("WORD", "spoken")
    monkeypatch.chdir(tmp_path)
    torch.set_num_threads(3)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    found = []
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            job = make_job(federation, Spies(path=str(old), port=server.getsockname()[1]), work)
            for hidden in ([tmp_path], []):
                with pytest.raises(FailedRunError, match="RuntimeError") as failed:
                    run_apart(job, hidden, None)
                found.append(json.loads(str(failed.value).partition(": ")[2]))
    finally:
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
    return found


def test_a_fresh_process_has_the_settings_of_this_one(spied, tmp_path):
    for facts in spied:
        assert facts["process"] != os.getpid()
        assert (facts["threads"], facts["dtype"]) == (3, "torch.float64")
        assert facts["deterministic"]
        assert facts["warn only"]
        assert (facts["folder"], facts["word"]) == (str(tmp_path), "spoken")


@pytest.mark.usefixtures("needs_hiding")
def test_a_hidden_file_cannot_be_reached_by_a_method_that_tries_hard(spied):
    hidden, in_reach = spied
    assert in_reach["is there"]
    assert in_reach["network"]
    ways = ("is there", "is there once unmounted", "by the parent's root", "by the parent's folder", "above the kept folder", "network")  # fmt: skip
    assert {way: hidden[way] for way in ways} == dict.fromkeys(ways, False)


def test_an_error_of_ours_keeps_its_kind(federation, tmp_path):
    lonely = federation.without(["c00", "c01", "c02"])
    method = feduhb.FedUHB(epochs=1, aggregate=partial(feduhb.krum, hostile=2))
    with pytest.raises(AggregationError, match="krum"):
        run_apart(make_job(lonely, method, tmp_path / "out"), [], None)


def test_a_process_that_dies_is_reported(federation, tmp_path):
    (tmp_path / "now").touch()
    with pytest.raises(ProcessError, match="ended with status -9; start again to continue where it stopped"):
        run_apart(
            make_job(federation, Dies(epochs=1, path=str(tmp_path / "now")), tmp_path / "out"), [], None
        )
    run_apart(
        make_job(federation, Mine(epochs=1), tmp_path / "next"), [], None
    )  # the next job has a new process


def test_an_error_leaves_its_traceback(federation, tmp_path, capfd):
    apart.stop_server()  # the next one writes to the captured standard error
    with pytest.raises(FailedRunError, match="FileNotFoundError: no old weights in nowhere"):
        run_apart(make_job(federation, Reads(path="nowhere"), tmp_path / "out"), [], None)
    apart.stop_server()
    assert 'reaching.py", line' in capfd.readouterr().err


@pytest.mark.slow
def test_a_process_that_dies_does_not_blame_the_method(trained, tmp_path):
    """The audit stops, keeps what it has done, and continues when it is started again."""
    now, out = tmp_path / "now", tmp_path / "out"
    run = unlearn(trained, Dies(epochs=1, path=str(now)))
    now.touch()
    with pytest.raises(ProcessError, match="ended with status -9"):
        audit(run, trained, canaries=0, out=out, **QUIET)
    work = find_work(out)
    done = {file.relative_to(work): file.stat().st_mtime_ns for file in work.rglob("result.json")}
    assert done
    now.unlink()
    found = audit(run, trained, canaries=0, out=out, keep=True, **QUIET)
    assert {file: (out / "audit-work" / file).stat().st_mtime_ns for file in done} == done
    assert "failed" not in list_checks(found)


CARELESS = """
import os
import feduhb
from audit.auditing import QUIET, draw_federation
from audit.reaching import Mine
from feduhb.audit.audit import audit

os.environ["DEPTH"] = str(int(os.environ["DEPTH"]) + 1)
assert int(os.environ["DEPTH"]) < 3, "audits start each other"
trained = feduhb.train(draw_federation(dict(ant=4, bee=5, cat=6)), 1, epochs=1, batch_size=8, engine="loop", show=None)
audit(feduhb.unlearn(trained, ["ant"], method=Mine(epochs=1), rounds=1, show=None), trained, canaries=0, **QUIET)

class Careless(feduhb.FedUHB):
    name = "careless"
"""


@pytest.mark.slow
def test_audits_do_not_start_each_other(federation, tmp_path, monkeypatch):
    file = tmp_path / "careless.py"
    file.write_text(CARELESS)
    monkeypatch.setenv("DEPTH", "0")
    monkeypatch.syspath_prepend(tmp_path)
    job = make_job(federation, Mine(epochs=1), tmp_path / "out")
    careless = replace(job.method.made_by, module="careless", name="Careless", file=str(file))
    with pytest.raises(CannotRebuild, match='put that under if __name__ == "__main__"'):
        run_apart(replace(job, method=replace(job.method, made_by=careless)), [], None)


def test_a_module_that_is_not_there_cannot_be_read(federation, tmp_path):
    job = make_job(federation, Mine(epochs=1), tmp_path / "out")
    elsewhere = replace(job.method.made_by, module="nowhere", file=str(tmp_path / "nowhere.py"))
    with pytest.raises(CannotRebuild, match="could not be made in a fresh process"):
        run_apart(replace(job, method=replace(job.method, made_by=elsewhere)), [], None)


def test_a_job_that_is_interrupted_leaves_no_process(federation, tmp_path):
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    job = make_job(federation, Mine(epochs=1), tmp_path / "out")
    server = apart.start_server()
    with pytest.raises(KeyboardInterrupt):
        run_apart(job, [], interrupt)
    assert not apart.SERVERS
    assert not server.is_alive()  # and it ends after its children only
    run_apart(job, [], None)
    assert len((tmp_path / "out" / "rounds.jsonl").read_text().splitlines()) == 3


KILLED = """
import os, signal, threading, time
from pathlib import Path
import feduhb
from audit.reaching import Waits
from audit.auditing import draw_federation
from audit.test_apart import make_job
from feduhb.audit.apart import run_apart

def kill():
    while not Path({seen!r}).exists() or not Path({seen!r}).read_text():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=kill, daemon=True).start()
run_apart(make_job(draw_federation(dict(ant=4, bee=5)), Waits(path={seen!r}), Path({out!r})), [], None)
"""


def test_no_process_outlives_the_one_that_started_it(commands, tmp_path):
    seen, script = tmp_path / "seen", tmp_path / "script.py"
    script.write_text(KILLED.format(seen=str(seen), out=str(tmp_path / "out")))
    ended = commands.run_script(script)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    for process in seen.read_text().split():
        try:
            handle = os.pidfd_open(int(process))
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], 60)[0], "it is still there"
        os.close(handle)


def list_checks(found) -> dict[str, bool]:
    assert found.exactness is not None
    return {check.name: check.identical for check in found.exactness.checks}


@pytest.mark.slow
def test_a_patched_method_of_the_package_is_found(trained, monkeypatch):
    """Somebody replaces FedUHB's `init` by one that loads the old weights. The fresh process has the real one."""
    assert audit(unlearn(trained), trained, canaries=0, **QUIET).verdict.word == "forgotten"
    old = trained.params.clone()
    monkeypatch.setattr(feduhb.FedUHB, "init", lambda _, params: HeavyBall(old, previous=params))
    found = audit(unlearn(trained), trained, canaries=0, **QUIET)
    assert found.verdict.word in ("inconclusive", "not forgotten")
    checks = list_checks(found)
    assert {name: checks[name] for name in ("noise", "never", "again")} == dict.fromkeys(
        ("noise", "never", "again"), False
    )


@pytest.mark.slow
def test_old_weights_in_a_class_do_not_travel(trained, monkeypatch):
    monkeypatch.setattr(Holds, "old", trained.params.clone())
    found = audit(unlearn(trained, Holds(epochs=1)), trained, canaries=0, **QUIET)
    assert found.verdict.word in ("inconclusive", "not forgotten")
    assert not list_checks(found)["never"]


@pytest.mark.slow
@pytest.mark.usefixtures("needs_hiding")
def test_an_old_file_is_out_of_reach(trained):
    run = unlearn(trained, Reads(epochs=1, path=str(trained.folder / "state.safetensors")))
    found = audit(run, trained, canaries=0.5, **QUIET)
    assert found.verdict.word in ("inconclusive", "not forgotten")
    assert list_checks(found)["failed"] is False
    assert found.exactness is not None
    assert any(
        "where the old run is out of reach (noise-reads: unlearning): FileNotFoundError: no old weights"
        in check.says
        for check in found.exactness.checks
    )
    assert any(note.startswith("The erasure could not be rehearsed") for note in found.notes)


@pytest.mark.slow
def test_the_audit_says_where_the_old_run_is_in_reach(trained, monkeypatch):
    ask = apart._ask

    def refuse(packed: bytes, hidden: Any, *more: Any) -> Any:
        return {"said": "open", "text": "unshare: Operation not permitted"} if hidden else ask(packed, hidden, *more)  # fmt: skip

    monkeypatch.setattr(apart, "_ask", refuse)
    run = unlearn(trained, Mine(epochs=1))
    found = audit(run, trained, canaries=0, **QUIET)
    assert [note for note in found.notes if "within reach" in note] == [
        "The old run was within reach of the repeated runs, because this system does not hide it from them (unshare: Operation not permitted). A method that reads its files could pass these checks."
    ]
    assert list_checks(found)["never"]


def test_a_system_that_does_not_hide_folders_says_why(federation, tmp_path):
    """Nothing can be kept that is not there; every other refusal of the system takes the same way."""
    packed = pickle.dumps(make_job(federation, Mine(epochs=1), tmp_path / "out"))
    answer = apart._ask(packed, [tmp_path], [tmp_path / "nowhere"], None)
    assert answer["said"] == "open"
    assert answer["text"]


@pytest.mark.slow
def test_a_method_that_cannot_be_made_again_is_at_best_inconclusive(trained):
    class Local(feduhb.FedUHB):
        """An honest method, but in a function."""

        __slots__ = ()
        name = "local"

    found = audit(unlearn(trained, Local(epochs=1)), trained, canaries=0, **QUIET)
    assert list_checks(found)["never"]  # it ran here, and did well
    assert found.verdict.word == "inconclusive"
    assert found.verdict.reasons[0] == (
        "The method could not be repeated in a fresh process: the class of local is defined inside a function; define it in a module."
    )


@pytest.mark.slow
def test_models_of_any_kind_travel(tmp_path):
    """The model belongs to the federation, and may be a lambda or a class in a function."""

    class Net(torch.nn.Linear):
        """A model in a function."""

    federation = draw_federation({"ant": 6, "bee": 7, "cat": 8}).replace(model=lambda: Net(6, 3))
    run = feduhb.unlearn(feduhb.train(federation, 2, **HOW), ["ant"], rounds=2, show=None)
    found = audit(run, canaries=0, out=tmp_path, **QUIET)
    assert list_checks(found) == {"noise": True, "never": True, "beginning": True}
    assert not any("fresh process" in reason for reason in found.verdict.reasons)


@pytest.mark.slow
def test_where_processes_are_not_forked_every_job_starts_one(federation, tmp_path, monkeypatch):
    apart.stop_server()
    monkeypatch.setattr(apart, "FORKS", False)
    never_fork = "import main; import sys; sys.modules['feduhb.audit.apart'].FORKS = False; main()"
    assert "import main; main()" in apart.START
    monkeypatch.setattr(apart, "START", apart.START.replace("import main; main()", never_fork))
    seen = []
    run_apart(make_job(federation, Mine(epochs=1), tmp_path / "out"), [], seen.append)
    assert len(seen) == 3
    assert not apart.SERVERS
