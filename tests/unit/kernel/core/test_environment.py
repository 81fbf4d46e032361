"""Every variable of RMQ is read without the blanks at its ends."""

import re
from pathlib import Path

from rmq.kernel.core.environment import variable

ROOT = Path(__file__).parents[4]
# The supervisor writes RMQ_PROCESS_NUMBER itself; RMQ_DEBUG is compared with one value.
WRITTEN_BY_RMQ = {
    "rmq/features/workers/reporter.py", "rmq/cli_framework/app.py", "rmq/django/worker.py",
}  # fmt: skip


def test_blanks_at_the_ends_of_a_variable_are_removed() -> None:
    environ = {"RMQ_URL": " redis://host\n", "RMQ_PREFIX": " \n"}

    assert variable("RMQ_URL", environ) == "redis://host"
    assert variable("RMQ_PREFIX", environ) is None
    assert variable("RMQ_OTHER", environ) is None


def test_no_other_file_reads_a_variable_of_rmq() -> None:
    read = re.compile(r"environ(\.get\(|\[)(\"RMQ|_?VARIABLE|FILE_VARIABLE)")
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "rmq").rglob("*.py")
        if read.search(path.read_text(encoding="utf-8"))
    }

    assert files - WRITTEN_BY_RMQ == set()
