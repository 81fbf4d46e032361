"""Test your program: with a private broker, a clock that your test controls, and faults.

`import rmq` does not load this package. docs/testing.md shows how to use it.
"""

from rmq.testing.broker import Broker
from rmq.testing.clock import Clock
from rmq.testing.dependencies import overriding
from rmq.testing.drain import Endless, Result
from rmq.testing.faults import Fault, Faults

__all__ = ["Broker", "Clock", "Endless", "Fault", "Faults", "Result", "overriding"]
