"""Sends what tests/producers.rs expects, with kafka-python: `kafka_python.py BROKERS TOPIC`."""

import sys

from kafka import KafkaProducer

from events import CODECS, PARTITIONS, plain, transactions

NAME = "kafka-python"
brokers, topic = sys.argv[1:]


def producer(codec, **more):
    compression = None if codec == "none" else codec
    return KafkaProducer(
        bootstrap_servers=brokers, compression_type=compression, linger_ms=20, **more
    )


def send(client, codec, events):
    sent = [
        client.send(
            topic,
            partition=number % PARTITIONS,
            key=identifier.encode(),
            value=body.encode(),
            headers=[("producer", NAME.encode()), ("codec", codec.encode())],
        )
        for number, (identifier, body) in enumerate(events)
    ]
    client.flush(30)
    for future in sent:
        future.get(30)


for codec in CODECS:
    client = producer(codec)
    send(client, codec, plain(NAME, codec))
    client.close()

    client = producer(codec, transactional_id=f"{topic}-{NAME}-{codec}")
    client.init_transactions()
    for events, commit in transactions(NAME, codec):
        client.begin_transaction()
        send(client, codec, events)
        if commit:
            client.commit_transaction()
        else:
            client.abort_transaction()
    client.close()
