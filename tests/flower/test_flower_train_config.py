"""train_config is recorded, and a run is resumed only with the same one."""

import tomllib
from typing import Any

import pytest
import torch
from flwr.app import ConfigRecord

import feduhb
from federations import ragged
from feduhb import flower
from feduhb.errors import RunFolderError
from feduhb.runs.folder import RunFolder
from flower.gridding import make_grid

LOCAL = feduhb.Local(batch_size=8, lr=0.05)
NAMES = ("ant", "bee", "cat", "dog", "elk")
FEDERATION = ragged()


class Killed(BaseException):
    """An exception that no handler catches."""


def draw_start():
    return flower.fresh_arrays(FEDERATION.model, 7)


def make_strategy(folder, kind: type[Any] = flower.Train, **more):
    settings = {"epochs": 1, "seed": 7, "local": LOCAL, "partitions": NAMES, "timeout": 5, **more}
    return kind(checkpoint=folder, **settings)


def kill(number, _):
    if number == 2:
        raise Killed


FIRST = {"proximal-mu": 0.1, "key": b"secret", "layers": [1, 2], "augment": True}


@pytest.mark.parametrize(
    ("first", "then", "words"),
    [
        (FIRST, {**FIRST, "proximal-mu": 0.9}, r"flower\.train_config\.proximal-mu = 0\.1, not 0\.9"),
        (
            FIRST,
            {**FIRST, "key": b"public"},
            r"flower\.train_config\.key = 'sha256:[0-9a-f]{64}', not 'sha256:",
        ),
        (FIRST, {**FIRST, "layers": [1]}, r"flower\.train_config\.layers = \[1, 2\], not \[1\]"),
        (FIRST, None, r"a table \[flower\.train_config\], not none"),
        (None, FIRST, r"no table \[flower\.train_config\], not one"),
    ],
)
@pytest.mark.parametrize("kind", [flower.Train, flower.FedUHB])
def test_a_run_is_resumed_only_with_the_same_train_config(kind, first, then, words, tmp_path):
    more = {"forget": "bee", **({"stop": feduhb.never} if kind is flower.FedUHB else {})}
    before, other = (None if told is None else ConfigRecord(dict(told)) for told in (first, then))
    with pytest.raises(Killed):
        make_strategy(tmp_path, kind, **more).start(
            make_grid(FEDERATION), draw_start(), 3, train_config=before, evaluate_fn=kill
        )
    grid = make_grid(FEDERATION)
    with pytest.raises(RunFolderError, match=f"was started with {words}"):
        make_strategy(tmp_path, kind, **more).start(grid, draw_start(), 3, train_config=other)
    assert grid.list_trained() == set()
    again = make_strategy(tmp_path, kind, **more).start(
        make_grid(FEDERATION), draw_start(), 3, train_config=before
    )
    calm = make_strategy(None, kind, **more).start(
        make_grid(FEDERATION), draw_start(), 3, train_config=before
    )
    assert torch.equal(again.params, calm.params)


def test_bytes_in_train_config_are_written_as_digests(tmp_path):
    make_strategy(tmp_path).start(
        make_grid(FEDERATION), draw_start(), 1, train_config=ConfigRecord(dict(FIRST))
    )
    text = (tmp_path / "config.toml").read_text()
    assert "secret" not in text
    assert set(tomllib.loads(text)["flower"]["train_config"]) == set(FIRST)


def test_a_result_has_the_fields_of_an_in_process_run(tmp_path):
    make_strategy(tmp_path / "there").start(make_grid(FEDERATION), draw_start(), 2)
    settings = {"epochs": 1, "batch_size": LOCAL.batch_size, "lr": LOCAL.lr}
    feduhb.train(FEDERATION, 2, engine="loop", out=tmp_path / "here", **settings)
    here, there = (RunFolder(tmp_path / name).result() for name in ("here", "there"))
    assert list(there) == list(here)
    measured = {"client_seconds", "server_seconds", "evaluate_seconds", "finished", "scores", "engine"}
    assert {k: v for k, v in there.items() if k not in measured} == {
        k: v for k, v in here.items() if k not in measured
    }
