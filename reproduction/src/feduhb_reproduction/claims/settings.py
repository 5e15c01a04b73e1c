"""Claims on what the stop rule and momentum do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from feduhb.report.words import join_names
from feduhb_reproduction.cells import RETRAIN
from feduhb_reproduction.claims import searched
from feduhb_reproduction.claims.parts import (
    BOTH,
    DATA,
    MNIST,
    OFF,
    REPLAYED,
    UNKNOWN,
    Claim,
    Evidence,
    Judged,
    Seen,
    add_reasons,
    average,
    format_share,
    is_clear,
    join_values,
    judge_data,
    judge_federations,
    limit_verdict,
    list_federations,
    name_federations,
    rounds_of,
    subtract,
    weigh_all,
    weigh_two,
)
from feduhb_reproduction.claims.searched import RULE
from feduhb_reproduction.federations import Federation
from feduhb_reproduction.measures import (
    COARSE,
    UHB_ON,
    Spread,
    describe_untried,
    final_value,
    find_best_step,
    find_reached,
    list_momenta,
    list_steps,
    replay_rule,
    subtract_final,
)

MOMENTUM = "Momentum"
SCALES = (0.2, 0.4, 0.6, 0.8, 1.0)
FLAT = 0.001  # of accuracy that a larger lambda may gain and still be called no gain


def judge_stopped(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether the rule saves rounds and costs no accuracy."""
    lead = "Seeds in which the rule fires / rounds run / accuracy of stopping minus that of the last round, in points"
    brief = ("{} rounds run, {} points from the last round", ".1f", "+.1f")
    return judge_data(evidence, data, _see_stopped, lead, brief)


def _see_stopped(federation: Federation) -> Seen | None:
    found, whole = replay_rule(federation), final_value(federation, UHB_ON)
    if found.executed.mean is None or found.accuracy.mean is None or whole.mean is None:
        return None
    lost = Spread(tuple(on - off for on, off in zip(whole.values, found.accuracy.values, strict=True)))
    gain = 0.0 - (lost.mean or 0.0)
    values = found.executed.mean, 100 * gain
    measured = (
        f"{found.fires} of {found.n} / {found.executed.mean:.1f} of {federation.rounds} / {100 * gain:+.1f}"
    )
    if 0 < found.fires < found.n:
        return Seen(None, measured, "fires in some seeds only", values)
    if not found.fires or not is_clear(lost):
        return Seen(bool(found.fires), measured, values=values)
    return Seen(None, measured, "saves rounds, but loses accuracy", values)


def judge_larger(evidence: Evidence) -> Judged:
    """Judge whether a larger lambda means fewer rounds and lower accuracy."""
    lead = f"Rounds (accuracy) at λ {join_values(f'{scale:g}' for scale in SCALES)}"
    ends = (f"λ {scale:g}: {{}} rounds, {{}}" for scale in (SCALES[0], SCALES[-1]))
    brief = ("; ".join(ends), ".1f", ".1%", ".1f", ".1%")
    return judge_data(evidence, MNIST, _see_larger, lead, brief)


def _see_larger(federation: Federation) -> Seen | None:
    found = [replay_rule(federation, scale=scale) for scale in SCALES]
    rounds = [mean for each in found if (mean := each.executed.mean) is not None]
    heights = [mean for each in found if (mean := each.accuracy.mean) is not None]
    if len(heights) < len(SCALES):
        return None
    measured = join_values(f"{n:.1f} ({format_share(h)})" for n, h in zip(rounds, heights, strict=True))
    buts = ("fewer rounds, but not always a lower accuracy", "a lower accuracy only")
    values = rounds[0], heights[0], rounds[-1], heights[-1]
    return weigh_two(is_falling(rounds, 0.0), is_falling(heights, FLAT), measured, buts=buts, values=values)


def is_falling(values: Sequence[float], slack: float) -> bool:
    """Whether a series never rises by more than the slack, and ends below its start."""
    return all(b <= a + slack for a, b in pairwise(values)) and values[-1] < values[0]


def judge_faster(evidence: Evidence) -> Judged:
    """Judge whether every larger beta reaches Retrain's final accuracy sooner."""
    found = {name: one for name, one in list_federations(evidence).items() if len(list_momenta(one)) > 2}
    if not found:
        return Judged("", UNKNOWN, "no other momentum was tried")
    lead = "Round at which each β has Retrain's final accuracy"
    brief = ("with the lowest β at round {}, with the highest at {}", ".1f", ".1f")
    few = join_names(
        [
            f"{len(one)} of {name}"
            for data, name in DATA.items()
            if (one := [n for n in found if n.startswith(DATA[data])])
        ]
    )
    return add_reasons(judge_federations(found, _see_faster, lead, brief), f"federations tried: {few}")


def _see_faster(federation: Federation) -> Seen | None:
    found = {beta: _find_rounds(federation, run) for beta, run in list_momenta(federation).items()}
    if not all(found.values()):
        return None
    means = {beta: average(each) for beta, each in found.items()}
    measured = join_values(f"{mean:.1f} (β {beta:g})" for beta, mean in means.items())
    ends = means[min(means)], means[max(means)]
    gains = {pair: is_clear(subtract(found[pair[0]], found[pair[1]])) for pair in pairwise(found)}
    return weigh_all(
        {f"from β {low:g} to {high:g}": gained for (low, high), gained in gains.items()},
        measured,
        "{} only",
        ends,
    )


