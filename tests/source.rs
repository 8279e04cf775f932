//! The Kafka source against a real broker.

#![cfg(feature = "kafka")]

mod support;

use std::time::{Duration, Instant};

use onceonly::event::TopicPartition;
use onceonly::source::kafka::{KafkaHandle, KafkaSettings, KafkaSource, KafkaWorkerSource, Start};
use onceonly::source::{Assigned, Committed, Next, Source};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::producer::Producer;
use rdkafka::{Offset, TopicPartitionList};
use tokio::time::timeout;

use support::PATIENCE;

/// The two ways in which a group hands out partitions.
const STRATEGIES: [&str; 2] = ["cooperative-sticky", "range"];

fn settings(topic: &str, group: &str) -> KafkaSettings {
    let topics = vec![topic.to_owned()];
    let mut settings = KafkaSettings::new(support::brokers(), group, topics, Start::Earliest);
    let pairs = [
        ("topic.metadata.refresh.interval.ms", "500"),
        ("statistics.interval.ms", "200"),
        ("heartbeat.interval.ms", "300"),
    ];
    for (key, value) in pairs {
        settings.properties.insert(key.into(), value.into());
    }
    settings
}

fn with(mut settings: KafkaSettings, key: &str, value: &str) -> KafkaSettings {
    settings.properties.insert(key.into(), value.into());
    settings
}

/// A source with one worker.
fn open(settings: KafkaSettings) -> (KafkaWorkerSource, KafkaHandle) {
    let (mut ends, handle) = KafkaSource::open(settings, 1).expect("a source");
    (ends.remove(0), handle)
}

/// Ends a source whose worker has nothing in work.
async fn close(source: KafkaWorkerSource, handle: KafkaHandle) {
    drop(source);
    handle.close().await;
}

async fn next(source: &mut KafkaWorkerSource) -> Next {
    timeout(PATIENCE, source.next())
        .await
        .expect("something within the test's patience")
        .expect("no error")
}

async fn assigned(source: &mut KafkaWorkerSource) -> Vec<Assigned> {
    match next(source).await {
        Next::Assigned(assigned) => assigned,
        other => panic!("expected partitions, got {other:?}"),
    }
}

async fn revoked(source: &mut KafkaWorkerSource) -> Vec<TopicPartition> {
    loop {
        match next(source).await {
            Next::Revoked(partitions) => return partitions,
            Next::Batch(_) => {}
            other => panic!("expected a revocation, got {other:?}"),
        }
    }
}

/// A record as a test names it: partition, offset, session, payload.
type Record = (i32, i64, u64, String);

/// Reads batches until there are this many records.
async fn records(source: &mut KafkaWorkerSource, count: usize) -> Vec<Record> {
    let mut records = Vec::new();
    while records.len() < count {
        let batch = match next(source).await {
            Next::Batch(batch) => batch,
            other => panic!("expected records after {records:?}, got {other:?}"),
        };
        records.extend(batch.events().map(|event| {
            let session = batch.slices()[event.slot()].session;
            let payload = String::from_utf8(event.payload().expect("a payload").to_vec());
            (
                event.partition(),
                event.offset(),
                session,
                payload.expect("text"),
            )
        }));
    }
    records
}

/// Reads batches until a partition's position is this; returns how many records came.
async fn read_to(source: &mut KafkaWorkerSource, partition: i32, offset: i64) -> usize {
    let mut count = 0;
    loop {
        match next(source).await {
            Next::Batch(batch) => {
                count += batch.len();
                let mut slices = batch
                    .slices()
                    .iter()
                    .filter(|s| s.at.partition == partition);
                if slices.any(|slice| slice.next_offset == offset) {
                    return count;
                }
            }
            other => panic!("expected a position, got {other:?}"),
        }
    }
}

fn numbers(range: std::ops::Range<i64>) -> Vec<String> {
    range.map(|n| format!("event-{n}")).collect()
}

fn expected(partition: i32, range: std::ops::Range<i64>, session: u64) -> Vec<Record> {
    range
        .map(|n| (partition, n, session, format!("event-{n}")))
        .collect()
}

/// Produces `event-0`, `event-1`, … to a partition.
fn produce(topic: &str, partition: i32, range: std::ops::Range<i64>) {
    let payloads = numbers(range);
    let payloads = payloads.iter().map(String::as_str);
    support::producer(&support::brokers(), &[]).send_all(topic, partition, payloads);
}

