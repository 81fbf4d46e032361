"""Load tests of RMQ in locust, over RMQ's own client.

From the top of the checkout:

    locust -f bench/locustfile.py                                    the web interface, on port 8089
    locust -f bench/locustfile.py --headless -u 5 -t 20s             for 20 s, then an account
    locust -f bench/locustfile.py --headless -u 8 -t 1m Producer Consumer --rate 500 --work-ms 2
    locust -f bench/locustfile.py --help                             RMQ's options are at the end

Without --rmq-url (or RMQ_URL) a private server starts, and stops with the run. After the users have
stopped, the topic is drained and every message is accounted for. Exit codes: 0 success; 1 requests
failed; 2 an option is wrong; 3 a message was lost, was delivered twice, or is still in Redis.
"""

from __future__ import annotations

import sys
from typing import Any

from locust import events
from locust.env import Environment
from rich.console import Console

from bench.load import options
from bench.load.run import Run
from bench.load.users import Consumer, Mixed, Producer

__all__ = ["Consumer", "Mixed", "Producer"]


def init(environment: Environment, **_: Any) -> None:
    assert environment.parsed_options is not None
    Run(environment, options.Options.of(environment.parsed_options))


def start(environment: Environment, **_: Any) -> None:
    Run.of(environment).start()


def stop(environment: Environment, **_: Any) -> None:
    run = Run.of(environment)
    run.finish()
    if environment.web_ui:
        show(run)


def end(environment: Environment, **_: Any) -> None:
    run = Run.of(environment)
    if environment.runner:
        environment.runner.stop()  # after Ctrl-C the users still run; this calls their `stop`
    run.close()
    if not environment.web_ui:
        events.quit.add_listener(lambda **_: show(run))  # below locust's own tables


def show(run: Run) -> None:
    if run.account is None:
        return
    print()
    Console().print(run.account.table())
    for name in run.account.wrong:
        print(f"wrong: {name} is {getattr(run.account, name)}", file=sys.stderr)
    parsed = run.environment.parsed_options
    if parsed and parsed.csv_prefix:
        print(f"CSV:  {parsed.csv_prefix}_stats.csv and others beside it")
    if parsed and parsed.html_file:
        print(f"HTML: {parsed.html_file}")


events.init_command_line_parser.add_listener(options.add)
events.init.add_listener(init)
events.test_start.add_listener(start)
events.test_stop.add_listener(stop)
events.quitting.add_listener(end)
