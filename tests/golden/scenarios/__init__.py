"""What clients do while `wire` records them. Sync and async clients play each scenario."""

from tests.golden.scenarios import administering, consuming, sending, working
from tests.golden.scenarios.registry import SCENARIOS

__all__ = ["SCENARIOS", "administering", "consuming", "sending", "working"]
