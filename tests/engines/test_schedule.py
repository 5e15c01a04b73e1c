"""The schedule of a block: every client takes all its steps, once, and few places are wasted."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from feduhb.engines.batches import draw_order
from feduhb.engines.stacked.runner import WASTE, Phase, Schedule, _clip_phases, plan_phases
from toys import quick

totals_of = st.lists(st.integers(1, 300), min_size=1, max_size=40).map(lambda t: sorted(t, reverse=True))


def compute_waste(plan, totals):
    """Return the share of places in steps that no client uses."""
    return 1 - sum(totals) / sum(phase.clients * phase.steps for phase in plan)


def test_phases_on_paper():
    assert plan_phases([5, 3, 3, 1]) == (Phase(4, 1), Phase(3, 2), Phase(1, 2))
    # Keeping all to the third step wastes 2 of 12 places, all to the end 8.
    assert plan_phases([5, 3, 3, 1], waste=0.2) == (Phase(4, 3), Phase(1, 2))
    assert plan_phases([5, 3, 3, 1], waste=1.0) == (Phase(4, 5),)
    assert compute_waste([Phase(4, 3), Phase(1, 2)], [5, 3, 3, 1]) == pytest.approx(2 / 14)


@quick
@given(totals=totals_of, waste=st.sampled_from([0.0, 0.05, 0.3]))
def test_every_client_is_in_the_stack_for_all_its_steps_and_little_is_wasted(totals, waste):
    plan = plan_phases(totals, waste)
    assert sum(phase.steps for phase in plan) == totals[0]
    for row, total in enumerate(totals):
        assert sum(phase.steps for phase in plan if phase.clients > row) >= total
    assert compute_waste(plan, totals) <= waste + 1e-12
    assert [phase.clients for phase in plan] == sorted({phase.clients for phase in plan}, reverse=True)


@quick
@given(totals=totals_of, cuts=st.lists(st.integers(0, 300), max_size=4))
def test_phases_can_be_cut_anywhere(totals, cuts):
    plan = plan_phases(totals)
    edges = sorted({0, totals[0], *(cut for cut in cuts if cut < totals[0])})
    pieces = [piece for a, b in itertools.pairwise(edges) for piece in _clip_phases(plan, a, b)]
    numbers = [phase.clients for phase in pieces for _ in range(phase.steps)]
    assert numbers == [phase.clients for phase in plan for _ in range(phase.steps)]


@quick
@given(
    counts=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    size=st.integers(1, 40),
    epochs=st.integers(1, 3),
)
def test_the_order_holds_the_loops_batches_with_their_shares(counts, size, epochs):
    names = [f"c{i}" for i in range(len(counts))]
    schedule = Schedule.of(names, counts, size, epochs)
    rows = [torch.arange(count) + 100 * names.index(c) for c, count in zip(schedule.clients, schedule.counts, strict=True)]  # fmt: skip
    order = torch.empty(len(counts), schedule.totals[0], schedule.size, dtype=torch.long)
    schedule.pad(order, rows)
    for epoch in range(epochs):
        schedule.draw(order, rows, 3, 1, epoch)
    shares = schedule.shares(torch.float64)
    assert order.shape == shares.shape
    for row, (client, count) in enumerate(zip(schedule.clients, schedule.counts, strict=True)):
        expected = [b for epoch in range(epochs) for b in draw_order(count, 3, client, 1, epoch).split(size)]
        for step, batch in enumerate(expected):
            assert torch.equal(order[row, step, : len(batch)], rows[row][batch])
            assert shares[row, step].tolist() == [1 / len(batch)] * len(batch) + [0] * (
                schedule.size - len(batch)
            )
        assert not shares[row, len(expected) :].any()
        assert set(order[row].flatten().tolist()) <= set(rows[row].tolist())


@quick
@given(counts=st.lists(st.integers(1, 30), min_size=1, max_size=5), epochs=st.integers(1, 3))
def test_no_step_runs_before_its_batches_are_drawn(counts, epochs):
    schedule = Schedule.of([str(i) for i in range(len(counts))], counts, 4, epochs)
    for epoch in range(epochs - 1):
        for steps in schedule.epoch_steps:
            assert schedule.count_ready_steps(epoch) <= steps * (epoch + 1)
    assert schedule.count_ready_steps(epochs - 1) == schedule.totals[0]


def test_a_dirichlet_federation_wastes_less_than_a_tenth():
    """54,000 examples over 18 clients at concentration 0.1: masks of finished clients and of last batches together."""
    for seed in range(5):
        draw = torch.distributions.Dirichlet(torch.full((18,), 0.1, dtype=torch.float64))
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            parts = torch.stack([draw.sample() for _ in range(10)])  # each class shared out among the clients
        counts = [max(1, int(n)) for n in (5400 * parts).sum(0)]
        schedule = Schedule.of([str(i) for i in range(18)], counts, 64, 5)
        plan = plan_phases(schedule.totals, WASTE)
        places = sum(phase.clients * phase.steps for phase in plan) * schedule.size
        assert 1 - sum(counts) * 5 / places < 0.1
        assert len(plan) <= 12
