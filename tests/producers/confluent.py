"""Sends what tests/producers.rs expects, with confluent-kafka: `confluent.py BROKERS TOPIC`."""

import sys

from confluent_kafka import Producer

from events import CODECS, PARTITIONS, plain, transactions

NAME = "confluent-kafka"
brokers, topic = sys.argv[1:]


def producer(codec, **more):
    return Producer({"bootstrap.servers": brokers, "compression.type": codec, "linger.ms": 20, **more})


def send(client, codec, events):
    for number, (identifier, body) in enumerate(events):
        client.produce(
            topic,
            partition=number % PARTITIONS,
            key=identifier,
            value=body,
            headers=[("producer", NAME), ("codec", codec)],
        )
        client.poll(0)


for codec in CODECS:
    client = producer(codec)
    send(client, codec, plain(NAME, codec))
    if client.flush(30) > 0:
        sys.exit("plain events were not taken")

    client = producer(codec, **{"transactional.id": f"{topic}-{NAME}-{codec}"})
    client.init_transactions(30)
    for events, commit in transactions(NAME, codec):
        client.begin_transaction()
        send(client, codec, events)
        # An abort would drop what is not sent yet: it shall stand in the log.
        client.flush(30)
        if commit:
            client.commit_transaction(30)
        else:
            client.abort_transaction(30)
