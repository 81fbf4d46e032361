"""The scenarios that `wire` records. Sync and async clients play each of them."""

from tests.golden.scenarios import administering, consuming, sending, working
from tests.golden.scenarios.registry import SCENARIOS

__all__ = ["SCENARIOS", "administering", "consuming", "sending", "working"]
