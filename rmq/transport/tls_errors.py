"""Say what to mend where TLS fails: OpenSSL's words name the check that failed, not its cause."""

from __future__ import annotations

# Parts of the errors of Python's ssl, in the order in which they are looked for, and the advice.
_ADVICE = (
    (("Hostname mismatch", "IP address mismatch"),
     "The server's certificate is for another name: connect by a name that is in it, or have one "
     "made with this name"),
    (("CERTIFICATE_VERIFY_FAILED",),
     "The server's certificate is of no authority that this client trusts: give the authority's "
     "file as ssl_ca_certs"),
    (("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"),
     "The server does not speak TLS on this port: use its tls-port, or redis://"),
    (("Timeout connecting",),
     "Check that Redis runs there, and speaks TLS on this port: one without TLS does not answer. "
     "Use its tls-port, or redis://"),
    (("No such file",),
     "One of ssl_ca_certs, ssl_certfile and ssl_keyfile is not there"),
)  # fmt: skip


# How a server refuses a client. By TLS 1.3 it does so after the handshake, so the client may find
# the alert, or that the connection has ended.
_REFUSED = (
    "CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "HANDSHAKE_FAILURE",
    "EOF occurred", "reset by peer", "Broken pipe", "closed by server",
)  # fmt: skip


def advice(text: str, has_certificate: bool) -> str | None:
    """Return what to do about an error of a TLS connection; None if it is of another kind.

    Args:
        text: of the error.
        has_certificate: whether the client has a certificate.
    """
    for parts, told in _ADVICE:
        if any(part in text for part in parts):
            return told
    if not any(part in text for part in _REFUSED):
        return None
    if has_certificate:
        return (
            "It seems that the server does not accept the client's certificate: ssl_certfile has "
            "to be of an authority in its tls-ca-cert-file"
        )
    return "It seems that the server asks for a client certificate: give ssl_certfile, ssl_keyfile"
