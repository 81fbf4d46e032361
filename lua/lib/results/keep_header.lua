-- The headers of a message that keeps its result, and of a member of a batch
-- (lib/results/keep_mark), in msgpack.
local KEEP_HEADER = '\168rmq-keep'
local BATCH_HEADER = '\169rmq-batch'