/// What the group has committed for a partition, and the metadata with it.
fn committed(group: &str, topic: &str, partition: i32) -> Option<(i64, String)> {
    let consumer: BaseConsumer = support::client(&support::brokers())
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    list.add_partition(topic, partition);
    let list = consumer
        .committed_offsets(list, PATIENCE)
        .expect("an answer");
    let elements = list.elements();
    match elements[0].offset() {
        Offset::Offset(offset) => Some((offset, elements[0].metadata().to_owned())),
        _ => None,
    }
}

/// Commits as another tool would.
fn commit(group: &str, topic: &str, partition: i32, offset: i64, metadata: &str) {
    let consumer: BaseConsumer = support::client(&support::brokers())
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut list = TopicPartitionList::new();
    let mut element = list.add_partition(topic, partition);
    element
        .set_offset(Offset::Offset(offset))
        .expect("an offset");
    element.set_metadata(metadata);
    consumer.commit(&list, CommitMode::Sync).expect("a commit");
}

/// Waits until something holds.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "never came true: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

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
        let headers = message.headers().expect("headers");
        let header = headers.get_as::<str>(0).expect("text");
        assert_eq!(header.key, "event-id");
        assert_eq!(header.value.map(str::as_bytes), message.payload());
        assert_eq!(message.key(), message.payload());
        records.push((message.offset(), message.payload().map(<[u8]>::to_vec)));
    }
    let expected = vec![(0, Some(b"a".to_vec())), (1, Some(b"b".to_vec()))];
    assert_eq!(records, expected);
}

#[tokio::test]
async fn nothing_is_delivered_of_a_partition_before_it_is_started() {
    for strategy in STRATEGIES {
        let topic = support::topic("start", 2).await;
        for partition in [0, 1] {
            produce(&topic, partition, 0..5);
        }
        let settings = settings(&topic, &topic);
        let (mut source, handle) = open(with(settings, "partition.assignment.strategy", strategy));

        let partitions = assigned(&mut source).await;
        let ats: Vec<_> = partitions.iter().map(|a| a.at.partition).collect();
        assert_eq!(ats, [0, 1], "all at once and in order");
        for partition in &partitions {
            assert_eq!((partition.low, partition.high), (0, 5));
            assert_eq!(partition.committed, None);
            assert!(partition.topic_id.is_some() && partition.cluster_id.is_some());
        }
        // Were the other one read, its records would come along with these.
        source.start(&partitions[1].at, 7, 2);
        assert_eq!(records(&mut source, 3).await, expected(1, 2..5, 7));
        source.start(&partitions[0].at, 8, 0);
        assert_eq!(records(&mut source, 5).await, expected(0, 0..5, 8));
        close(source, handle).await;
    }
}

#[tokio::test]
async fn a_record_keeps_key_headers_timestamp_and_null_payload() {
    use rdkafka::message::{Header, OwnedHeaders};
    use rdkafka::producer::BaseRecord;

    let topic = support::topic("copy", 1).await;
    let producer = support::producer(&support::brokers(), &[]);
    let headers = OwnedHeaders::new()
        .insert(Header {
            key: "a",
            value: Some("1"),
        })
        .insert(Header {
            key: "b",
            value: None::<&str>,
        });
    let record = BaseRecord::<str, str>::to(&topic)
        .key("k")
        .timestamp(1_234)
        .headers(headers);
    producer.0.send(record).map_err(|(e, _)| e).expect("room");
    producer.flush();

    let (mut source, handle) = open(settings(&topic, &topic));
    let partitions = assigned(&mut source).await;
    source.start(&partitions[0].at, 1, 0);
    let Next::Batch(batch) = next(&mut source).await else {
        panic!("expected a batch");
    };
    let event = batch.event(0);
    assert_eq!((event.key(), event.payload()), (Some(&b"k"[..]), None));
    assert_eq!(event.timestamp_ms(), Some(1_234));
    let headers: Vec<_> = event.headers().collect();
    assert_eq!(headers, [("a", Some(&b"1"[..])), ("b", None)]);
    close(source, handle).await;
}

