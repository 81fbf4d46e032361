"""The way of a message, and what it needs; it knows no feature.

core        values and rules; no I/O
transport   all that speaks to Redis; only this package imports `redis`
topic       what every call needs to know of a topic
producer    send
consumer    receive, settle, hand back
handlers    functions that are registered for messages
"""
