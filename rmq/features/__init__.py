"""The features of RMQ, one folder for each. Only the doctor imports other features.

Files with the same name do the same work in each folder:

scripts   build the calls of Lua scripts
flows     combine several scripts, as generators
admin     operations of `Admin`
http      routes of the HTTP API, with their requests and responses
pages     pages of the console
cli       commands
service   background work of `rmq server`
"""
