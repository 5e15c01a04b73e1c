"""What the public API promises: train, unlearn, compare, and run folders that open again."""

import pytest
import torch

import feduhb
from federations import ragged
from feduhb.errors import ConfigError, RunFolderError
from feduhb.runs.folder import RunFolder


@pytest.fixture(scope="module")
def digits():
    return feduhb.load("digits", clients=5, partition="dirichlet:0.5", seed=3, backdoor=["c00"])


@pytest.fixture(scope="module")
def trained(digits, tmp_path_factory):
    return feduhb.train(digits, 3, epochs=1, lr=0.05, out=tmp_path_factory.mktemp("runs") / "first")


def test_training_is_retrain_with_nobody_forgotten(digits, trained):
    assert isinstance(trained.method, feduhb.Retrain)
    assert trained.stopped == "all 3 scheduled rounds were run"
    assert [r.round for r in trained.rounds] == [0, 1, 2]
    assert set(trained.rounds[-1].scores) == {"test_loss", "test_accuracy", "backdoor"}
    model = trained.model()
    x, y = digits.test.all()
    assert float((model(x).argmax(1) == y).double().mean()) == pytest.approx(
        trained.rounds[-1].scores["test_accuracy"]
    )
    assert "retrain, 3 rounds, test accuracy" in repr(trained)


def test_every_record_tells_movement_bytes_epochs_and_three_clocks(trained):
    for record in trained.rounds:
        payload = trained.params.numel() * 4 * 5
        assert (record.bytes_down, record.bytes_up, record.client_epochs) == (payload, payload, 5)
        assert record.moved > 0
        assert min(record.client_seconds, record.server_seconds, record.evaluate_seconds) > 0


def test_unlearning_takes_epochs_from_the_run_and_the_rule_from_the_method(trained):
    run = feduhb.unlearn(trained, ["c00"], rounds=4)
    assert isinstance(run.method, feduhb.FedUHB)
    assert run.method.epochs == 1
    assert [r.threshold is None for r in run.rounds] == [True, True, False, False]
    assert set(run.federation.clients) == {"c01", "c02", "c03", "c04"}
    plain = feduhb.unlearn(trained, ["c00"], method="retrain", rounds=4)
    assert all(r.threshold is None for r in plain.rounds)


def test_the_stop_rule_ends_a_run_with_its_reason_in_words(trained):
    run = feduhb.unlearn(trained, ["c00"], rounds=30, stop=feduhb.dynamic_stop(50.0))
    assert len(run.rounds) == 3
    assert run.stopped.startswith("movement ")
    assert "fell below 50 x its standard deviation" in run.stopped


@pytest.mark.slow
def test_a_lambda_sweep_replays_from_one_run(trained):
    whole = feduhb.unlearn(
        trained, ["c00"], method=feduhb.FedUHB(momentum=0.5, epochs=1), rounds=25, stop=feduhb.never
    )
    moved = [r.moved for r in whole.rounds]
    found = {scale: feduhb.replay(feduhb.dynamic_stop(scale), moved) for scale in (0.5, 1.0, 2.0, 4.0)}
    assert len(set(found.values())) > 1
    for scale, rounds in found.items():
        live = feduhb.unlearn(
            trained, ["c00"], method=whole.method, rounds=25, stop=feduhb.dynamic_stop(scale)
        )
        assert len(live.rounds) == (rounds or 25)


def test_compare_runs_each_method_into_a_folder_of_its_own(trained, tmp_path):
    found = feduhb.compare(trained, ["c00"], rounds=2, out=tmp_path)
    assert list(found) == ["feduhb", "retrain"]
    assert all(RunFolder(tmp_path / name).is_finished() for name in found)
    several = [feduhb.FedUHB(momentum=beta, epochs=1) for beta in (0.9, 0.5, 0.0)]
    assert list(feduhb.compare(trained, ["c00"], several, rounds=1)) == ["feduhb", "feduhb-2", "feduhb-3"]


def test_a_run_folder_opens_again_and_can_be_unlearned_further(trained, tmp_path):
    opened = feduhb.open_run(trained.folder)
    assert torch.equal(opened.params, trained.params)
    assert opened.rounds == trained.rounds
    first = feduhb.unlearn(opened, {"c01": range(5)}, rounds=2, out=tmp_path / "second")
    again = feduhb.open_run(tmp_path / "second")
    assert torch.equal(again.params, first.params)
    assert str(again.forgot) == "c01:0-4"
    assert len(again.federation.clients["c01"]) == len(trained.federation.clients["c01"]) - 5
    third = feduhb.unlearn(again, ["c00"], rounds=2)
    assert str(third.forgot) == "c00,c01:0-4"


def test_own_data_is_brought_along_when_its_folder_is_opened(tmp_path):
    federation = ragged()
    run = feduhb.train(federation, 2, epochs=1, out=tmp_path / "own")
    with pytest.raises(RunFolderError, match=r"came from Python code; open it in Python: feduhb\.open_run"):
        feduhb.open_run(tmp_path / "own")
    assert torch.equal(feduhb.open_run(tmp_path / "own", federation).params, run.params)


def test_a_resumed_run_equals_one_that_was_never_stopped(tmp_path):
    """Stopped by the caller's own code after its second round, then resumed."""

    def stop_after_two(record):
        if record.round == 1:
            raise KeyboardInterrupt

    whole = feduhb.train(ragged(), 5, epochs=1)
    with pytest.raises(KeyboardInterrupt):
        feduhb.train(ragged(), 5, epochs=1, out=tmp_path / "run", show=stop_after_two)
    resumed = feduhb.train(ragged(), 5, epochs=1, out=tmp_path / "run", resume=True)
    assert torch.equal(whole.params, resumed.params)
    assert [r.moved for r in whole.rounds] == [r.moved for r in resumed.rounds]


def test_fewer_clients_than_a_round_samples_are_all_asked_when_unlearning(digits):
    trained = feduhb.train(digits, 2, epochs=1, clients_per_round=5)
    run = feduhb.unlearn(trained, ["c00"], rounds=2)
    assert run.rounds[0].asked == ("c01", "c02", "c03", "c04")
    with pytest.raises(ConfigError, match="clients_per_round is 6; give 1 to 5, the number of clients"):
        feduhb.train(digits, 2, clients_per_round=6)


def test_training_does_not_disturb_torchs_random_state(digits):
    before = torch.get_rng_state()
    feduhb.unlearn(feduhb.train(digits, 1, epochs=1), ["c00"], rounds=1)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("rule", ["median", "trimmed_mean:0.25", "krum", "geometric_median"])
def test_other_rules_than_the_mean_serve_training_and_unlearning(digits, rule):
    trained = feduhb.train(digits, 2, epochs=1, aggregate=rule)
    run = feduhb.unlearn(trained, ["c00"], rounds=2)
    assert run.method.needs == "each"
    assert torch.isfinite(run.params).all()


def test_of_a_thousand_clients_ten_are_asked_in_a_round():
    x = torch.randn(1000, 4, 3, generator=torch.Generator().manual_seed(0))
    clients = {f"c{number:03d}": (part, (part.sum(1) > 0).long()) for number, part in enumerate(x)}
    federation = feduhb.Federation(clients, clients["c000"], torch.nn.Linear(3, 2), seed=1)
    trained = feduhb.train(federation, 3, epochs=1, clients_per_round=10, show=None)
    leaver = trained.rounds[0].asked[0]
    run = feduhb.unlearn(trained, [leaver], rounds=3, show=None)
    assert {len(record.asked) for record in (*trained.rounds, *run.rounds)} == {10}
    assert all(leaver not in record.asked for record in run.rounds)
