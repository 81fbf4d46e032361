"""Run taskiq on RMQ: delays in Redis, strict priorities, renewed leases, Redis Cluster.

    from rmq.taskiq import Broker, ResultBackend

    broker = Broker("redis://localhost:6379/0").with_result_backend(ResultBackend())

docs/taskiq.md has the options.
"""

from rmq.integrations.taskiq.broker import Broker
from rmq.integrations.taskiq.results import ResultBackend, ResultIsMissingError

__all__ = ["Broker", "ResultBackend", "ResultIsMissingError"]
