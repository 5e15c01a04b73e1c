"""Audits a run in a process of its own, and kills itself with SIGKILL once so many shadows have spoken.

python shadowing.py FOLDER COUNT

FOLDER holds the runs "original" and "retrain"; audit.json goes to FOLDER/audit. With COUNT 0 it comes to its end.
Shadows of an audit that is to be killed are trained in several processes, those of a whole one in this process. Those
processes may be only a little ahead: one of them could otherwise train all shadows while another one begins.
What was trained goes to standard output, a line each.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any


def say(name: str) -> None:
    sys.stdout.write(name + "\n")
    sys.stdout.flush()


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])

    import feduhb
    from feduhb.audit import controls, shadows
    from feduhb.audit.audit import audit
    from feduhb.runs import workers
    from feduhb.runs.folder import RunFolder

    workers.AHEAD = 1
    spread, run_apart = shadows.spread, controls.run_apart

    def counted(function: Any, jobs: Any, cores: int) -> Any:
        def noted() -> Any:
            for job in jobs:
                say(job.file.stem)
                yield job

        for number, said in enumerate(spread(function, noted(), cores if count else 1), 1):
            if number == count:
                os.kill(os.getpid(), signal.SIGKILL)
            yield said

    def told(job: Any, *more: Any) -> Any:
        if not RunFolder(job.out).is_finished():
            say(job.out.name)
        return run_apart(job, *more)

    shadows.spread, controls.run_apart = counted, told
    original, retrain = (feduhb.open_run(folder / name) for name in ("original", "retrain"))
    audit(retrain, original, out=folder / "audit", shadows=6, relearn=0, canaries=0.5, show=None)


if __name__ == "__main__":
    main()
