"""The commands of `rmq` by name: their modules, and their sentences in `rmq --help`."""

from __future__ import annotations

from rmq.cli_framework.app import Place, cli

# A new command has a line here; the tests compare the sentence with the command's own help.
COMMANDS = {
    "ping": Place("rmq.cli.root:ping", "Ping Redis; print its version and how long it took."),
    "topic": Place(
        "rmq.features.topic_admin.cli.topics:topic", "Create, change, delete, list and show topics."
    ),
    "send": Place("rmq.features.messages.cli.send:send", "Send BODY to TOPIC."),
    "peek": Place(
        "rmq.features.messages.cli.inspect:peek", "Show messages of TOPIC without receiving them."
    ),
    "get": Place(
        "rmq.features.messages.cli.inspect:get",
        "Show the message ID of TOPIC in full, from any queue.",
    ),
    "tail": Place(
        "rmq.features.messages.cli.tail:tail",
        "Show messages of TOPIC as they are accepted, until Ctrl-C.",
    ),
    "cancel": Place(
        "rmq.features.messages.cli.change:cancel",
        "Cancel waiting messages of TOPIC; - reads ids from stdin.",
    ),
    "reschedule": Place(
        "rmq.features.messages.cli.change:reschedule",
        "Change the due time of waiting messages of TOPIC; - reads ids from stdin.",
    ),
    "priority": Place(
        "rmq.features.messages.cli.change:priority",
        "Change the priority of waiting messages of TOPIC; - reads ids from stdin.",
    ),
    "dlq": Place(
        "rmq.features.dead_letters.cli.dlq:dlq", "List, redrive (send back) and purge dead letters."
    ),
    "purge": Place(
        "rmq.features.dead_letters.cli.dlq:purge",
        "Delete all waiting messages of TOPIC permanently, including delayed messages.",
    ),
    "job": Place(
        "rmq.features.dead_letters.jobs.cli:job",
        "List, pause, resume and stop jobs: redrives and purges that run in the background.",
    ),
    "stats": Place(
        "rmq.features.topic_admin.cli.stats:stats",
        "Show the counts of all topics, or all counts of one TOPIC.",
    ),
    "top": Place(
        "rmq.cli.top:top",
        "Show all topics on the whole screen until q is pressed.",
    ),
    "audit": Place(
        "rmq.features.audit.cli:audit",
        "Report whether messages of TOPIC, or of any topic, were lost.",
    ),
    "audit-trail": Place(
        "rmq.features.audit_trail.cli:audit_trail",
        "List actions of users and programs, newest first.",
    ),
    "claim": Place(
        "rmq.features.claims.cli:claim", "Show the claim on the business key KEY of TOPIC."
    ),
    "offloaded": Place(
        "rmq.features.offloaded.cli:offloaded",
        "Bodies outside of Redis (rmq.Offloaded): remove unused objects.",
    ),
    "groups": Place(
        "rmq.features.groups.cli:groups",
        "List, pause, resume, release and purge groups of messages.",
    ),
    "pending": Place(
        "rmq.features.follow_ups.cli:pending",
        "List, send and drop follow-ups that are not yet in their topic.",
    ),
    "query": Place(
        "rmq.features.spark.cli:query",
        "List queries that hold messages, such as Spark's, and release their messages.",
    ),
    "sink": Place(
        "rmq.features.spark.cli:sink",
        "List or delete the records of queries that publish, such as Spark's.",
    ),
    "schedule": Place(
        "rmq.features.schedules.cli:schedule",
        "List, change and run schedules, which send messages at recurring times.",
    ),
    "ledger": Place(
        "rmq.cli.ledger:ledger", "Create, read and purge the ledger's table in a database."
    ),
    "outbox": Place(
        "rmq.cli.outbox:outbox",
        "Manage an outbox: messages in your database that RMQ sends after the commit.",
        ("rmq.cli.outbox_repair",),
    ),
    "worker": Place("rmq.cli.worker:worker", "Run handlers, or list the processes that run them."),
    "server": Place("rmq.cli.server:server", "Run the server until SIGTERM or Ctrl-C."),
    "token": Place(
        "rmq.features.tokens.cli:token",
        "Create, list and revoke tokens for the HTTP API and the console of rmq server.",
    ),
    "acl": Place("rmq.cli.acl:acl", "Print the minimal rights of a Redis user."),
    "doctor": Place(
        "rmq.features.doctor.cli:doctor", "Check Redis and all topics without changing them."
    ),
    "explain": Place(
        "rmq.cli.explain:explain",
        "Explain the error NAME: what happened, what is lost, what to do.",
    ),
    "config": Place("rmq.cli.root:config", "Show the settings of this installation."),
    "completion": Place(
        "rmq.cli.root:completion", "Print the completion script for a SHELL: bash, zsh or fish."
    ),
}
type(cli).places = COMMANDS
