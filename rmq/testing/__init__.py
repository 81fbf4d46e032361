"""For tests of programs that use RMQ: a private broker, a clock that stands still, faults on order.

`import rmq` does not load this package. docs/testing.md tells how it is used.
"""

from rmq.testing.broker import Broker
from rmq.testing.clock import Clock
from rmq.testing.drain import Endless, Result
from rmq.testing.faults import Fault, Faults

__all__ = ["Broker", "Clock", "Endless", "Fault", "Faults", "Result"]
