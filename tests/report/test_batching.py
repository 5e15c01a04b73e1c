"""Policies for a stream of requests: the simulation against mathematics, and what is written about it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from feduhb.batching import (
    WEEK,
    YEAR,
    Measure,
    Service,
    Simulation,
    draw_arrivals,
    format_hours,
    list_policies,
    parse_hours,
    parse_rate,
    read_service,
    serve,
    simulate,
)
from feduhb.errors import ConfigError
from feduhb.report.batching import chart_costs, chart_delays, make_grid, render_forecast, write_forecast
from feduhb.report.charts import compose
from report.folders import series, write
from report.looking import legible
from toys import quick

RATE = 2 / WEEK
TIMES = ("client_seconds", "server_seconds", "evaluate_seconds")


def find(found: Simulation, policy: str):
    return next(one for one in found.outcomes if one.policy == policy)


def is_near(measure: Measure, value: float, errors: float = 4.0) -> bool:
    assert measure.error is not None
    return abs(measure.value - value) <= errors * measure.error


@pytest.mark.parametrize(
    ("policy", "delays", "batches"),
    [
        (0, [1, 1, 1.5, 1], 4),  # starts at 1, 2, 3 and 30
        (1, [24, 23, 22.5, 19], 2),  # at 24 and 48
        (2, [168, 167, 166.5, 139], 1),  # at 168
        (3, [11, 10, 9.5, 11], 2),  # 10 hours after the oldest: at 11 and 40
    ],
)
def test_requests_on_paper(policy: int, delays: list[float], batches: int):
    chosen = list_policies(1.0, deadline=12.0, margin=1.0)[policy]
    assert serve([1.0, 2.0, 2.5, 30.0], chosen, 1.0) == (delays, batches)


def test_a_batch_that_takes_longer_than_a_night_skips_one():
    nightly = list_policies(30.0, deadline=720.0, margin=0.0)[1]
    assert serve([1.0, 25.0], nightly, 30.0) == ([53.0, 77.0], 2)  # from 24 to 54, and from 72 to 102
    assert nightly.longest == 78.0  # a request just after 24


def test_without_time_to_wait_by_deadline_is_at_once():
    first, *_, last = list_policies(5.0, deadline=6.0, margin=2.0)
    arrivals = draw_arrivals(1 / 24, 0, 0)
    assert serve(arrivals, first, 5.0) == serve(arrivals, last, 5.0)
    assert last.longest == first.longest == 10.0
    assert last.says == "when the worker is free because there is no time to wait"


@quick
@given(
    st.lists(st.floats(0, 1000), max_size=30),
    st.floats(0, 200),
    st.floats(1, 400),
    st.floats(0, 0.9),
)
def test_no_request_waits_longer_than_is_possible_and_all_are_served(arrivals, service, deadline, margin):
    for policy in list_policies(service, deadline, margin * deadline):
        delays, batches = serve(sorted(arrivals), policy, service)
        assert len(delays) == len(arrivals)
        assert batches <= len(arrivals)
        assert all(service - 1e-9 <= delay <= policy.longest + 1e-9 for delay in delays)


@quick
@given(st.lists(st.floats(0, 1000), min_size=1, max_size=30), st.floats(0, 40), st.floats(0, 10))
def test_by_deadline_keeps_every_deadline_if_batches_are_short(arrivals, service, margin):
    policy = list_policies(service, 2 * service + margin + 1, margin)[-1]
    delays, _ = serve(sorted(arrivals), policy, service)
    assert max(delays) <= 2 * service + 1 + 1e-9


def test_batches_that_take_no_time_have_closed_forms():
    found = simulate(RATE, Service(0.0), deadline=30 * 24.0, margin=72.0)
    requests, wait = RATE * YEAR, 27 * 24.0
    assert is_near(found.requests, requests)
    at_once, nightly, weekly, late = found.outcomes
    assert at_once.unlearnings == found.requests
    assert at_once.mean_delay.value == at_once.longest_delay == at_once.machine_hours.value == 0
    assert is_near(nightly.unlearnings, 365 * (1 - math.exp(-RATE * 24)))
    assert is_near(nightly.mean_delay, 12.0)
    assert is_near(nightly.delay_95, 0.95 * 24)
    year_end = 1 - math.exp(-RATE * 24)  # 365 days are 52 weeks and a day
    assert is_near(weekly.unlearnings, 52 * (1 - math.exp(-RATE * WEEK)) + year_end)
    # Batch k + 1 is due to the first request after k waits: T = k wait + Gamma(k + 1, rate) falls into the year.
    left = [YEAR - k * wait for k in range(20) if k * wait < YEAR]
    assert is_near(late.unlearnings, sum(float(poisson.sf(k, RATE * time)) for k, time in enumerate(left)))
    assert late.longest_possible == wait
    assert late.longest_delay == pytest.approx(wait)
    assert [one.missed.value for one in found.outcomes] == [0, 0, 0, 0]
    assert found.best is late


def test_arrivals_are_a_poisson_process():
    years = [draw_arrivals(RATE, 0, year) for year in range(400)]
    counts = np.array([len(times) for times in years])
    mean = RATE * YEAR
    assert abs(counts.mean() - mean) < 4 * math.sqrt(mean / 400)
    assert counts.var(ddof=1) / mean == pytest.approx(1, abs=4 * math.sqrt(2 / 400))
    gaps = np.concatenate([np.diff(times) for times in years])
    assert (gaps >= 0).all()
    assert gaps.mean() == pytest.approx(1 / RATE, rel=0.03)
    assert draw_arrivals(RATE, 0, 0) != draw_arrivals(RATE, 0, 1) != draw_arrivals(RATE, 1, 1)


def test_costs_are_batches_times_what_one_takes_and_missed_deadlines_are_counted():
    found = simulate(1 / 24, Service(30.0, client_epochs=200, bytes=3e6), deadline=60.0, margin=0.0, years=20)
    for one in found.outcomes:
        assert one.machine_hours.value == pytest.approx(30 * one.unlearnings.value)
        assert one.client_epochs is not None
        assert one.client_epochs.value == pytest.approx(200 * one.unlearnings.value)
        assert one.bytes is not None
        assert one.bytes.value == pytest.approx(3e6 * one.unlearnings.value)
        assert one.missed.value == pytest.approx(one.missed_share.value * found.requests.value)
    assert find(found, "at once").missed.value == 0  # at most twice 30 hours
    policy = list_policies(30.0, 60.0, 0.0)[1]
    late = [
        sum(delay > 60 for delay in serve(draw_arrivals(1 / 24, 0, year), policy, 30.0)[0])
        for year in range(20)
    ]
    assert find(found, "nightly").missed.value == pytest.approx(sum(late) / 20)
    assert sum(late) > 0
    assert found.best.missed.value == 0


def test_the_same_seed_gives_the_same_numbers_and_no_request_is_no_trouble():
    assert simulate(RATE, Service(1.0), years=3) == simulate(RATE, Service(1.0), years=3)
    assert simulate(RATE, Service(1.0), years=3) != simulate(RATE, Service(1.0), years=3, seed=1)
    empty = simulate(1e-9, Service(1.0), years=2)
    assert empty.requests.value == 0
    assert empty.headline.startswith(
        "No request arrived in 2 simulated years, because 8.8e-06 a year are expected"
    )
    json.dumps(empty.as_json(), allow_nan=False)
    render_forecast(empty)


def test_the_headline_says_which_policy_is_best():
    found = simulate(20 / 24, Service(30.0), deadline=59.0, years=2)
    assert found.best.policy == "at once"
    assert found.headline.endswith(" of them miss the deadline, the fewest.")
    found = simulate(5 / 24, Service(200.0), deadline=100.0, years=2)
    assert found.headline.endswith("; 100.0% of them miss the deadline, as by every policy.")
    found = simulate(RATE, Service(1.0), years=2)
    assert found.headline.startswith("Started by deadline, 1")
    assert f"(at once: {find(found, 'at once').unlearnings.value:.0f} unlearnings)" in found.headline
    assert found.headline.endswith("; none misses its deadline.")


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("30d", 720),
        ("12h", 12),
        ("90min", 1.5),
        ("2 weeks", 336),
        ("1 month", 730),
        ("36 s", 0.01),
        ("0.5 Days", 12),
    ],
)
def test_times_are_parsed(text: str, hours: float):
    assert parse_hours(text) == pytest.approx(hours)


def test_rates_are_parsed():
    assert parse_rate("2/week") == pytest.approx(RATE)
    assert parse_rate(" 0.5 / day ") == pytest.approx(0.5 / 24)
    for text in ("2", "2/fortnight", "0/week", "-1/day", "/day", "nan/day"):
        with pytest.raises(ConfigError, match=r"is not a rate; write requests per hour"):
            parse_rate(text)
    for text in ("30", "soon", "-3h", "3 ms", "inf d"):
        with pytest.raises(ConfigError, match="is not a time; write a number with min"):
            parse_hours(text)


def test_times_are_written_in_a_unit_that_suits_them():
    assert [format_hours(hours) for hours in (0, 0.01, 0.5, 24, 48, 720)] == [
        "0 seconds", "36.0 seconds", "30.0 minutes", "24.0 hours", "2.00 days", "30.0 days",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate": 0.0}, "the rate is 0 an hour"),
        ({"service": Service(-1.0)}, "a batch takes -1 hours; give at least 0 and at most 876,000"),
        ({"service": Service(math.nan)}, "a batch takes nan hours"),
        ({"service": Service(1e300)}, "hours; give at least 0 and at most 876,000"),
        ({"deadline": 0.0}, "the deadline is 0 hours"),
        ({"deadline": 1e9}, "the deadline is 1e\\+09 hours; give a positive time of at most 876,000 hours"),
        ({"margin": 720.0}, "the margin is 720 hours; give less than the deadline of 720 hours"),
        ({"years": 1}, "years is 1; give 2 or more"),
        ({"seed": -1}, "the seed is -1; give 0 or more"),
        ({"rate": 1e6}, "too many to simulate, at most 2,000,000 can be; give fewer years, or a lower rate"),
    ],
)
def test_numbers_that_cannot_be_simulated_are_refused(changes, words: str):
    with pytest.raises(ConfigError, match=words):
        simulate(**{"rate": RATE, "service": Service(1.0), "deadline": 720.0, **changes})


def test_a_training_tells_what_a_batch_takes(tmp_path: Path):
    folder = write(tmp_path / "a", None, series(8))  # rounds of 11 s, 8 client epochs and 3 MB
    service = read_service(folder)
    assert (service.hours, service.client_epochs, service.bytes) == pytest.approx(
        (40 * 11 / 3600, 320, 120e6)
    )
    assert service.says == f"one batch takes 7.33 minutes: at most 40 rounds at the pace of {folder}"
    given = read_service(folder, rounds=10, hours=3.0)
    assert (given.hours, given.client_epochs, given.bytes) == pytest.approx((3.0, 80, 30e6))
    assert given.says == f"one batch takes 3.00 hours: at most 10 rounds with the messages of {folder}"
    with pytest.raises(ConfigError, match="rounds is 0; give 1 or more"):
        read_service(folder, rounds=0)


def test_an_unlearning_tells_what_the_next_one_takes(tmp_path: Path):
    folder = write(tmp_path / "a", "feduhb", series(5), scheduled=9)
    service = read_service(folder)
    assert (service.hours, service.client_epochs) == pytest.approx((5 * 11 / 3600, 40))
    assert service.says.endswith(f"seconds: 5 rounds at the pace of {folder}")
    replayed = write(tmp_path / "b", "fedrecover", series(5))
    with pytest.raises(ConfigError, match="b was made by fedrecover, which is not exact"):
        read_service(replayed)


def test_a_rollback_may_have_to_repeat_every_round_of_the_training(tmp_path: Path):
    free = {"client_epochs": 0, "bytes_down": 0, "bytes_up": 0} | dict.fromkeys(TIMES, 0.0)
    records = [replace(record, **free) for record in series(3)] + series(8)[3:]
    folder = write(tmp_path / "a", "rollback", records, changes={"restart_round": 3})
    service = read_service(folder)
    assert (service.hours, service.client_epochs, service.bytes) == pytest.approx((8 * 11 / 3600, 64, 24e6))
    assert ": at most 8 rounds at the pace of " in service.says
    idle = write(tmp_path / "b", "rollback", records[:3], changes={"restart_round": 3})
    with pytest.raises(
        ConfigError, match="did no round itself, so it does not tell what a batch takes; give the"
    ):
        read_service(idle)


def test_records_without_seconds_need_the_hours_of_a_batch(tmp_path: Path):
    folder = write(
        tmp_path / "a", None, [replace(record, **dict.fromkeys(TIMES, 0.0)) for record in series(2)]
    )
    with pytest.raises(ConfigError, match="a recorded no seconds; say how long a batch takes: --hours 3"):
        read_service(folder)
    assert read_service(folder, hours=2.0).hours == 2.0


def test_the_table_shows_errors_that_matter_and_only_what_is_known():
    few, many = (simulate(RATE, Service(3.0), years=years) for years in (4, 400))
    rows = {row[0]: row[1:] for row in make_grid(few).rows}
    assert "client epochs" not in rows
    assert all(" ± " in cell for cell in rows["unlearnings"][:2])
    assert rows["longest possible"] == ["6.00 h", "27.0 h", "7.12 d", "27.0 d"]
    assert rows["share missed"] == ["0%"] * 4
    assert not any("±" in cell for row in make_grid(many).rows for cell in row)
    known = make_grid(simulate(RATE, Service(3.0, client_epochs=10, bytes=1e6), years=2))
    assert {"client epochs", "MB down + up"} <= {row[0] for row in known.rows}


@pytest.mark.parametrize(
    ("rate", "hours", "deadline"), [(RATE, 3.0, 720.0), (20 / 24, 30.0, 72.0), (1.0, 0.001, 24.0)]
)
def test_the_figure_is_legible(rate: float, hours: float, deadline: float):
    found = simulate(rate, Service(hours), deadline=deadline, years=4)
    figure = compose([chart_costs(found), chart_delays(found)], width=[4.4, 5.6], height=2.5)
    assert figure is not None
    legible(figure)


def test_figure_table_and_page_are_written(tmp_path: Path):
    found = simulate(RATE, Service(3.0, 10, 1e6, "one batch takes 3.00 hours: as <i>measured</i>"), years=4)
    paths = {path.name: path for path in write_forecast(found, tmp_path / "out")}
    assert {*paths} == {"forecast.html", "forecast.md", "forecast.tex", "forecast.png", "forecast.pdf"}
    assert paths["forecast.png"].read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert paths["forecast.pdf"].read_bytes().startswith(b"%PDF")
    page, text = paths["forecast.html"].read_text(), paths["forecast.md"].read_text()
    assert found.headline in page
    assert page.count("<svg") == 2
    assert "as &lt;i&gt;measured" in page
    assert text.startswith(found.headline)
    for row in make_grid(found).rows:
        assert f"| {' | '.join(row)} |" in text
    assert "95 \\% wait at most" in paths["forecast.tex"].read_text()
