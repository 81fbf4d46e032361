"""The work of each role, in small steps. A step raises what its user is refused."""

from __future__ import annotations

from tests.acl import (
    batching as batching,
    eventing as eventing,
    operating as operating,
    receiving as receiving,
    sending as sending,
    serving as serving,
)
from tests.acl.registry import STEPS as STEPS
