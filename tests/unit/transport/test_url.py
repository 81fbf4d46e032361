from rmq.transport import url


def test_a_password_is_redacted_anywhere_in_a_text() -> None:
    for text in (
        "redis://u:s3@cret@h/0",
        "x rediss://:s3cret@h y",
        "redis://h?password=s3cret&a=1",
    ):
        assert "cret" not in url.redact(text)
