"""Flower's own simulation runtime, as it is: 20 clients on mnist-5k. Its models equal those of one process, bit for bit."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import feduhb
from feduhb.core.flat import count_statistics, flatten
from feduhb.runs.loop import carry_statistics, run
from flower.simulated import (
    ACCELERATORS,
    CULPRITS,
    LEAVERS,
    LOCAL,
    ROUNDS,
    load_federation,
    make_normed,
    make_plain,
)
from golden import slow

pytestmark = pytest.mark.deployment
TESTS = Path(__file__).parents[1]
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OMP_NUM_THREADS": "1",
    "PYTHONSAFEPATH": "1",
}


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """What the simulation left; everything it started is gone with its session."""
    out = tmp_path_factory.mktemp("simulated")
    path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, **QUIET, "PYTHONPATH": path, "FLWR_HOME": str(out / "flwr")}
    program = [sys.executable, str(TESTS / "flower" / "simulated.py"), str(out)]
    with subprocess.Popen(
        program,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=500)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, said
    return out


def run_in_process(forget, rounds):
    remaining, method = load_federation().without(list(forget)), feduhb.FedUHB(epochs=1)
    start = method.init(flatten(remaining.fresh_model()))
    *_, (state, _) = run(method, feduhb.Loop(remaining), list(remaining.clients), start, rounds=rounds)
    return state.params


def test_twenty_clients_give_what_the_loop_gives_in_process(simulated):
    wanted = run_in_process(LEAVERS, ROUNDS)
    start = flatten(load_federation().fresh_model())
    assert (wanted - start).abs().max() > 1e-3
    found = torch.load(simulated / "honest.pt")
    assert torch.equal(found, wanted)


def test_a_model_with_statistics_and_dropout_is_trained_by_adamw(simulated):
    """Arrays of statistics and the settings of the optimiser pass through Flower's own messages."""
    found, (wanted, start, statistics) = (
        torch.load(simulated / "normed.pt"),
        run_normed(feduhb.FedUHB(epochs=1), 1),
    )
    assert torch.equal(found, wanted)
    assert (found[-statistics:] - start[-statistics:]).abs().max() > 0.1


def run_normed(method, rounds):
    """Return the model after some rounds, the fresh one and the number of its statistics."""
    remaining = load_federation().replace(model=make_normed).without(list(LEAVERS))
    start, statistics = flatten(remaining.fresh_model()), count_statistics(remaining.fresh_model())
    state = carry_statistics(method, statistics).init(start)
    engine = feduhb.Loop(remaining, LOCAL)
    *_, (state, _) = run(method, engine, list(remaining.clients), state, rounds=rounds, statistics=statistics)
    return state.params, start, statistics


@pytest.mark.parametrize("name", ACCELERATORS)
def test_accelerators_give_what_the_loop_gives_in_process(simulated, name):
    found, (wanted, start, _) = (
        torch.load(simulated / f"{name}.pt"),
        run_normed(getattr(feduhb, name)(epochs=1), 2),
    )
    assert (wanted - start).abs().max() > 1e-3
    assert torch.equal(found, wanted)


def test_preconditioned_steps_are_those_of_the_loop(simulated):
    remaining, method = (
        load_federation().replace(model=make_plain).without(list(LEAVERS)),
        feduhb.RapidRetrain(epochs=1),
    )
    start = method.init(flatten(remaining.fresh_model()))
    *_, (state, _) = run(method, feduhb.Loop(remaining), list(remaining.clients), start, rounds=2)
    assert (state.params - start.params).abs().max() > 1e-3
    assert torch.equal(torch.load(simulated / "RapidRetrain.pt"), state.params)


def test_everything_is_as_it_was(simulated):
    slow.compare("simulation", slow.describe_simulation(simulated))


def test_leavers_are_never_asked_and_everyone_else_answers(simulated):
    told = json.loads((simulated / "told.json").read_text())["honest"]
    assert told["asked"] == sorted(set(load_federation().clients) - set(LEAVERS))
    assert told["answered"] == told["asked"]
    assert told["left_out"] == {}


def test_nan_a_wrong_shape_and_a_million_fold_norm_are_named_and_left_out(simulated):
    told = json.loads((simulated / "told.json").read_text())["spoilt"]
    assert set(told["left_out"]) == {"0", "1"}
    for reasons in told["left_out"].values():
        assert reasons["c03"] == "it answered with NaN"
        assert (
            reasons["c04"]
            == "it answered with array 0.weight of shape [31, 1, 5, 5] instead of [32, 1, 5, 5]"
        )
        assert reasons["c05"].startswith("it answered with an update of norm ")
        assert set(reasons) == set(CULPRITS)
    found = torch.load(simulated / "spoilt.pt")
    assert found.isfinite().all()
    assert torch.equal(found, run_in_process([*LEAVERS, *CULPRITS], 2))
