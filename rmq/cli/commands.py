"""The table of the commands of `rmq`: the module and the description of each command."""

from __future__ import annotations

from rmq.cli_framework.app import CommandEntry, cli

# Add a line for a new command. Tests compare the description with the help of the command.
COMMANDS = {
    "ping": CommandEntry(
        "rmq.cli.root:ping", "Ping Redis; print its version and how long it took."
    ),
    "topic": CommandEntry(
        "rmq.features.topic_admin.cli.topics:topic", "Create, change, delete, list and show topics."
    ),
    "send": CommandEntry("rmq.features.messages.cli.send:send", "Send BODY to TOPIC."),
    "peek": CommandEntry(
        "rmq.features.messages.cli.inspect:peek", "Show messages of TOPIC without receiving them."
    ),
    "get": CommandEntry(
        "rmq.features.messages.cli.inspect:get",
        "Show the message ID of TOPIC in full, from any queue.",
    ),
    "result": CommandEntry(
        "rmq.features.messages.cli.inspect:result",
        "Show the progress and the result of the message ID of TOPIC.",
    ),
    "tail": CommandEntry(
        "rmq.features.messages.cli.tail:tail",
        "Show messages of TOPIC as they are accepted, until Ctrl-C.",
    ),
    "cancel": CommandEntry(
        "rmq.cli.cancel:cancel",
        "Cancel messages of TOPIC, by their ids or by a filter.",
    ),
    "reschedule": CommandEntry(
        "rmq.features.messages.cli.change:reschedule",
        "Change the due time of waiting messages of TOPIC.",
    ),
    "priority": CommandEntry(
        "rmq.features.messages.cli.change:priority",
        "Change the priority of waiting messages of TOPIC.",
    ),
    "dlq": CommandEntry(
        "rmq.features.dead_letters.cli.dlq:dlq", "List, redrive (send back) and purge dead letters."
    ),
    "replay": CommandEntry(
        "rmq.cli.replay:replay", "Send acked messages of TOPIC again, from its history."
    ),
    "archive": CommandEntry(
        "rmq.features.history.cli:archive",
        "Write the history of TOPIC as Parquet files, in folders by day of the ack.",
    ),
    "purge": CommandEntry(
        "rmq.features.dead_letters.cli.dlq:purge",
        "Delete all waiting messages of TOPIC permanently, including delayed messages.",
    ),
    "job": CommandEntry(
        "rmq.features.dead_letters.jobs.cli:job",
        "List, pause, resume and stop jobs, which change many messages in the background.",
    ),
    "batch": CommandEntry(
        "rmq.features.batches.cli:batch",
        "List, show, close and cancel batches of messages.",
    ),
    "signal": CommandEntry(
        "rmq.features.events.cli:signal",
        "Signal the event KEY with BODY, so that messages waiting for it continue.",
    ),
    "stats": CommandEntry(
        "rmq.features.topic_admin.cli.stats:stats",
        "Show the message counts of all topics, or all counts of one TOPIC.",
    ),
    "top": CommandEntry(
        "rmq.cli.top:top",
        "Show all topics on the whole screen until q is pressed.",
    ),
    "audit": CommandEntry(
        "rmq.features.audit.cli:audit",
        "Report whether messages of TOPIC were lost.",
    ),
    "audit-trail": CommandEntry(
        "rmq.features.audit_trail.cli:audit_trail",
        "List actions of users and programs, newest first.",
    ),
    "claim": CommandEntry(
        "rmq.features.claims.cli:claim", "Show the claim on the business key KEY of TOPIC."
    ),
    "offloaded": CommandEntry(
        "rmq.features.offloaded.cli:offloaded",
        "Remove unused objects of bodies that are stored outside of Redis (rmq.Offloaded).",
    ),
    "groups": CommandEntry(
        "rmq.features.groups.cli:groups",
        "List, pause, resume, release and purge groups of messages.",
    ),
    "pending": CommandEntry(
        "rmq.features.follow_ups.cli:pending",
        "List, send and drop follow-ups that are not yet in their topic.",
    ),
    "query": CommandEntry(
        "rmq.features.spark.cli:query",
        "List the queries of engines such as Spark, and release their messages.",
    ),
    "sink": CommandEntry(
        "rmq.features.spark.cli:sink",
        "List or delete the records of published batches of engines such as Spark.",
    ),
    "schedule": CommandEntry(
        "rmq.features.schedules.cli:schedule",
        "List, change and run schedules, which send messages at recurring times.",
    ),
    "ledger": CommandEntry(
        "rmq.cli.ledger:ledger", "Create, read and purge the ledger's table in a database."
    ),
    "outbox": CommandEntry(
        "rmq.cli.outbox:outbox",
        "Manage an outbox: messages in your database that RMQ sends after the commit.",
        ("rmq.cli.outbox_repair",),
    ),
    "worker": CommandEntry(
        "rmq.cli.worker:worker", "Run handlers, or list the processes that run them."
    ),
    "server": CommandEntry("rmq.cli.server:server", "Run the server until SIGTERM or Ctrl-C."),
    "token": CommandEntry(
        "rmq.features.tokens.cli:token",
        "Create, list and revoke tokens for the HTTP API and the console of rmq server.",
    ),
    "acl": CommandEntry("rmq.cli.acl:acl", "Print the minimal rights of a Redis user."),
    "doctor": CommandEntry(
        "rmq.features.doctor.cli:doctor", "List the ten worst problems of Redis and all topics."
    ),
    "explain": CommandEntry(
        "rmq.cli.explain:explain",
        "Explain the error NAME: what happened, what is lost, what to do.",
    ),
    "config": CommandEntry("rmq.cli.root:config", "Show the settings of this installation."),
    "completion": CommandEntry(
        "rmq.cli.root:completion", "Print the completion script for a SHELL: bash, zsh or fish."
    ),
}
type(cli).entries = COMMANDS
