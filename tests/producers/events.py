"""The events that every producer sends, by codec. tests/producers.rs counts on them."""

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
PARTITIONS = 4


def event(producer, codec, kind, number):
    identifier = f"{producer}/{codec}/{kind}/{number}"
    return identifier, '{"id": "%s", "filler": "%s"}' % (identifier, "x" * 100)


def events(producer, codec, kind, count):
    return [event(producer, codec, kind, number) for number in range(count)]


def plain(producer, codec):
    """60 events, and 21 of them again, in another partition."""
    sent = events(producer, codec, "plain", 60)
    return sent + [sent[0]] + sent[:20]


def transactions(producer, codec):
    """Each with whether to commit it: 40 events, and 10 that came plain before; 20 aborted; 10 of
    those once more, to stay; and an aborted one at the end of the log."""
    committed = events(producer, codec, "committed", 40)
    aborted = events(producer, codec, "aborted", 10)
    retried = events(producer, codec, "retried", 10)
    return [
        (committed + plain(producer, codec)[:10], True),
        (aborted + retried, False),
        (retried, True),
        (aborted, False),
    ]
