"""Runs: `plan` describes one, `execute` carries it out with `loop`, and `folder` holds what it leaves on disk."""

from typing import TYPE_CHECKING

from feduhb.core.lazy import import_lazily

if TYPE_CHECKING:
    from feduhb.runs.config import TrainSettings as TrainSettings
    from feduhb.runs.config import find_difference as find_difference
    from feduhb.runs.config import parse_config as parse_config
    from feduhb.runs.config import read_toml as read_toml
    from feduhb.runs.config import to_toml as to_toml
    from feduhb.runs.config import validate as validate
    from feduhb.runs.files import disk_errors as disk_errors
    from feduhb.runs.files import find_json as find_json
    from feduhb.runs.files import hold_lock as hold_lock
    from feduhb.runs.files import write_atomically as write_atomically
    from feduhb.runs.folder import RunFolder as RunFolder
    from feduhb.runs.folder import explain_end as explain_end
    from feduhb.runs.folder import versions as versions
    from feduhb.runs.inventory import read_status as read_status
    from feduhb.runs.plan import Show as Show
    from feduhb.runs.prepare import explain_refusals as explain_refusals
    from feduhb.runs.progress import BeginStep as BeginStep
    from feduhb.runs.progress import show_steps as show_steps
    from feduhb.runs.status import Status as Status
    from feduhb.runs.verify import Verification as Verification
    from feduhb.runs.verify import verify_weights as verify_weights
    from feduhb.runs.workers import spread as spread
    from feduhb.runs.workers import spread_ready as spread_ready

__getattr__, __dir__, __all__ = import_lazily(
    __name__,
    {
        "config": ["TrainSettings", "find_difference", "parse_config", "read_toml", "to_toml", "validate"],
        "files": ["disk_errors", "find_json", "hold_lock", "write_atomically"],
        "folder": ["RunFolder", "explain_end", "versions"],
        "inventory": ["read_status"],
        "plan": ["Show"],
        "prepare": ["explain_refusals"],
        "progress": ["BeginStep", "show_steps"],
        "status": ["Status"],
        "verify": ["Verification", "verify_weights"],
        "workers": ["spread", "spread_ready"],
    },
)