#[tokio::test]
async fn after_a_seek_only_the_new_session_is_delivered() {
    let topic = support::topic("seek", 1).await;
    produce(&topic, 0, 0..20_000);
    let mut settings = settings(&topic, &topic);
    settings.max_events = 10;
    let (mut source, handle) = open(settings);
    let at = assigned(&mut source).await[0].at.clone();

    // Each seek meets thousands of records that the client has fetched for the session before.
    let mut session = 0;
    for offset in [0, 15_000, 3, 19_000, 0, 7] {
        session += 1;
        source.start(&at, session, offset);
        let mut records = Vec::new();
        while records.len() < 10 {
            let batch = self::records(&mut source, 1).await;
            records.extend(batch.into_iter().filter(|(_, _, s, _)| *s == session));
        }
        records.truncate(10);
        assert_eq!(records, expected(0, offset..offset + 10, session));
    }
    close(source, handle).await;
}

#[tokio::test]
async fn a_halted_partition_is_silent_until_it_is_started_again() {
    let topic = support::topic("halt", 2).await;
    let (mut source, handle) = open(settings(&topic, &topic));
    let partitions = assigned(&mut source).await;
    let (zero, one) = (partitions[0].at.clone(), partitions[1].at.clone());
    produce(&topic, 0, 0..1);
    source.start(&zero, 1, 0);
    source.start(&one, 2, 0);
    assert_eq!(records(&mut source, 1).await, expected(0, 0..1, 1));
    source.halt(&zero);
    eventually("halted", || !handle.state().partitions[0].reading).await;
    produce(&topic, 0, 1..3);
    produce(&topic, 1, 0..1);
    assert_eq!(records(&mut source, 1).await, expected(1, 0..1, 2));
    source.start(&zero, 3, 1);
    assert_eq!(records(&mut source, 2).await, expected(0, 1..3, 3));
    close(source, handle).await;
}

#[tokio::test]
async fn acknowledged_offsets_are_committed_in_our_name_and_told_from_foreign_ones() {
    let topic = support::topic("committed", 2).await;
    for partition in [0, 1] {
        produce(&topic, partition, 0..5);
    }
    commit(&topic, &topic, 1, 2, "an operator, \u{fffd}");
    let (mut source, handle) = open(settings(&topic, &topic));
    let partitions = assigned(&mut source).await;
    assert_eq!(partitions[0].committed, None);
    let foreign = Committed {
        offset: 2,
        ours: false,
    };
    assert_eq!(partitions[1].committed, Some(foreign));

    source.start(&partitions[0].at, 1, 0);
    records(&mut source, 5).await;
    source.acknowledge(&partitions[0].at, 4);
    eventually("committed while running", || {
        committed(&topic, &topic, 0).is_some_and(|(offset, _)| offset == 4)
    })
    .await;
    source.acknowledge(&partitions[0].at, 5);
    source.acknowledge(&partitions[0].at, 3);
    let closing = tokio::spawn(async move { handle.close().await });
    let gone = revoked(&mut source).await;
    source.released(&gone);
    closing.await.expect("closed");
    let (offset, metadata) = committed(&topic, &topic, 0).expect("a commit");
    assert_eq!(offset, 5, "the last one counts and none goes back");
    assert!(metadata.starts_with("onceonly/1 "), "{metadata}");

    let (mut source, handle) = open(settings(&topic, &topic));
    let partitions = assigned(&mut source).await;
    let ours = Committed {
        offset: 5,
        ours: true,
    };
    assert_eq!(partitions[0].committed, Some(ours));
    assert_eq!(partitions[1].committed, Some(foreign));
    close(source, handle).await;
}

#[tokio::test]
async fn every_codec_is_read() {
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let topic = support::topic(codec, 1).await;
        let properties = [("compression.type", codec), ("linger.ms", "50")];
        let payloads = numbers(0..500);
        support::producer(&support::brokers(), &properties).send_all(
            &topic,
            0,
            payloads.iter().map(String::as_str),
        );
        let (mut source, handle) = open(settings(&topic, &topic));
        let partitions = assigned(&mut source).await;
        source.start(&partitions[0].at, 1, 0);
        let records = records(&mut source, 500).await;
        assert_eq!(records, expected(0, 0..500, 1), "{codec}");
        close(source, handle).await;
    }
}

