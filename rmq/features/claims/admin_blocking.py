# Generated from rmq/features/claims/admin.py: change that, then run `make fmt`.
"""The blocking classes of `rmq.features.claims.admin`."""

from __future__ import annotations

from rmq.features.claims import flows
from rmq.kernel.core.claim import ClaimStatus
from rmq.kernel.topic.verbs import AdminPart


class ClaimAdmin(AdminPart):
    """Verbs on claims."""

    def claim(self, topic: str, key: str, *, consumer: str = "default") -> ClaimStatus | None:
        """Return the claim on a business key (`rmq.Claims`); None if there is none.

        Args:
            topic: its name.
            key: as the handler's `key` gives it, as text.
            consumer: as the handler's `rmq.Claims` names it.
        """
        return self._run(flows.claim(self._context(topic), key, consumer))

    def unclaim(self, topic: str, key: str, *, consumer: str = "default") -> bool:
        """Delete the claim on a business key, whatever its state; return whether there was one.

        The next message of this key is worked on, even if the work was done before.
        """
        return self._run(flows.unclaim(self._context(topic), key, consumer))
