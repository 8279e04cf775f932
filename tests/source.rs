//! The Kafka source against a real broker.

#![cfg(feature = "kafka")]

mod support;

use std::time::Instant;

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::{Offset, TopicPartitionList};

use support::PATIENCE;

#[tokio::test]
async fn a_record_makes_the_round_trip_with_key_header_and_payload() {
    let topic = support::topic("round-trip", 1).await;
    support::producer(&support::brokers(), &[]).send_all(&topic, 0, ["a", "b"]);

    let consumer: BaseConsumer = support::client(&support::brokers())
        .set("group.id", &topic)
        .create()
        .expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(&topic, 0, Offset::Offset(0))
        .expect("an offset");
    consumer.assign(&assignment).expect("an assignment");

    let mut records = Vec::new();
    let begun = Instant::now();
    while records.len() < 2 && begun.elapsed() < PATIENCE {
        let Some(message) = consumer.poll(PATIENCE) else {
            continue;
        };
        let message = message.expect("a record").detach();
        let header = message
            .headers()
            .expect("headers")
            .get_as::<str>(0)
            .expect("text");
        let (name, value) = (header.key, header.value);
        assert_eq!(
            (name, value),
            (
                "event-id",
                std::str::from_utf8(message.payload().expect("a payload")).ok()
            )
        );
        assert_eq!(message.key(), message.payload());
        records.push((message.offset(), message.payload().map(<[u8]>::to_vec)));
    }
    let expected = vec![(0, Some(b"a".to_vec())), (1, Some(b"b".to_vec()))];
    assert_eq!(records, expected);
}
