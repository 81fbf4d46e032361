"""The features, a folder for each; none imports another, except that the doctor looks at all.

The name of a file means the same in each:

scripts   a builder for each Lua script
flows     several steps, as generators
admin     the verbs of `Admin`
http      routes, what they read and answer
pages     pages of the console
cli       commands
service   what `rmq server` does by itself
"""
