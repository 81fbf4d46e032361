"""Public names for connectors: programs that connect RMQ to an engine, as `spark_connector` does.

A connector needs more than the names of `rmq`. This module has checks of user input, the codecs,
and functions for the stored records that `rmq.Query` reads. A connector that reads the records
itself avoids an object for each message. `SharedData` is for replies and broadcasts. It publishes
data, and stores values, sets and lists.

    import rmq
    from rmq.connectors import value_of

    query = rmq.Client(url).topic("orders").query(run, owner)
    for block in query.read(slot=0, after=0, upto=1000):
        values = [value_of(record) for record in block.records]
"""

from rmq.client.shared_data import AsyncSharedData, AsyncSharedSubscription, Published
from rmq.client.shared_data_blocking import SharedData, SharedSubscription
from rmq.features.history.flows import parse_entry
from rmq.features.spark.fail_flows import FailedMessage, Failures
from rmq.features.spark.flows import Settlement
from rmq.features.spark.joint_queries import JointQueries
from rmq.features.spark.query import Held, open_parts
from rmq.features.spark.read_flows import Block, HeldPart
from rmq.features.spark.stage import check_text as check_query
from rmq.kernel.core.codec import Codec, by_name as codec_of
from rmq.kernel.core.ids import SIZE as ID_BYTES, TEXT_SIZE as ID_CHARS, join_texts as id_texts
from rmq.kernel.core.keys import check_name
from rmq.kernel.core.message import Merge, QueueName, parse_queue
from rmq.kernel.core.record import BARE, Record, fields_of, is_bare, read as envelope_of, value_of
from rmq.kernel.topic.paging import QueueBlock, QueuePart, open_queue
from rmq.kernel.transport.url import Address, parse as parse_url, redact as redact_url

__all__ = [
    "BARE", "ID_BYTES", "ID_CHARS", "Address", "AsyncSharedData", "AsyncSharedSubscription",
    "Block", "Codec", "FailedMessage", "Failures", "Held", "HeldPart", "JointQueries", "Merge",
    "Published", "QueueBlock", "QueueName", "QueuePart", "Record", "Settlement", "SharedData",
    "SharedSubscription",
    "check_name", "check_query", "codec_of", "envelope_of", "fields_of", "id_texts", "is_bare",
    "open_parts", "open_queue", "parse_entry", "parse_queue", "parse_url", "redact_url", "value_of",
]  # fmt: skip
