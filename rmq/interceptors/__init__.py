"""Interceptors of RMQ: logs, metrics, traces.

    from rmq.interceptors import Logging, OpenTelemetry, Prometheus

    client = rmq.Client(url, interceptors=[Logging(), Prometheus(), OpenTelemetry()])

logs         structured events, and the message's id in every record that a handler logs
prometheus   the metrics of the catalogue (`rmq.kernel.core.metrics`); needs the extra `prometheus`
otel         spans, and the trace in the headers of a message; needs the extra `otel`
active_runs  the deliveries whose handler the current thread or task runs

`import rmq` loads none of these modules. An optional package is loaded when an object needs it. If
the package is missing, the constructor raises ConfigurationError and names the extra.
"""

from rmq.interceptors.logs import JsonFormatter, Logging, MessageFilter
from rmq.interceptors.otel import OpenTelemetry
from rmq.interceptors.prometheus import Prometheus

__all__ = ["JsonFormatter", "Logging", "MessageFilter", "OpenTelemetry", "Prometheus"]
