"""The benchmarks run on tiny sizes, count correctly, and their pages hold the measured numbers."""

import importlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from feduhb.audit.result import Interval
from feduhb.audit.statistics import compute_roc
from feduhb.audit.verdict import judge_membership
from feduhb.report.drawing import new_figure
from feduhb.runs.folder import Round

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    """Import a benchmark's module by name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "rounds"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_engines_are_measured_side_by_side(bench, commands, monkeypatch, capsys):
    """The benchmark prints rates and ratios of all engines, each from a process of its own; their size is not tested."""
    engines = bench("engines")
    words = ["--clients", "2", "--images", "20", "--repeats", "1", "--json"]
    monkeypatch.setattr(sys, "argv", ["engines.py", *words])
    run = SimpleNamespace(run=lambda command, **_: commands.run_script(*command[1:]))
    monkeypatch.setattr(engines, "subprocess", run)
    engines.main()
    answer = json.loads(capsys.readouterr().out)
    assert set(answer["images_per_second"]) == {"loop", "plain", "pool"}
    assert set(answer["ratios"]) == {"pool / loop", "pool / plain"}


@pytest.mark.parametrize("name", ["mlp", "transformer"])
def test_architectures_are_measured_side_by_side(bench, name):
    found = bench("architectures").measure(name, clients=2, examples=4, rounds=1)
    assert len(found["milliseconds"]) == (4 if torch.cuda.is_available() else 2)
    assert found["times_faster"]["loop"] == 1
    assert found["refused"] == {}


@pytest.mark.slow
def test_all_implementations_do_the_same_work(bench, tmp_path, monkeypatch):
    """With one batch a round the order does not matter, so all models move equally far. A missing one is listed with what to install."""
    empty = tmp_path / "python"
    empty.symlink_to("/bin/false")
    words = "--clients 2 --images 64 --rounds 2 --turns 1 --only pool plain jax"
    files = ["--python-jax", str(empty), "--json", str(tmp_path / "x.json")]
    monkeypatch.setattr(sys, "argv", ["side_by_side.py", *words.split(), *files])
    bench("side_by_side").main()
    found = json.loads((tmp_path / "x.json").read_text())
    every = found["implementations"]
    assert every["jax"]["missing"] == "pip install jax"
    assert every["pool"]["moved"] == pytest.approx(every["plain"]["moved"], rel=1e-3)
    assert all(every[name]["peak_mib"] > 100 for name in ("pool", "plain"))
    assert all(
        len(every[name]["seconds"]) == 1 == len(every[name]["seconds"][0]) for name in ("pool", "plain")
    )
    assert found["command"] == f"python benchmarks/side_by_side.py {words}"


@pytest.mark.slow
def test_an_engine_is_chosen_by_name(bench, tmp_path, monkeypatch, capsys):
    bench("side_by_side").prepare(tmp_path, clients=2, images=66, epochs=2, rounds=2)
    monkeypatch.setattr(sys, "argv", ["round_ours.py", str(tmp_path), "stacked"])
    bench("round_ours").main()
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(answer["seconds"]) == 2
    assert answer["moved"] > 0


def test_only_our_superlink_is_stopped(bench, tmp_path):
    flower = bench("round_flower")

    def start(home: Path) -> subprocess.Popen[bytes]:
        wait = "print(flush=True); import signal; signal.pause()"
        command = [sys.executable, "-c", wait, "--log-file", home / "local-superlink" / "superlink.log"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    with start(tmp_path / "mine") as mine, start(tmp_path / "other") as other:
        flower.stop(tmp_path / "mine")
        assert mine.wait(10) == -signal.SIGTERM
        assert other.poll() is None
        other.terminate()


def test_flower_runs_in_its_own_home_and_ports(bench, tmp_path):
    """It has its own home and two ports, and finds the app beside the script."""
    flower = bench("round_flower")
    made = flower.prepare_home(tmp_path)
    ports = {made[f"FLWR_LOCAL_{name}_API_PORT"] for name in ("SUPERLINK_HTTP", "CONTROL")}
    assert made["FLWR_HOME"] == str(tmp_path)
    assert len(ports) == 2
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    module, _, name = app["components"]["serverapp"].partition(":")
    source = Path(made["PYTHONPATH"].split(os.pathsep)[0], f"{module}.py").read_text()
    assert f"\n{name} = ServerApp()\n" in source
    assert set(app["config"]) == {"task", "answer"}


def test_a_step_costs_three_products_a_layer_but_the_first(bench):
    """Forward, gradient of the weights, gradient of the input, which the first layer does not need."""
    layers = [24**2 * 32 * 25, 8**2 * 64 * 25 * 32, 1024 * 512, 512 * 10]
    assert bench("side_by_side").count_flop() == 2 * (3 * sum(layers) - layers[0])


def test_batches_hold_every_image_once_an_epoch(bench, tmp_path):
    task = bench("task").Task(str(tmp_path), clients=1, images=130, epochs=3, rounds=1)
    sizes = [len(batch) for batch in task.draw_batches(0, 0)]
    assert sizes == [64, 64, 2] * 3
    first = np.concatenate(list(task.draw_batches(0, 0))[:3])
    assert sorted(first) == list(range(130))
    assert list(first) != list(np.concatenate(list(task.draw_batches(0, 1))[:3]))


@pytest.mark.slow
def test_memory_of_children_is_counted(bench):
    """A child that holds 200 MiB counts; its answer is the last line of JSON."""
    child = "x = b'1' * (200 << 20); import time; time.sleep(0.5)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}]); print('{{\"a\": 1}}')"
    ended = bench("measuring").run_watched([sys.executable, "-c", code], every=0.05)
    assert ended.answer == {"a": 1}
    assert 200 << 20 < ended.peak < 400 << 20


def test_a_failed_command_has_no_answer(bench):
    ended = bench("measuring").run_watched(
        [sys.executable, "-c", "print('{}'); raise SystemExit('no such luck')"]
    )
    assert ended.answer == {}
    assert "no such luck" in ended.words


def test_a_process_is_in_its_own_family(bench):
    measuring = bench("measuring")
    assert os.getpid() in measuring.list_family(os.getppid())
    assert measuring.list_family(os.getpid()) >= {os.getpid()}
    measuring.reset_peak()
    assert measuring.read_peak() >= measuring.read_memory() // 2 > 0


@pytest.mark.parametrize(
    ("case", "clients", "parameters"),
    [
        ("clients:pool:3", 3, 582_026),
        ("parameters:pool:1590", 8, 1_600),
        ("train:pool:1590", 8, 1_600),
        ("unlearn:pool:1590", 7, 1_600),
    ],
)
def test_growth_measures_rounds(bench, case, clients, parameters):
    """Every client sends a model of four bytes a parameter."""
    found = bench("growth").run_case(case)
    assert (found["clients"], found["parameters"]) == (clients, parameters)
    assert found["bytes_up"] == 4 * clients * parameters
    assert found["seconds"] > 0


def test_lists_are_counted_without_training(commands):
    """In its own process, where no memory that was freed before is used again."""
    found = json.loads(commands.run_script(BENCHMARKS / "growth.py", "--only", "lists::60000").stdout)
    assert found["clients"] == 60_000
    assert 0 < found["bytes_a_client"] < 5_000


@pytest.mark.slow
def test_growth_reports_the_last_round(bench):
    marks = bench("growth").run_case("rounds:pool:12")["rounds"]
    assert [mark["round"] for mark in marks] == [10, 12]
    assert all(mark["held_mib"] > 0 < mark["seconds"] for mark in marks)


def test_a_target_counts_all_rounds_before_it(bench):
    def record(number, accuracy):
        scores = {"test_accuracy": accuracy}
        return Round(
            number, ("a",), ("a",), 1.0, bytes_up=8, client_seconds=0.5, server_seconds=0.25, scores=scores
        )

    rounds = [record(0, 0.3), record(1, 0.8), record(2, 0.7)]
    reached = bench("to_target").find_target
    assert reached(rounds, 0.8) == {"rounds": 2, "seconds": 1.5, "bytes_up": 16}
    assert reached(rounds, 0.81) is None


def test_for_good_is_after_the_last_round_below(bench):
    find = bench("accelerators").find_for_good
    assert find([0.5, 0.8, 0.7, 0.8, 0.9], 0.8) == 4
    assert find([0.8, 0.9], 0.8) == 1
    assert find([0.9, 0.9, 0.7], 0.8) is None


def test_accelerators_are_compared_with_retrain(bench):
    found = bench("accelerators").measure_rules("breast cancer, logistic, iid", 1, 2)
    assert list(found) == list(bench("accelerators").list_rules())
    assert all(len(one["accuracies"]) == 2 for one in found.values())
    assert found["Retrain"]["for_good"] in (1, 2)


def make_results():
    """Return results with simple numbers."""
    machine = {"cores": 2, "processor": "Abacus", "memory_gib": 1.0, "python": "3", "torch": "2"}
    top = {"command": "python x", "date": "2000-01-01", "machine": machine}
    shared = {"parameters": 250, "beyond_mib": 1.0, "most_mib": 5.0}
    cases = {
        f"clients:pool:{n}": {**shared, "clients": n, "seconds": n / 1000, "record_bytes": 10 + 20 * n, "bytes_up": 1000 * n}
        for n in (1_000, 10_000)
    }  # fmt: skip
    for kind, beyond in (("parameters", 3.0), ("train", 4.0), ("unlearn", 5.0)):
        cases[f"{kind}:pool:9"] = {"parameters": 2**18, "beyond_mib": beyond, "seconds": 1.0}
    cases["lists::9"] = {"clients": 9, "bytes_a_client": 100.0}
    cases["rounds:pool:9"] = {"rounds": [{"round": 9, "seconds": 0.5, "held_mib": 7.0}]}
    one = {
        "images_per_second": 500.0,
        "peak_mib": 9.0,
        "outside_seconds": 1.0,
        "version": "v 1",
        "what": "w",
        "moved": 2.0,
        "seconds": [[0.01, 0.015]],
    }
    sides = {
        "pool": one,
        "plain": {**one, "images_per_second": 250.0, "moved": 2.1},
        "jax": {"what": "w", "missing": "pip install jax"},
    }
    task = {"clients": 1, "images": 2, "epochs": 3, "rounds": 4, "turns": 5}
    run = {"targets": {"80%": {"rounds": 3, "seconds": 1.5}}, "last": 0.9, "history_bytes": 0}
    never = {"targets": {"80%": None}, "last": 0.5, "history_bytes": 5e6}
    methods = {"feduhb": run, "retrain": run, "federaser": never, "fedrecover": never}
    on_gpu = {**top, "machine": {**top["machine"], "gpu": "GPU 9", "triton": "3"}}
    rounds = {
        f"{task} {kind}": {"median": 270.0}
        for task in ("mnist", "cifar10", "ragged")
        for kind in ("float32", "tf32", "bf16")
    }
    rules = {
        name: {"FedX": {"for_good": when, "accuracies": [0.1, 0.9]}} for name, when in (("1", 9), ("2", 12))
    }
    never_good = {"1": rules["1"], "2": {"FedX": {"for_good": None, "accuracies": [0.9, 0.7]}}}
    models = {"resnet18": {"parameters": 11000, "milliseconds": {"loop": 2500.0, "stacked:float32": 1250.0, "stacked:tf32": 250.0, "stacked:bf16": 125.0}, "times_faster": {"loop": 1.0, "stacked:float32": 2.0, "stacked:tf32": 10.0, "stacked:bf16": 20.0}}}  # fmt: skip
    far = {"loop float32": 1e-4, "float32": 2e-4, "tf32": 0.02, "bf16": 0.04}
    return {
        "accelerators": {**top, "rounds": 40, "places": {"dirichlet:9": rules, "dirichlet:1": never_good}},
        "growth": {**top, "cases": cases},
        "side-by-side": {**top, "implementations": sides, "task": task, "flop_an_image": 1000, "matrix_gflops": 0.001},
        "to-target": {**top, "targets": ["80%"], "seeds": {"1": methods, "2": methods, "3": {**methods, "feduhb": never}}},
        "stacked-h200": {**on_gpu, "clients": 18, "images": {"mnist": 3000, "cifar10": 2500, "ragged": 3000}, "ms_a_round": rounds, "loop_ms_a_round": {"mnist": 8000, "cifar10": 9000, "ragged": 7000}, "ragged": {"least": 8, "most": 800, "masked": 0.051}, "distance_from_float64": {"mnist": far, "cifar10": far}},
        "architectures-h200": {**on_gpu, "models": models},
        "precision-h200": {**on_gpu, "rounds": 2, "accuracy": {"float32": [[0.5, 0.9], [0.52, 0.92]], "tf32": [[0.51, 0.9], [0.52, 0.94]]}, "seconds": {"float32": [4.0, 4.2], "tf32": [2.0, 9.0]}},
    }  # fmt: skip


def test_tables_hold_the_measured_numbers(bench):
    tables = bench("tables")
    made = {name: make(make_results()) for name, make in tables.TABLES.items()}
    assert "| pool: w | 500 | 400 to 600 | 2.00 | 50% | 9 MiB | 1.0 s |" in made["side by side"]
    assert "missing: `pip install jax`" in made["side by side"]
    assert "differs by 5.0% at most" in made["side by side"]
    assert "| 10,000 | pool | 10.00 | 1.0 | 1 MiB | 5 MiB |" in made["clients"]
    assert "| 262,144 | 1.00 | 3 MiB | 3.0 | 4.0 | 5.0 |" in made["parameters"]
    assert "| 9 | 500 ms | 7 MiB |" in made["rounds"]
    assert "| feduhb | 3 rounds, 1.5 s (2 of 3) | 90.0% | 5 MB |" in made["targets"]
    assert "| federaser | never | 50.0% | 5 MB |" in made["targets"]
    assert "| FedX | **10** (9-12), 90.0% | never in 1, 80.0% |" in made["accelerators"]


def test_a_command_is_recorded_without_paths(bench):
    words = ["--repeats", "9", "--json", "x.json", "--loop", "--python-jax", "jax", "--json=y.json", "a/b"]
    assert bench("measuring")._drop_paths(words) == ["--repeats", "9", "--loop"]


@pytest.mark.parametrize(("seeds", "quantile"), [(2, 4.303), (3, 2.776), (6, 2.228)])
def test_chance_is_students_quantile(bench, seeds, quantile):
    assert bench("precision").find_chance(seeds) == pytest.approx(quantile, abs=5e-4)


def test_gpu_tables_hold_the_measured_numbers(bench):
    made = {
        name: make(make_results()) for name, make in bench("tables").TABLES.items() if name.startswith("gpu")
    }
    row = "| MNIST, the same 54,000 images by Dirichlet(0.1): 8 to 800 a client | 270.0 ms | 270.0 ms | 270.0 ms | 7,000 ms |"
    assert row in made["gpu rounds"]
    assert "5.1% of the places in batches are masked" in made["gpu rounds"]
    assert "one GPU 9, " in made["gpu rounds"]
    row = (
        "| resnet18 | 11,000 | 2,500 ms | 1,250 ms (2.0 times) | 250 ms (10.0 times) | 125 ms (20.0 times) |"
    )
    assert row in made["gpu models"]
    assert "| MNIST's shapes | 1.0e-04 | 2.0e-04 | 2.0e-02 | 4.0e-02 |" in made["gpu distances"]
    assert "in 270 ms in tf32 and 270 ms in float32" in made["gpu in short"]
    assert "takes 8.0 and 9.0 s" in made["gpu in short"]
    words = made["gpu precisions"]
    assert "91.00% in float32, 92.00% in tf32" in words
    assert "by 0.75 points on average and 2.00 at most" in words, "|0.51 - 0.5|, 0, 0, |0.94 - 0.92|"
    assert "0.45 (tf32) standard errors" in words, "0.01 / sqrt(0.02² / 2 / 2 + 0.04² / 2 / 2)"
    assert "within seed noise. The rounds took 4.1, 5.5 s" in words


def test_a_precision_that_costs_accuracy_is_beyond_seed_noise(bench):
    found = make_results()
    found["precision-h200"]["accuracy"]["tf32"] = [[0.1, 0.2], [0.12, 0.22]]
    assert "beyond seed noise" in bench("gpu").format_precisions(found)


def test_the_computed_costs_follow_from_the_measurements(bench):
    """1 ms a client, 1 kB a model, 500 images/s on two cores, a million images/s on the GPU."""
    scaling = bench("scaling")
    words = scaling.format_arithmetic(make_results())
    assert "three rounds on the pool held 3.0 models' worth" in words
    assert "`feduhb.train` held 4.0, and `feduhb.unlearn` by FedUHB 5.0" in words
    assert "(10.00 s - 1.00 s) / 9,000 clients = 1.00 ms. A million of them: 16.7 min a round" in words
    assert "500 images / 500 images/s = 1000 ms on two cores; / 1,000,000 images/s = 0.50 ms" in words
    assert "100 bytes a client x 1,000,000 = 100 MB" in words
    assert "20.0 bytes per round and client asked. All clients, 40 rounds: 800 MB" in words
    assert "1 GiB / (4 bytes x 6.0) are enough to train about 45 million parameters" in words
    row = "| 1,000 | 16.7 min | 0.5 s | 2 MB | 0.016 s | 11.1 h | 80 MB | 40 MB |"
    assert row in scaling.format_sampling(make_results())


def test_a_table_replaces_the_old_one(bench):
    text = "before\n<!-- rounds -->\nold\n<!-- end rounds -->\nafter"
    filled = bench("tables").fill_tables(text, make_results())
    assert "old" not in filled
    assert filled == bench("tables").fill_tables(filled, make_results())
    assert filled.startswith("before\n<!-- rounds -->\n| up to round")
    assert filled.endswith("<!-- end rounds -->\nafter")


def test_a_run_that_never_got_there_counts_as_the_longest(bench):
    run, sooner = {"rounds": 9, "seconds": 1.0}, {"rounds": 4, "seconds": 0.5}
    when = bench("tables")._format_when
    assert when([run, sooner, None]) == "9 rounds, 1.0 s (2 of 3)"
    assert when([run, None, None]) == "1 of 3"
    assert when([None, None]) == "never"


def test_the_figure_is_a_picture(bench):
    assert bench("figure").draw_figure(make_results()).startswith(b"\x89PNG")


def test_every_panel_of_growth_has_its_unit_and_no_other(bench):
    figure = bench("figure")
    for draw, unit, values in (
        (figure.draw_seconds, "seconds a round", [1.0, 10.0]),
        (figure.draw_memory, "MiB beyond the data", [1.0, 1.0]),
    ):
        _, (axes,) = new_figure(1, 1, width=4, height=3)
        draw(axes, make_results())
        assert axes.get_ylabel() == unit
        (line,) = axes.lines
        assert np.asarray(line.get_ydata()).tolist() == values


def test_a_bar_shows_how_many_seeds_got_there(bench):
    _, (axes,) = new_figure(1, 1, width=4, height=3)
    heading = bench("figure").draw_targets(axes, make_results())
    said = [text.get_text() for text in axes.texts]
    assert "2 of 3 seeds got there   3" in said, "FedUHB"
    assert "3" in said, "Retrain, in every seed"
    assert "median of 3 seeds; a seed that never got there counts as the longest" in heading.notes[0][0]


def test_simulated_attacks_are_judged_as_an_audit_judges_them(bench):
    intervals = bench("intervals")
    case = intervals.Case(((60, 40),) * 2, 0.0, alike=0.5)
    models, apart = intervals.audit_models(case, 0)
    assert models["original"].auc > 0.6 > models["retrain"].auc
    assert apart.value == pytest.approx(models["unlearned"].auc - models["retrain"].auc)
    assert judge_membership(models, apart).verdict != "caught"
    assert not intervals.is_caught_unpaired(models)
    for name in (models["original"], replace(models["original"], interval=Interval(0.1, 0.2))):
        assert intervals.is_caught_unpaired({**models, "unlearned": name})
    words = intervals.count_verdicts(case, attacks=3)
    assert words.startswith(
        "verdicts, 2 x 60:40, AUC 0.50, alike 0.50: caught 0.0% (without the paired test 0.0%)"
    )
    assert "forecast, 2 x 60:40, AUC 0.50: power 0.0%, simulated 0.0%" in intervals.check_forecast(
        case.sizes, attacks=3
    )


def test_the_truth_of_simulated_attacks_is_known(bench):
    """With many examples, the AUC of each leaver is near its truth; scores of two models are as alike as asked for."""
    intervals = bench("intervals")
    case = intervals.Case(((4000, 4000),) * 2, 0.5, apart=0.6, alike=0.5, wide=2.0)
    (first, second), truth = intervals.attack_models(case, 2, [case.known, 0.0])
    found, mean = compute_roc(first), intervals.average_truth(case, truth)
    assert [compute_roc([one]).auc for one in first] == pytest.approx(truth, abs=0.03)
    assert abs(truth[0] - truth[1]) > 0.01
    assert found.auc == pytest.approx(mean, abs=0.02)
    assert compute_roc(second).auc == pytest.approx(0.5, abs=0.02)
    both = torch.stack([first[0].others, second[0].others])
    assert float(torch.corrcoef(both)[0, 1]) == pytest.approx(0.5, abs=0.05)
    assert intervals.holds(found.interval, mean)
    assert not intervals.holds(found.interval, 0.99)
    assert "99 % interval 100.0%" in intervals.measure_coverage(intervals.Case(((30, 20),) * 2), attacks=3)
    small, large = (intervals.Case((sizes,)) for sizes in ((30, 20), (60, 40)))
    for audits, said in (((small,) * 5, "5 audits, 30:20"), ((small, large), "2 audits, 30:20 and 60:40")):
        line = intervals.measure_pool(audits, pools=2)
        assert f"pooled over {said}, AUC 0.50: 99 % interval of the AUC 100.0%" in line
    assert "difference, 30:20" in intervals.measure_difference(intervals.Case(((30, 20),)), attacks=3)


def test_pages_hold_the_results_beside_them(bench):
    tables = bench("tables")
    found = tables.read_results()
    for page in tables.PAGES:
        assert tables.fill_tables(page.read_text(), found) == page.read_text(), (
            "run python benchmarks/tables.py"
        )


def test_the_memory_on_the_speed_page_is_the_measured_one():
    found = json.loads((ROOT / "results" / "benchmarks" / "growth.json").read_text())["cases"][
        "clients:pool:10000"
    ]
    told = f"10,000 clients with the paper's {found['parameters']:,} parameters take {found['beyond_mib']:.0f} MiB"
    assert told in " ".join((ROOT / "docs" / "speed.md").read_text().split())


def test_the_memory_on_the_tables_page_is_the_measured_one():
    path = ROOT / "results" / "benchmarks" / "large-table.json"
    found = json.loads(path.read_text())
    page = " ".join((ROOT / "docs" / "tables.md").read_text().split())
    told = f"{found['bytes'] / 1e9:.2f} GB with {found['rows'] / 1e6:.0f} million rows, {found['columns']} columns of numbers and {found['clients']} clients"
    assert told in page
    assert found["command"] in page
    assert [(one["train"], one["standardize"]) for one in found["reading"]] == [
        *itertools.product((False, True), repeat=2)
    ]
    for one in found["reading"]:
        assert one["limit bytes"] == 1e9 < found["bytes"] / 2
        done = "read, trained, unlearned" if one["train"] else "read"
        assert f"| {done} | `{one['standardize']}` | {one['peak MiB']} MiB | {one['seconds']:.0f} |" in page


def test_a_large_table_is_measured_as_it_is_read(bench, tmp_path, monkeypatch):
    large = bench("large_table")
    monkeypatch.setattr(large, "BLOCK", 50)
    rows = large.write_table(tmp_path / "table.csv", 1000)
    found = large.measure(tmp_path / "table.csv", standardize=True, limit=None, train=True)
    assert rows == 500
    assert 0 < found["test rows"] < found["training rows"] < rows  # others are held out
    assert 50 < found["peak MiB"] < found["peak with files MiB"]


def test_stop_rules_are_replayed_on_one_run(bench):
    line = bench("stop_rules").measure("iid", rounds=4, clients=4, data="digits")
    assert line.startswith("iid: best ")
    assert "; paper " in line
    assert "; distance never (" in line
