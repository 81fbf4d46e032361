"""`/api/v1`: the verbs of Admin over HTTP, as JSON.

operation     a route, read from the function that answers it; the table of them
problems      errors as application/problem+json
cursors       where a list goes on
views         what a client reads of a message, a schedule, a topic; a file for each matter
bodies        what a client sends
topics, messages, leases, dead_letters, jobs, schedules, queries, audits, about
              the functions that answer, and so the routes
lines         answers as NDJSON, which are sent while they are read
openapi       the OpenAPI document, made from the table
application   the table as Starlette's routes, and the client of Redis while they are served

Nothing here is imported before a server is made: msgspec and Starlette are an extra.
"""