#[tokio::test]
async fn an_aborted_transaction_delivers_nothing_and_the_position_reaches_the_end() {
    let topic = support::topic("abort", 1).await;
    let properties = [("transactional.id", &*topic)];
    let producer = support::producer(&support::brokers(), &properties);
    producer
        .0
        .init_transactions(PATIENCE)
        .expect("a producer id");
    producer.0.begin_transaction().expect("a transaction");
    producer.send_all(&topic, 0, ["aborted-1", "aborted-2"]);
    producer.0.abort_transaction(PATIENCE).expect("an abort");

    let (mut source, handle) = open(settings(&topic, &topic));
    let at = assigned(&mut source).await[0].at.clone();
    source.start(&at, 1, 0);
    assert_eq!(
        read_to(&mut source, 0, 3).await,
        0,
        "two records and a marker"
    );

    producer.0.begin_transaction().expect("a transaction");
    producer.send_all(&topic, 0, ["committed"]);
    producer.0.commit_transaction(PATIENCE).expect("a commit");
    assert_eq!(read_to(&mut source, 0, 5).await, 1, "a record and a marker");
    source.acknowledge(&at, 5);
    eventually("no lag", || handle.state().partitions[0].lag == Some(0)).await;
    close(source, handle).await;
}

#[tokio::test]
async fn an_open_transaction_ends_the_log_that_can_be_read() {
    let topic = support::topic("open-transaction", 1).await;
    produce(&topic, 0, 0..2);
    let properties = [("transactional.id", &*topic)];
    let producer = support::producer(&support::brokers(), &properties);
    producer
        .0
        .init_transactions(PATIENCE)
        .expect("a producer id");
    producer.0.begin_transaction().expect("a transaction");
    producer.send_all(&topic, 0, ["open"]);

    let mut settings = settings(&topic, &topic);
    settings.start = Start::Latest;
    let (mut source, handle) = open(settings);
    let partitions = assigned(&mut source).await;
    assert_eq!((partitions[0].low, partitions[0].high), (0, 2));
    assert_eq!(source.starts(&topic).await.expect("starts"), [(0, 2)]);
    producer.0.abort_transaction(PATIENCE).expect("an abort");
    close(source, handle).await;
}

#[tokio::test]
async fn a_single_event_is_handed_over_at_once() {
    let topic = support::topic("single", 1).await;
    let mut settings = settings(&topic, &topic);
    settings.max_wait = Duration::from_secs(60);
    let (mut source, handle) = open(settings);
    let at = assigned(&mut source).await[0].at.clone();
    source.start(&at, 1, 0);
    for n in 0..3 {
        produce(&topic, 0, n..n + 1);
        let records = timeout(Duration::from_secs(5), records(&mut source, 1)).await;
        assert_eq!(
            records.expect("no waiting for more"),
            expected(0, n..n + 1, 1)
        );
    }
    close(source, handle).await;
}

#[tokio::test]
async fn starts_are_resolved_for_every_partition() {
    let topic = support::topic("starts", 2).await;
    let producer = support::producer(&support::brokers(), &[]);
    for (offset, time) in [1_000, 2_000, 3_000].into_iter().enumerate() {
        let payload = offset.to_string();
        let record = rdkafka::producer::BaseRecord::<str, str>::to(&topic)
            .partition(1)
            .payload(&payload)
            .timestamp(time);
        producer.0.send(record).map_err(|(e, _)| e).expect("room");
    }
    producer.flush();
    commit(&topic, &topic, 0, 0, "");
    commit(&topic, &topic, 1, 1, "");
    let starts = [
        (Start::Earliest, [(0, 0), (1, 0)]),
        (Start::Latest, [(0, 0), (1, 3)]),
        (Start::Committed, [(0, 0), (1, 1)]),
        (Start::Offset(0), [(0, 0), (1, 0)]),
        (Start::TimestampMs(1_001), [(0, 0), (1, 1)]),
        (Start::TimestampMs(9_000), [(0, 0), (1, 3)]),
    ];
    for (start, offsets) in starts {
        let mut settings = settings(&topic, &topic);
        settings.start = start;
        let (mut source, handle) = open(settings);
        let found = source.starts(&topic).await.expect("starts");
        assert_eq!(found, offsets, "{start:?}");
        close(source, handle).await;
    }
}

#[tokio::test]
async fn a_start_that_is_not_there_is_fatal_and_says_what_to_do() {
    let topic = support::topic("no-start", 1).await;
    for (start, words) in [
        (Start::Committed, "no committed offset"),
        (Start::Offset(9), "holds offsets 0 to 0"),
    ] {
        let mut settings = settings(&topic, &topic);
        settings.start = start;
        let (mut source, handle) = open(settings);
        let error = source.starts(&topic).await.expect_err("no start");
        assert_eq!(error.class(), onceonly::error::Class::Fatal);
        assert!(error.to_string().contains(words), "{error}");
        close(source, handle).await;
    }
}
