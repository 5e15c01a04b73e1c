"""Another process erases what a request needs while the request reads it: the request is refused in words, or served.

Two requests to one run at once do this. The second one is stopped by the lineage of the run, but it reads before that.
The erasure happens here at a call into the operating system, once for each place in the code that makes one.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import feduhb
from exactness.test_rollback import HOW, draw
from federations import ragged
from feduhb.errors import FeduhbError
from feduhb.runs import checkpoint, history, kept

READERS = {history.__file__, kept.__file__}
CALLS = {"listdir", "lstat", "open", "scandir", "stat"}
CLAIMED = "_erase_claimed"  # the function that erases what this process has claimed
ROUNDS = 3
METHODS: dict[str, Any] = {
    "federaser": feduhb.FedEraser(interval=1, epochs=1),
    "fedrecover": feduhb.FedRecover(warmup=2, buffer=1, correction=2, final=1, epochs=1),
    "crab": "crab",
    "fedrecovery": "fedrecovery",
}
Place = tuple[
    tuple[str, int], ...
]  # files and lines, from the one that calls the operating system to the reader's caller


def find_place(frame: FrameType | None) -> Place | None:
    """Return the frames between a call and the one that uses a reader.

    Return None if no reader is among them, or if the process has claimed the run, so that no other one can erase it.
    """
    frames = list[tuple[str, int]]()
    while frame is not None and frame.f_code.co_name != CLAIMED:
        frames.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    readers = [number for number, (file, _) in enumerate(frames) if file in READERS]
    return tuple(frames[: readers[-1] + 2]) if readers and frame is None else None


@contextlib.contextmanager
def at_every_call(see: Callable[[Place], None]) -> Generator[None]:
    """Call a function just before each call into the operating system that reads a history or kept models."""
    busy = False

    def profile(frame: FrameType, event: str, called: Any) -> None:
        nonlocal busy
        if event != "c_call" or busy or called.__name__ not in CALLS:
            return
        busy = True
        if (place := find_place(frame)) is not None:
            see(place)
        busy = False

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def list_moments(request: Callable[[], object]) -> list[int]:
    """Return the first and the last call at each place of the code, while a request is served."""
    places: list[Place] = []
    with at_every_call(places.append):
        request()
    first = {place: number for number, place in reversed([*enumerate(places)])}
    last = {place: number for number, place in enumerate(places)}
    assert len(first) > 5, "the readers' calls are not seen"
    return sorted({*first.values(), *last.values()})


def erase_at(moment: int, erase: Callable[[], object]) -> contextlib.AbstractContextManager[None]:
    number = -1

    def see(_: Place) -> None:
        nonlocal number
        number += 1
        if number == moment:
            erase()

    return at_every_call(see)


def keep_rounds(folder: Path, least: int) -> None:
    """Delete what an erasure deletes that leaves some first rounds or models."""
    for place in sorted(folder.iterdir())[least:]:
        if place.name != "run.json":
            shutil.rmtree(place) if place.is_dir() else place.unlink()


def check_moments(
    folder: Path,
    open_copy: Callable[[Path], feduhb.Run],
    serve: Callable[[feduhb.Run], feduhb.Run],
    part: str,
    least: int,
) -> set[str]:
    """Erase a part of a copied run at each moment of a request; return how the requests ended."""
    copy = folder.with_name("copy")

    def make_copy() -> feduhb.Run:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        return open_copy(copy)

    whole, first = serve(make_copy()).params, make_copy()
    ends = set[str]()
    for moment in list_moments(lambda: serve(first)):
        run, refusal = make_copy(), ""
        with erase_at(moment, lambda: keep_rounds(copy / part, least)):
            try:
                assert torch.equal(serve(run).params, whole), moment
            except FeduhbError as error:
                refusal = str(error)
                ends.add(type(error).__name__)
            else:
                ends.add("served")
        assert not refusal or str(copy) in refusal or "history" in refusal, moment
    return ends


@pytest.mark.parametrize("least", [0, 1])
@pytest.mark.parametrize("name", METHODS)
def test_a_history(tmp_path, name, least):
    feduhb.train(
        ragged(), ROUNDS, epochs=1, batch_size=8, lr=0.05, out=tmp_path / "run", keep_history=True, show=None
    )
    ends = check_moments(
        tmp_path / "run",
        lambda copy: feduhb.open_run(copy, ragged()),
        lambda run: feduhb.unlearn(run, ["bee"], method=METHODS[name], show=None),
        "history",
        least,
    )
    assert "HistoryError" in ends


def test_kept_models(tmp_path):
    trained = feduhb.train(draw(), 5, keep_models="1MB", out=tmp_path / "run", **HOW)
    late = trained.rounds[-1].asked[0]
    ends = check_moments(
        tmp_path / "run",
        lambda copy: feduhb.open_run(copy, draw()),
        lambda run: feduhb.unlearn(run, [late], method="rollback", show=None),
        "kept-models",
        0,
    )
    assert "served" in ends


@pytest.mark.parametrize(
    ("module", "words", "read"),
    [
        (history, "is missing, cut short or damaged", lambda run: run.history.params(1)),
        (checkpoint, "there is no checkpoint", lambda run: feduhb.open_run(run.folder, ragged())),
    ],
)
def test_a_file_that_is_deleted_while_it_is_opened(module, words, read, monkeypatch, tmp_path):
    """safetensors opens a file, and then torch maps it: by its name, so the file must still be there."""
    run = feduhb.train(
        ragged(), 2, epochs=1, batch_size=8, lr=0.05, out=tmp_path, keep_history=True, show=None
    )
    opened: list[Path] = []

    def open_deleted(path: Path, **_: Any) -> None:
        opened.append(path)
        path.unlink()
        torch.UntypedStorage.from_file(str(path), False, 8)

    monkeypatch.setattr(module, "safe_open", open_deleted)
    with pytest.raises(FeduhbError, match=words):
        read(run)
    assert len(opened) == 1
