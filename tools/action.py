"""The steps of action.yml, which measure a bot on a pull request and report the result.

    python3 tools/action.py measure   install and start both versions, and play `turngap check`
    python3 tools/action.py tell      job summary, comment, and the exit code of the check

Both read what GitHub gives to a job (`GITHUB_*`, `RUNNER_TEMP`) and the action's inputs (`GATE_*`).
They need nothing but Python and git, so they also run on your own machine (docs/ci.md).
"""

import os
import sys

from gate.measure import measure
from gate.report import tell


def main() -> int:
    """Run the step that is named."""
    steps = {"measure": measure, "tell": tell}
    if len(sys.argv) != 2 or sys.argv[1] not in steps:
        print(__doc__, file=sys.stderr)
        return 2
    return steps[sys.argv[1]](dict(os.environ))


if __name__ == "__main__":
    sys.exit(main())
