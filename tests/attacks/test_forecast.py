"""The forecast of an audit's power: by hand, against simulation, and in the audit."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from audit.auditing import QUIET, draw_federation
from data.wording import refused
from feduhb.audit import forecast_power
from feduhb.audit.audit import audit, audit_all
from feduhb.audit.controls import Controls
from feduhb.audit.statistics import Scores, compute_power, compute_roc, is_equivalent
from feduhb.errors import ConfigError, DataError
from toys import quick

PHI = NormalDist()
HOW = {"epochs": 1, "batch_size": 4, "lr": 0.05, "engine": "loop", "show": None}


def test_one_client_by_hand():
    """Mann and Whitney's error of 600 against 600 is sqrt(1201 / (12 x 360,000)) = 0.01667."""
    found = forecast_power([(600, 600)])
    assert found.power == pytest.approx(compute_power(math.sqrt(1201 / (12 * 600 * 600))))
    goal = 0.05 / (PHI.inv_cdf(0.95) + PHI.inv_cdf(0.9))
    assert found.needed_members == found.needed_others == math.ceil(1 / (6 * goal**2) + 0.5)
    assert found.says.endswith("A chance of 80% needs at most 572 against 572: there are enough.")


@pytest.mark.parametrize(("sizes", "audits"), [([(1, 1)], 857), ([(3, 2)], 286), ([(43, 14)] * 2, 14)])
def test_the_audits_to_pool_have_the_wanted_power(sizes, audits):
    """One pair has a variance of 1/4, and k audits 1 / (4 k), not less: se = 0.05 / 2.926 needs 857, not 572."""
    assert (
        f", or {audits} audits like this one, of other seeds and data, pooled." in forecast_power(sizes).says
    )
    assert forecast_power(sizes * (audits - 1)).power < 0.8 <= forecast_power(sizes * audits).power


sizes = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=4)


@quick
@given(sizes, st.floats(0.02, 0.2), st.floats(0.3, 0.95))
def test_the_needed_numbers_have_the_wanted_power(sizes, margin, wanted):
    """A hundred times the examples, so that rounding up hardly counts."""
    many = [(100 * m, 100 * n) for m, n in sizes]
    found = forecast_power(many, margin, wanted=wanted)
    times = found.needed_members / found.members
    scaled = forecast_power([(math.ceil(m * times), math.ceil(n * times)) for m, n in many], margin)
    if times > 0.5:
        assert scaled.power == pytest.approx(wanted, abs=0.02)
    assert (found.power >= wanted - 1e-9) == ("there are enough" in found.says) or times == pytest.approx(
        1, abs=0.01
    )


@pytest.mark.parametrize("sizes", [[(345, 115)] * 2, [(570, 190)] * 2, [(100, 100)] * 5])
def test_the_forecast_against_simulation(sizes):
    """Within three standard errors of 300 draws, and 3 points for the interval's own conservatism."""
    draw, passed = torch.Generator().manual_seed(0), 0
    for _ in range(300):
        strata = [Scores(torch.randn(m, generator=draw), torch.randn(n, generator=draw)) for m, n in sizes]
        passed += is_equivalent(compute_roc(strata))
    power = forecast_power(sizes).power
    assert passed / 300 == pytest.approx(power, abs=0.03 + 3 * math.sqrt(power * (1 - power) / 300))


def test_clients_without_both_kinds_do_not_count():
    assert forecast_power([(30, 20), (0, 9), (9, 0)]).members == 30
    with refused(DataError, "a forecast needs a client with both members and held-out examples"):
        forecast_power([(9, 0)])
    with refused(ConfigError, "the wanted power is 1.0; give a share above 0 and below 1"):
        forecast_power([(30, 20)], wanted=1.0)


@pytest.fixture(scope="module")
def unlearned():
    sizes = {"ant": 24, "bee": 20, "cat": 16}
    trained = feduhb.train(draw_federation(sizes, held=8), 1, **HOW)
    return feduhb.unlearn(trained, ["ant", "bee"], method="retrain", rounds=1, show=None), trained


def test_the_forecast_counts_the_examples_of_the_attacks(unlearned):
    run, trained = unlearned
    found = audit(run, trained, retrain=run, exactness=False, **QUIET)
    by_loss = [one for one in found.membership if one.attack == "loss"]
    assert [one.on for one in found.forecast] == [one.on for one in by_loss]
    for said, attack in zip(found.forecast, by_loss, strict=True):
        roc = attack.models["retrain"]
        assert (said.members, said.others, said.clients) == (roc.members, roc.others, 2)
        assert said.needed_members > said.members
    assert "Forecast for canaries, in a rehearsal: 11 members against 4" in str(found)


def test_the_forecast_is_printed_before_any_run_is_made(unlearned, capsys, monkeypatch):
    run, trained = unlearned
    seen: list[str] = []

    def stop(self: Controls, name: str, *_: object) -> None:  # noqa: ARG001
        seen.append(capsys.readouterr().err)
        raise KeyboardInterrupt

    monkeypatch.setattr(Controls, "retrain", stop)
    with pytest.raises(KeyboardInterrupt):
        audit_all([run], trained, exactness=False, show="lines", relearn=0)
    assert seen[0].startswith(
        "Forecast for all forgotten data: 44 members against 16 held-out examples of 2 clients."
    )
