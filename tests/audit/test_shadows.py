"""Shadow federations: complementary halves, members and others drawn alike, and no other client."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import feduhb
from audit.auditing import QUIET, draw_federation, load_digits
from feduhb.audit import shadows as module
from feduhb.audit.attacks.before_after import CHANGES
from feduhb.audit.attacks.lira import Shadows, compute_all_confidences
from feduhb.audit.attacks.membership import Candidates
from feduhb.audit.audit import audit
from feduhb.audit.controls import Controls, carry_out
from feduhb.audit.shadows import ShadowSet, choose_clients, deal, make_shadow_federation
from feduhb.data.request import Request, as_request
from feduhb.errors import ConfigError
from toys import quick

SIZES = {"ant": 6, "bee": 12, "cat": 5, "dog": 9, "elk": 7}
LEAVERS = ("ant", "bee")


def candidates_of(federation, forget=LEAVERS) -> Candidates:
    return Candidates.of(federation, as_request(forget))


@quick
@given(clients=st.integers(2, 9), pair=st.integers(0, 20), seed=st.integers(0, 9))
def test_two_shadows_share_out_the_clients(clients, pair, seed):
    federation = draw_federation({f"c{i}": 2 for i in range(clients)}, seed=seed)
    one, two = choose_clients(federation, 2 * pair), choose_clients(federation, 2 * pair + 1)
    assert sorted(one + two) == sorted(federation.clients)
    assert not set(one) & set(two)
    assert abs(len(one) - len(two)) <= 1


def test_pairs_differ():
    federation = draw_federation(SIZES)
    assert len({tuple(choose_clients(federation, 2 * pair)) for pair in range(8)}) > 3


def test_members_and_others_are_inside_equally_often():
    """bee trains on 12 of its 12 + 4 in every second of 2,000 shadows: each is inside 750 times, give or take 5 x 13.7."""
    federation = draw_federation(SIZES)
    candidates = candidates_of(federation)
    deals = [deal(federation, candidates, shadow) for shadow in range(2000)]
    inside = torch.stack([dealt["bee"] for dealt in deals])
    assert inside.shape == (2000, 16)
    assert float((inside.sum(dim=0) - 750).abs().max()) < 69
    present = torch.tensor(["bee" in choose_clients(federation, shadow) for shadow in range(2000)])
    assert torch.equal(inside.sum(dim=1), 12 * present)  # as many as it really trained on


def test_another_clients_presence_changes_no_deal():
    federation = draw_federation(SIZES)
    both, alone = (candidates_of(federation, forget) for forget in (LEAVERS, ("bee",)))
    for shadow in range(6):
        assert torch.equal(deal(federation, both, shadow)["bee"], deal(federation, alone, shadow)["bee"])


@pytest.mark.parametrize("forget", [LEAVERS, {"ant": (0, 1, 4), "dog": (2, 3)}, "class:1"])
def test_a_shadow_holds_what_it_was_dealt_and_what_others_of_its_half_hold(forget):
    federation = draw_federation(SIZES)
    candidates = candidates_of(federation, forget)
    seen = set()
    for shadow in range(6):
        dealt = deal(federation, candidates, shadow)
        inner = make_shadow_federation(federation, candidates, shadow, dealt)
        assert sorted(inner.clients) == choose_clients(federation, shadow)
        assert not {*inner.held_out} & {*candidates.members}  # these may be trained on
        seen.add(inner.seed)
        for client, examples in inner.clients.items():
            if client not in candidates.members:
                assert examples is federation.clients[client]
                continue
            own, gone = federation.clients[client], candidates.members[client]
            kept = own.all()[0][~torch.isin(own.keys, gone.keys)]
            wanted = torch.cat([kept, candidates.all(client)[0][dealt[client]]])
            assert torch.equal(examples.all()[0], wanted)
            assert len(examples) == len(own)
    assert len(seen) == 6
    assert federation.seed not in seen


def shadowed(folder, run, count=4, candidates=None) -> Shadows:
    """Train the shadows of a run."""
    controls = Controls(
        federation=run.original, request=run.forgot, settings=run.settings, engine="loop", history=False, folder=folder
    )  # fmt: skip
    chosen = candidates_of(run.original, run.forgot) if candidates is None else candidates
    made = ShadowSet(controls, run.original, chosen, "retrain", "shadow", count, lambda: run)
    carry_out(made.steps)
    return made.read()


@pytest.fixture(scope="module")
def small():
    """Six clients of ten images, half of them held out."""
    federation = load_digits(clients=6, per_client=10)
    trained = feduhb.train(federation, 2, epochs=3, batch_size=5, lr=0.1, engine="loop", show=None)
    return trained, feduhb.unlearn(trained, ["c00", "c01"], method="retrain", rounds=2, show=None)


def test_each_is_trained_once_scores_all_candidates_and_is_deleted(small, tmp_path, monkeypatch):
    _, run = small
    found = shadowed(tmp_path, run)
    assert {c: tuple(said.shape) for c, said in found.confidences.items()} == {"c00": (4, 10), "c01": (4, 10)}
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"shadow-0{k}.json" for k in range(4)]
    assert all(int(found.inside[c].any(dim=1).sum()) == 2 for c in found.inside)  # every second one
    monkeypatch.setattr(module, "train_shadow", None)  # whoever trains now fails
    again = shadowed(tmp_path, run)
    assert all(torch.equal(found.confidences[c], again.confidences[c]) for c in found.confidences)


def test_a_shadows_confidences_are_those_of_its_own_training(small, tmp_path):
    _, run = small
    found, candidates = shadowed(tmp_path, run), candidates_of(run.original, run.forgot)
    inner = make_shadow_federation(run.original, candidates, 3, deal(run.original, candidates, 3))
    alone = feduhb.train(inner, 2, epochs=3, batch_size=5, lr=0.1, engine="loop", show=None)
    assert all(
        torch.equal(found.confidences[c][3], values)
        for c, values in compute_all_confidences(alone, candidates).items()
    )


def test_an_audit_with_shadows_gives_the_same_numbers_twice(small):
    trained, run = small
    found = [audit(run, trained, shadows=4, exactness=False, **QUIET).membership for _ in range(2)]
    assert found[0] == found[1]
    lira = [attack for attack in found[0] if attack.attack == "LiRA"]
    assert [attack.on for attack in lira] == [
        "all forgotten data, in a rehearsal",
        "canaries, in a rehearsal",
    ]
    assert lira[0].self_test is not None


def test_controls_have_shadows_of_their_own_where_the_audited_run_is_shorter(small, monkeypatch):
    trained, retrain = small
    short = feduhb.unlearn(trained, ["c00", "c01"], method="retrain", rounds=1, show=None)
    rounds = []
    train_shadow = module.train_shadow

    def record_rounds(job):
        rounds.append(job.train.keywords["rounds"])
        train_shadow(job)

    monkeypatch.setattr(module, "train_shadow", record_rounds)
    audit(short, trained, retrain=retrain, shadows=4, exactness=False, canaries=0, **QUIET)
    assert rounds == [1, 1, 1, 1, 2, 2, 2, 2]


def test_a_leaver_without_canaries_is_left_out_of_the_attack_on_them():
    federation = load_digits(clients=6, per_client=20, canaries=feduhb.Canaries(("c00",), 0.5))
    trained = feduhb.train(federation, 1, epochs=1, engine="loop", show=None)
    run = feduhb.unlearn(trained, ["c00", "c01"], method="retrain", rounds=1, show=None)
    found = audit(run, trained, shadows=4, exactness=False, **QUIET)
    sizes = {
        (a.attack, a.on): (a.models["original"].members, a.models["original"].others)
        for a in found.membership
    }
    assert {kind for kind, _ in sizes} == {"loss", "LiRA", *CHANGES}
    assert all(
        size == ((20, 20) if on == "all forgotten data" else (5, 5)) for (_, on), size in sizes.items()
    )
    assert len(sizes) == 8


def test_a_federation_of_one_has_no_halves():
    federation = draw_federation({"ant": 5})
    run = feduhb.unlearn(feduhb.train(federation, 1, epochs=1, show=None), {"ant": [0]}, rounds=1, show=None)
    with pytest.raises(ConfigError, match="there is only one client; audit with shadows=0"):
        audit(run, shadows=4, exactness=False, canaries=0, **QUIET)


def test_candidates_keep_clients_apart():
    federation = draw_federation(SIZES)
    found = Candidates.of(federation, Request(LEAVERS))
    assert list(found.members) == list(found.others) == list(LEAVERS)
    for client in LEAVERS:
        assert found.members[client].all()[0].shape == federation.clients[client].all()[0].shape
        assert torch.equal(found.others[client].all()[0], federation.held_out[client].all()[0])
