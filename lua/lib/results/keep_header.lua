-- The header of a message that keeps its result (lib/results/keep_mark), in msgpack.
local KEEP_HEADER = '\168rmq-keep'
