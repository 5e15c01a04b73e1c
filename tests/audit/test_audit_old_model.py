"""Methods that start from the old model: the audit catches it where they leave it."""

from __future__ import annotations

import pytest
import torch

import feduhb
from audit.auditing import LEAVERS, QUIET, ROUNDS, TRAINED, load_digits
from feduhb.audit.audit import audit
from feduhb.errors import RunFolderError

pytestmark = pytest.mark.slow


def test_fine_tuning_with_no_rounds_is_caught(tmp_path):
    trained = feduhb.train(load_digits(canaries=feduhb.Canaries(LEAVERS, 1.0)), 2 * ROUNDS, **TRAINED)
    run = feduhb.unlearn(trained, LEAVERS, method="finetune", rounds=0, out=tmp_path / "run", show=None)
    assert torch.equal(run.params, trained.params)
    found = audit(run, trained, **QUIET)
    assert found.exactness is not None
    assert not found.exactness.exact
    assert found.verdict.word == "not forgotten"
    assert any(attack.verdict == "caught" for attack in found.membership)
    with pytest.raises(RunFolderError, match=r"after no rounds, which a report cannot show; leave it out"):
        feduhb.report([tmp_path / "run"], tmp_path / "report")