def _find_rounds(federation: Federation, run: str) -> dict[int, float]:
    return rounds_of(federation, find_reached(federation, run))


def judge_tuned(evidence: Evidence, *, data: str) -> Judged:
    """Judge whether momentum does more than a tuned server step."""
    every = name_federations(evidence.clean(data))
    found = {name: one for name, one in every.items() if len(list_steps(one)) > 1}
    if not found:
        return Judged("", UNKNOWN, f"no other server step was tried on {DATA[data]}")
    lead = "Round with Retrain's final accuracy (final accuracy) of FedUHB, rule off / of FedAvg with its fastest server step / with its best one"
    words = "at round {}, with a tuned step at {}; ends at {}, with a tuned step at {}"
    judged = judge_federations(found, _see_tuned, lead, (words, ".1f", ".1f", ".1%", ".1%"))
    return limit_verdict(every, judged, found, "", "where no other server step was tried")


def _see_tuned(federation: Federation) -> Seen | None:
    step, tried = find_best_step(federation), list_steps(federation)
    if step is None or not federation.tracks(UHB_ON):
        return None
    arrives = {each: average(_find_rounds(federation, run)) for each, run in tried.items()}
    soon = min(arrives, key=arrives.__getitem__)
    sooner = is_clear(subtract(_find_rounds(federation, tried[soon]), _find_rounds(federation, UHB_ON)))
    shown = [f"{_format_run(federation, tried[each])}, step {each:g}" for each in (soon, step)]
    ends = [final_value(federation, run).mean for run in (UHB_ON, tried[step])]
    buts = ("sooner, but no better at the end", "better at the end, but no sooner")
    seen = weigh_two(
        sooner,
        is_clear(subtract_final(federation, UHB_ON, tried[step])),
        join_values([_format_run(federation, UHB_ON), *shown]),
        buts=buts,
        values=(average(_find_rounds(federation, UHB_ON)), arrives[soon], *ends),
    )
    coarse = describe_untried(federation, soon, step)
    return replace(seen, holds=None, but=coarse) if seen.holds and coarse else seen


def _format_run(federation: Federation, run: str) -> str:
    return f"{average(_find_rounds(federation, run)):.1f} ({format_share(final_value(federation, run).mean)})"


def judge_stable(evidence: Evidence) -> Judged:
    """Judge whether the accuracy falls less from round to round with momentum than without."""
    found = list_federations(evidence)
    lead = "Largest fall of accuracy from a round to the next, in points, of FedUHB, rule off / of Retrain"
    return judge_federations(found, _see_stable, lead, ("falls by {} points; Retrain's by {}", ".1f", ".1f"))


def _see_stable(federation: Federation) -> Seen | None:
    ours, theirs = _find_drops(federation, UHB_ON), _find_drops(federation, RETRAIN)
    less = subtract(theirs, ours)
    if not less.n:
        return None
    most = 100 * average(ours), 100 * average(theirs)
    return Seen(is_clear(less), join_values(f"{each:.1f}" for each in most), values=most)


def _find_drops(federation: Federation, run: str) -> dict[int, float]:
    tracks = {seed: track.of("test_accuracy") for seed, track in federation.tracks(run).items()}
    return {seed: max(0.0, *(a - b for a, b in pairwise(v))) for seed, v in tracks.items() if len(v) > 1}


CLAIMS = [
    *(
        Claim(
            RULE, "abstract, II-B, IV-B.5",
            f"{name}: the stop rule saves rounds and still gives the best model",
            "With λ 0.6 the rule fires in every seed, and the accuracy is not clearly below that of the last round.",
            partial(judge_stopped, data=data),
            BOTH,
        )
        for data, name in DATA.items()
    ),
    Claim(
        RULE, "IV-B.5, Fig. 5b",
        "MNIST: a larger λ means fewer rounds and a lower accuracy",
        f"From one λ to the next the mean number of rounds never rises, the accuracy rises by at most {100 * FLAT:g} points, and both are lower at the largest λ than at the smallest.",
        judge_larger,
        REPLAYED,
    ),
    *searched.CLAIMS,
    Claim(
        MOMENTUM, "IV-B.5, Fig. 5a",
        "A higher β converges faster",
        "Without the rule, FedUHB reaches Retrain's final accuracy clearly sooner with each β than with the next smaller one.",
        judge_faster,
        OFF,
    ),
    *(
        Claim(
            MOMENTUM, "title, abstract, II-B",
            f"{DATA[data]}: the heavy ball makes retraining fast",
            "FedUHB, rule off, reaches Retrain's final accuracy clearly sooner than FedAvg with its fastest server step, and ends clearly higher than FedAvg with its "
            "best one. Both steps are chosen on the test data, which favours them. Both are tuned: the next smaller and larger "
            f"steps that were tried are less than a factor of {COARSE:g} away.",
            partial(judge_tuned, data=data),
            OFF,
        )
        for data in DATA
    ),
    Claim(
        MOMENTUM, "I, II-B",
        "Momentum makes unlearning more stable",
        "The largest fall of test accuracy from one round to the next is clearly smaller than Retrain's.",
        judge_stable,
        OFF,
    ),
]  # fmt: skip
