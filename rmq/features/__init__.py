"""The features, one folder each. Only the doctor imports other features.

A file name means the same in each folder:

scripts   builders, one for each Lua script
flows     several steps, as generators
admin     the verbs of `Admin`
http      routes, with their requests and responses
pages     pages of the console
cli       commands
service   work that `rmq server` does in the background
"""
