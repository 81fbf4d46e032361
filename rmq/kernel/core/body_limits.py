"""Define limits for the size of bodies, and the error for a body that is too large.

Each topic also has a limit of its own, the setting `max_body`.
"""

from rmq.errors import PayloadTooLarge

BODY_DEFAULT = 256 * 1024  # `max_body` of a topic that does not set it, bytes
BODY_CEILING = 16 * 1024 * 1024  # largest `max_body`, bytes
COLLECT_MAX = 256 * 1024  # bytes of a list that may still grow: every merge rewrites the whole list
# Total bytes of the bodies in one call. During the call, Redis serves no other client.
CALL_BYTES = 4 * 1024 * 1024


def body_too_large(codec: str, size: int, max_body: int, *, offloads: bool) -> PayloadTooLarge:
    """Return the error for a body that is larger than its topic allows.

    Args:
        codec: Name of the codec that encoded the body.
        size: Size of the encoded body, bytes.
        max_body: Limit of the topic, bytes.
        offloads: Whether the codec stores large bodies outside of Redis.
    """
    hint = "Send a reference to the data, or create the topic with a larger max_body"
    if offloads:
        hint = (
            "It was not offloaded: only send and send_many offload, and not messages with a "
            "merge key"
        )
    return PayloadTooLarge(
        f"body: {size} bytes as {codec}; the topic's max_body is {max_body}. {hint}"
    )
