"""Tables, sentences and the figure of cells made by hand. Nothing was measured, and nothing follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from feduhb_reproduction.benchmark import page
from feduhb_reproduction.benchmark.advice import advise
from feduhb_reproduction.benchmark.design import find_benchmark, read_benchmark
from feduhb_reproduction.benchmark.figure import draw_work
from feduhb_reproduction.benchmark.results import (
    CHANGE,
    has_power,
    is_close,
    keeps_backdoor,
    leaks,
    list_broken,
    list_names,
    list_requirements,
    measure_gain,
    measure_membership,
    measure_relearn,
    read_federations,
)
from feduhb_reproduction.cells import Cell, Track
from paper.cells import MADE, place

PLACE = {
    "data": "mnist-5k",
    "canaries": True,
    "public": 40,
    "relearn": 10,
    "per_client": None,
    "backdoor": True,
}
FOUND, BASE = 0.8, 0.5  # AUC of the loss attack on the canaries: in the original, in Retrain


def track(
    accuracy: float,
    *,
    auc: float = BASE,
    change: float = 0.5,
    backdoor: float = 0.0,
    epochs: float = 100.0,
    **more: Any,
) -> Track:
    """A run that ended with this accuracy, AUC and success of the backdoor."""
    audit = {
        "requires": [], "verdict": "",
        "membership": [
            {"attack": "loss", "on": "canaries", "canaries": True, "auc": {"unlearned": auc, "original": FOUND, "retrain": BASE}},
            {"attack": "change of confidence", "on": "canaries", "canaries": True, "auc": {"unlearned": change, "original": FOUND, "retrain": 0.6}},
            {"attack": "loss", "on": "all forgotten data", "canaries": False, "auc": {"unlearned": 1, "original": 1, "retrain": 0}},
        ],
        "backdoor": {"unlearned": backdoor, "original": 0.9, "retrain": 0.0},
        "distance": {"l2": 2.0, "disagreement": 0.1}, "relearn": {"unlearned": None, "retrain": 3, "most": 10},
    }  # fmt: skip
    sums = {
        "client_epochs": epochs, "leaver_epochs": 0, "bytes_up": 1e6, "bytes_down": 1e6, "stored_bytes": 3e6,
    }  # fmt: skip
    told: dict[str, Any] = {
        "series": {"test_accuracy": (0.1, accuracy), "moved": (1.0, 1.0)}, "settings": {}, "exact": False, "stopped": "", "sums": sums,
        "weights": "", "scores": {}, "audit": audit,
    }  # fmt: skip
    return Track(**{**told, **more})


REFUSED = track(0.0, series={"moved": ()}, sums={}, audit={}, stopped="refused", failed="it cannot")


def runs(seed: int) -> dict[str, Track]:
    """FedUHB is the best; FineTune leaks and keeps the backdoor; Crab is cheap and bad; FedRecover cheap and close; FedAF refused."""
    noise = seed / 1000
    return {
        "retrain": track(0.900 + noise, exact=True), "feduhb": track(0.950 + noise, exact=True, auc=BASE + noise - 0.001),
        "finetune": track(0.895 + noise, auc=0.7 + noise, backdoor=0.6 + noise), "fedrecover": track(0.893 + noise, epochs=40),
        "crab": track(0.70 + noise, epochs=20, backdoor=0.02 + noise), "fedaf": REFUSED, "Mine": track(0.99, epochs=0, backdoor=0.3 * seed),
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for seed in range(3):
        write(tmp_path, runs(seed), seed=seed)
    return tmp_path


def write(folder, found: Mapping[str, Track], **where: Any) -> None:
    Cell(place=place(**{**PLACE, **where}), runs=dict(found), misr={}, made=MADE).write(folder / "cells")


def only(folder):
    (one,) = read_federations(folder).values()
    return one


def test_numbers_are_paired_with_retrain_of_the_same_seed(folder):
    one = only(folder)
    assert measure_membership(one, "finetune").values == pytest.approx((0.2, 0.201, 0.202))
    assert measure_relearn(one, "retrain").values == (11, 11, 11)  # never, in ten rounds
    assert list_names([one]) == ["feduhb", "retrain", "fedrecover", "finetune", "fedaf", "crab", "Mine"]


def test_a_leak_is_clear_over_the_seeds(folder):
    one = only(folder)
    assert has_power(one)
    assert [name for name in runs(0) if leaks(one, name)] == ["finetune"]


def test_one_seed_marks_nothing(tmp_path):
    """Of a single number nobody knows how far chance alone would move it, for an exact method as for any other."""
    write(tmp_path, {**runs(0), "feduhb": track(0.95, exact=True, auc=0.7, backdoor=0.2)})
    one = only(tmp_path)
    assert not has_power(one)
    assert not any(leaks(one, name) or keeps_backdoor(one, name) for name in runs(0))


def test_a_leak_that_only_the_stronger_attack_finds_is_a_leak(tmp_path):
    """The change of confidence compares with Retrain itself, so it is 1/2 for a model that never saw the canaries."""
    for seed in range(3):
        noise = seed / 1000
        write(tmp_path, {"retrain": track(0.9), "crab": track(0.9, change=0.55 + noise)}, seed=seed)
    one = only(tmp_path)
    assert measure_membership(one, "crab", CHANGE).values == pytest.approx((0.05, 0.051, 0.052))
    assert [name for name in ("retrain", "crab") if leaks(one, name)] == ["crab"]


def test_an_attack_without_power_marks_no_leak(tmp_path):
    for seed in range(3):
        found = {"retrain": track(0.9), "crab": track(0.9, change=0.55)}
        for one in found.values():
            one.audit["membership"][1]["auc"]["original"] = 0.5 + (seed - 1) / 10
        write(tmp_path, found, seed=seed)
    assert not leaks(only(tmp_path), "crab")


def test_a_backdoor_stays_if_it_works_clearly_and_by_some_points_more_than_in_retrain(folder):
    """Crab's 2 % is too little, and the plug-in's 0 to 60 % is not clear."""
    assert [name for name in runs(0) if keeps_backdoor(only(folder), name)] == ["finetune"]


def test_close_is_a_point_below_retrain(folder):
    one = only(folder)
    assert {name for name in runs(0) if is_close(one, name)} == {
        "retrain",
        "feduhb",
        "finetune",
        "fedrecover",
        "Mine",
    }


def test_close_compares_the_same_seeds_and_needs_all_of_them(folder):
    """FedRecover is close where both ended; a seed in which it broke off cannot count as close."""
    write(folder, {**runs(2), "fedrecover": track(0.1, failed="the model was not finite", audit={})}, seed=2)
    assert measure_gain(only(folder), "fedrecover").values == pytest.approx((-0.007, -0.007))
    assert not is_close(only(folder), "fedrecover")


def test_needs_are_those_that_the_method_declares(folder):
    assert list_requirements([only(folder)], "finetune") == ["the old model"]
    assert list_requirements([only(folder)], "Mine") == []


def list_advice(federations):
    """The sentences, and the details below each."""
    said: list[tuple[str, list[str]]] = []
    for line in advise(federations).splitlines():
        if line.startswith("    - "):
            said[-1][1].append(line.removeprefix("    - "))
        else:
            said.append((line, []))
    return said


def test_the_five_sentences(folder):
    said = list_advice(read_federations(folder))
    assert [sentence[:3] for sentence, _ in said] == ["1. ", "2. ", "3. ", "4. ", "5. "]
    assert all(sentence[3:].count(". ") == 0 and sentence.endswith(".") for sentence, _ in said)
    (exact, above), (cheap, close), (leaks, silent), (backdoors, _), (needs, refused) = said
    assert exact.endswith(
        "choose an exact method: FedUHB**, because after as many rounds its accuracy was 5.0 points above Retrain's in mnist-5k (iid)."
    )
    assert above == [
        "As exact, with their accuracy against Retrain's: Retrain.",
        "Clearly more accurate than Retrain of the same seeds: FedUHB in mnist-5k (iid) by 5.0 points.",
    ]
    assert "choose Mine (0% of Retrain's client epochs) or FedRecover (40% of Retrain's client epochs, with every update of every client stored)**, which stayed within 1 point" in cheap  # fmt: skip
    assert close == ["As close, without saving work: FineTune.", "Not as close: Crab."]
    assert "**Membership leaks** from FineTune (1 of 1): " in leaks
    assert silent[0].startswith(
        "Nothing was clearly found in models of FedRecover, Crab, Mine, FedUHB and Retrain."
    )
    assert "in models of FineTune (60% to 60% in 1 of 1): " in backdoors
    assert "the old model (FineTune, FedAF)" in needs
    assert refused == ["FedAF cannot serve a request of whole clients."]


def test_an_exact_method_that_falls_behind_retrain_is_named(tmp_path):
    for seed in range(3):
        slow = track(0.6 + seed / 100, exact=True)
        write(tmp_path, {"retrain": track(0.9 + seed / 100, exact=True), "rapidretrain": slow}, seed=seed)
    sentence, details = list_advice(read_federations(tmp_path))[0]
    assert sentence.endswith(
        "choose an exact method: Retrain**, because no other exact method was more accurate on average."
    )
    assert details == [
        "None of these is clearly more accurate than Retrain in mnist-5k (iid).",
        "As exact, but clearly less accurate somewhere: RapidRetrain (by up to 30.0 points, in mnist-5k (iid)).",
    ]


def test_an_exact_method_that_broke_off_or_was_not_run_everywhere_is_not_recommended(tmp_path):
    for seed in range(3):
        found = {"retrain": track(0.9, exact=True), "feduhb": track(0.9, exact=True)}
        broken = {"failed": "the model was not finite", "audit": {}} if seed == 2 else {}
        write(tmp_path, found | {"fedyogi": track(0.95, exact=True, **broken)}, seed=seed)
        write(tmp_path, found | {"fedyogi": track(0.95, exact=True), "Mine": track(0.9, exact=True)}, seed=seed, partition="dirichlet:0.5")  # fmt: skip
    sentence, details = list_advice(read_federations(tmp_path))[0]
    assert "choose an exact method: Retrain**, because" in sentence
    assert details[0] == "As exact, with their accuracy against Retrain's: FedUHB (+0.0 points)."
    assert (
        details[-1]
        == "As exact, but not run in every federation, or broken off or refused there: FedYogi and Mine."
    )


def test_a_cheap_method_that_leaks_is_not_recommended(tmp_path):
    for seed in range(3):
        leaking = track(0.9, epochs=10, auc=0.7 + seed / 100)
        write(tmp_path, {"retrain": track(0.9, exact=True), "pga": leaking, "crab": track(0.5, epochs=10)}, seed=seed)  # fmt: skip
    sentence, details = list_advice(read_federations(tmp_path))[1]
    assert (
        "there is nothing to choose**: no method with less work than Retrain stayed within 1 point"
        in sentence
    )
    assert details == [
        "As close, but they left something behind (3 and 4): PGA (10% of Retrain's client epochs, with the old model and the leaver's cooperation).",
        "Not as close: Crab.",
    ]


def test_a_method_that_was_not_run_everywhere_is_said_to_be_so(tmp_path):
    """Of a federation without it nothing is known, and a row of fewer seeds is not over the same federations as the others."""
    for seed in range(3):
        whole = {"retrain": track(0.9, exact=True), "crab": track(0.5)}
        write(tmp_path, whole | ({"Mine": track(0.9, epochs=10)} if seed else {}), seed=seed)
        write(tmp_path, whole, seed=seed, partition="dirichlet:0.5")
    found = read_federations(tmp_path)
    said = list_advice(found)
    assert said[1][1] == ["Not as close: Crab.", "Not run in every federation, or refused there: Mine."]
    assert "in models of Crab and Retrain." in said[2][1][0]
    assert [list_broken(one) for one in found.values()] == [
        ["Mine was run with 2 of 3 seeds; its row is not over the seeds of the others."],
        [],
    ]


def test_a_method_that_refuses_in_one_federation_is_not_said_to_be_less_close(tmp_path):
    for seed in range(3):
        close = {"retrain": track(0.9, exact=True), "crab": track(0.9, epochs=10)}
        write(tmp_path, {**close, "wu": track(0.9), "fedyogi": track(0.9, exact=True)}, seed=seed)
        write(tmp_path, {**close, "wu": REFUSED, "fedyogi": REFUSED}, seed=seed, partition="dirichlet:0.5")
    said = list_advice(read_federations(tmp_path))
    assert said[0][1][-1] == "As exact, but not run in every federation, or broken off or refused there: FedYogi."  # fmt: skip
    assert said[1][1] == ["Not run in every federation, or refused there: WuDistillation."]
    assert said[4][1] == []


def test_requests_of_rows_have_a_sentence_of_their_own(folder):
    """The five sentences are about whole clients, as without them."""
    before = advise(read_federations(folder))
    for seed in range(3):
        noise = seed / 1000
        found = {
            "retrain": track(0.9, exact=True), "crab": REFUSED, "fedaf": track(0.88), "Mine": track(0.95),
            "finetune": track(0.91, auc=0.7 + noise, backdoor=0.6 + noise),
        }  # fmt: skip
        write(folder, found, seed=seed, rows=True)
    federations = read_federations(folder)
    assert list(federations) == ["mnist-5k (iid)", "mnist-5k (iid, rows)"]
    said = advise(federations)
    assert said.startswith(before)
    assert said.removeprefix(before).splitlines() == [
        "",
        "",
        "**If only rows of a client are to be forgotten** (mnist-5k (iid, rows)), FineTune (a leak and a backdoor that works on 60%) left something that was clearly found.",
        "",
        "- Nothing was clearly found in models of Retrain, FedAF and Mine. That does not prove that nothing is there.",
        "- Their accuracy against Retrain's: FineTune (+1.0 points), FedAF (-2.0 points) and Mine (+5.0 points).",
        "- Crab cannot serve such a request.",
    ]


def test_rows_where_nothing_was_found(folder):
    for seed in range(3):
        broken = replace(track(0.88), failed="it diverged")
        write(
            folder,
            {"retrain": track(0.9, exact=True), "finetune": track(0.91), "fedaf": broken},
            seed=seed,
            rows=True,
        )
    said = advise(read_federations(folder)).partition("**If only rows")[2]
    assert said.startswith(
        " of a client are to be forgotten** (mnist-5k (iid, rows)), no method left something that was clearly found."
    )
    assert "- Their accuracy against Retrain's: FineTune (+1.0 points)." in said
    assert "- FedAF did not run in every cell." in said


def test_a_column_without_canaries_in_some_seeds_says_so(folder):
    bare = runs(2)
    for one in bare.values():
        one.audit.get("membership", []).clear()
    write(folder, bare, seed=2)
    heads = page.tabulate_findings(only(folder)).headers
    assert heads[4:6] == ["canaries, loss (2 of 3 seeds)", "canaries, change (2 of 3 seeds)"]


def test_attacks_without_power_say_nothing(tmp_path):
    for seed, shift in enumerate((0.3, -0.3, 0.0)):
        blind = track(0.9, exact=True)
        for attack in blind.audit["membership"]:
            attack["auc"]["original"] = BASE + shift
        write(tmp_path, {"retrain": blind, "finetune": track(0.9, auc=0.9)}, seed=seed)
    sentence, details = list_advice(read_federations(tmp_path))[2]
    assert (
        sentence
        == "3. **What membership leaks** is not known: the attacks do not clearly find even the original."
    )
    assert details == []


def test_without_cells_there_is_nothing_to_say(tmp_path):
    assert read_federations(tmp_path) == {}
    assert advise({}) == "**Not run yet.** There is nothing to say."
    assert draw_work({}) is None


def test_the_tables_have_a_row_for_each_method_that_served(folder):
    findings, costs = page.tabulate_findings(only(folder)), page.tabulate_costs(only(folder))
    assert [row[0] for row in findings.rows] == [
        "original",
        "FedUHB",
        "Retrain",
        "FedRecover",
        "FineTune",
        "Crab",
        "Mine",
    ]
    rows = {row[0]: dict(zip(findings.headers, row, strict=True)) for row in findings.rows}
    assert rows["FineTune"] == {
        "method": "FineTune", "exact": "", "accuracy": "89.6% ± 0.1", "backdoor": "60.1% ± 0.1", "canaries, loss": "+20.1 ± 0.1",
        "canaries, change": "+0.0", "found": "leaks, backdoor stays", "distance": "2.00", "relearn": "> 10",
    }  # fmt: skip
    assert rows["original"]["canaries, loss"] == "+30.0"
    spent = {row[0]: dict(zip(costs.headers, row, strict=True)) for row in costs.rows}
    assert spent["FineTune"] == {
        "method": "FineTune", "client epochs": "100", "of leavers": "0", "MB sent": "2.00", "MB stored": "3.00", "needs": "the old model",
    }  # fmt: skip
    assert list_broken(only(folder)) == ["FedAF refused: it cannot."]


def test_below_the_costs_of_rapid_retrain_stands_that_its_epochs_are_more_work(folder):
    bench = read_benchmark(find_benchmark("mnist-5k"))
    assert page.UNEQUAL not in "\n".join(page.render_benchmark(bench, read_federations(folder)))
    for seed in range(3):
        write(folder, {**runs(seed), "rapidretrain": track(0.9, exact=True)}, seed=seed)
    parts = list(page.render_benchmark(bench, read_federations(folder)))
    place = parts.index(page.UNEQUAL)
    assert "client epochs" in parts[place - 1]


def test_a_run_that_broke_off_is_named(folder):
    write(folder, {**runs(1), "crab": track(0.1, failed="the model was not finite", audit={})}, seed=1)
    assert list_broken(only(folder))[1] == "Crab broke off in 1 of 3 seeds: the model was not finite."


def test_rows_of_ones_own_are_marked_in_the_terminal(folder):
    lines = page.print_rows(folder, ["Mine"])
    assert [line.split()[1] for line in lines if line.startswith("*")] == ["Mine"]
    assert "FedAF refused: it cannot." in lines


def test_the_page_says_what_was_not_run_and_with_which_command_it_is(tmp_path):
    for seed in range(3):
        write(tmp_path / "benchmark" / "mnist-5k", runs(seed), seed=seed)
    text = "\n\n".join(page.make_page(tmp_path, {"mnist-5k": "work.png"}))
    gpu = "--data FOLDER --engine stacked:tf32 --out results/benchmark"
    assert "- **mnist-5k: 5,000 images of MNIST, perceptron: incomplete**, 3 of 20 cells." in text
    assert (
        f"- **MNIST: not run yet, for want of a GPU.** `feduhb benchmark mnist {gpu}/mnist` makes its 20 cells."
        in text
    )
    assert (
        f"- **CIFAR-10: not run yet, for want of a GPU.** `feduhb benchmark cifar10 {gpu}/cifar10` makes its 20 cells."
        in text
    )
    assert read_benchmark(find_benchmark("mnist-5k")).chosen in text
    assert "with seed 0, which is also among the seeds reported here" in text
    assert (
        "![Test accuracy against the epochs that clients trained, every method: mnist-5k: 5,000 images of MNIST, perceptron](work.png)"
        in text
    )
    assert text.index("](work.png)") < text.index("## How to read the tables") < text.index("## Run it")
    assert "seconds |" not in text


@pytest.mark.parametrize("name", page.LARGE)
def test_the_large_benchmarks_do_not_report_the_seed_with_which_their_settings_were_chosen(name):
    bench = read_benchmark(find_benchmark(name))
    assert bench.seeds == (1, 2, 3, 4, 5)
    assert "with seed 0, which is not among the seeds reported here" in bench.chosen
    assert {(each.seed, each.per_client) for each in bench.places()} == {(s, 1000) for s in bench.seeds}


def test_a_page_of_other_seeds_and_of_a_size(tmp_path):
    for seed in (1, 2, 5):
        write(tmp_path, runs(seed), seed=seed, data="mnist", per_client=1000)
    [(label, one)] = read_federations(tmp_path).items()
    assert (label, one.seeds) == ("MNIST (iid)", (1, 2, 5))
    text = "\n".join(page.render_benchmark(read_benchmark(find_benchmark("mnist")), {label: one}))
    assert "3 cells of 20, made by" in text
    assert "20 clients with 1,000 examples each, leaving: c00,c01; " in text
    assert [name for name in runs(1) if leaks(one, name)] == ["finetune"]


def test_the_figure_has_a_mark_for_each_method_within_its_axes(folder):
    """Work below 0 and accuracies above 100 % do not exist."""
    write(folder, {**runs(2), "Mine": track(0.80, epochs=0)}, seed=2)  # mean 0.93, deviation 0.11
    figure = draw_work(read_federations(folder))
    assert figure is not None
    (axes,) = figure.axes
    marks = [line for line in axes.lines if line.get_marker() not in ("None", "", None)]
    assert len(marks) == 6
    assert min(line.get_xdata()[0] for line in marks) == 0  # pyright: ignore[reportIndexIssue, reportArgumentType]
    tops = [segment[:, 1].max() for bars in axes.collections for segment in bars.get_segments()]  # pyright: ignore[reportAttributeAccessIssue]
    assert max(tops) == 1.0
