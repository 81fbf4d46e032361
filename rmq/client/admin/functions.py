"""The library of Redis functions that clients with `calls="functions"` call."""

from __future__ import annotations

from rmq.kernel.core.function_library import FunctionLibrary
from rmq.kernel.core.packages import VERSION
from rmq.kernel.topic.verbs import AdminPart, AsyncAdminPart
from rmq.kernel.transport import function_flows


class FunctionAdmin(AdminPart):
    """Verbs on the libraries of functions. They need Redis 7, or Valkey, and rights of their own.

    `rmq acl generate loader` prints the rights. On a cluster the verbs go to all masters.
    """

    def functions_load(self) -> bool:
        """Load the functions of this RMQ where they are missing; return whether they were.

        Libraries of other versions stay: their clients may still call them. Redis keeps functions
        over a restart, and its replicas have them.

        Raises:
            ConfigurationError: the server has no functions. AccessDenied: this user may not.
        """
        return self._run(function_flows.load(VERSION))

    def functions(self) -> list[FunctionLibrary]:
        """Return the libraries of functions that RMQ has loaded, by name."""
        return self._run(function_flows.libraries())

    def functions_delete(self, name: str) -> bool:
        """Delete a library of functions; return whether there was one.

        Calls of clients that use it raise ConfigurationError from then on.

        Raises:
            InvalidValue: the name cannot be one of RMQ's libraries.
        """
        return self._run(function_flows.delete(name))


class AsyncFunctionAdmin(AsyncAdminPart):
    """As `FunctionAdmin`, for asyncio."""

    async def functions_load(self) -> bool:
        """As `Admin.functions_load`."""
        return await self._run(function_flows.load(VERSION))

    async def functions(self) -> list[FunctionLibrary]:
        """As `Admin.functions`."""
        return await self._run(function_flows.libraries())

    async def functions_delete(self, name: str) -> bool:
        """As `Admin.functions_delete`."""
        return await self._run(function_flows.delete(name))
