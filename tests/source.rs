//! The Kafka source against a real broker.

#![cfg(feature = "kafka")]

mod support;

use std::time::{Duration, Instant};

use onceonly::event::TopicPartition;
use onceonly::source::kafka::{KafkaHandle, KafkaSettings, KafkaSource, KafkaWorkerSource, Start};
use onceonly::source::{Assigned, Committed, Next, Source};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::message::{Headers, Message};
use rdkafka::mocking::MockCluster;
use rdkafka::producer::Producer;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};
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
    committed_at(&support::brokers(), group, topic, partition)
}

fn committed_at(brokers: &str, group: &str, topic: &str, partition: i32) -> Option<(i64, String)> {
    let consumer: BaseConsumer = support::client(brokers)
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
    assert_eq!(begin(&mut source, &topic).await.expect("starts"), [(0, 2)]);
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
        let found = begin(&mut source, &topic).await.expect("starts");
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
        let error = begin(&mut source, &topic).await.expect_err("no start");
        assert_eq!(error.class(), onceonly::error::Class::Fatal);
        assert!(error.to_string().contains(words), "{error}");
        close(source, handle).await;
    }
}

/// A worker that starts what it gets where its group left off, and acknowledges all it reads.
/// Ends with the source, and returns what it read.
fn work(mut source: KafkaWorkerSource) -> tokio::task::JoinHandle<Vec<Record>> {
    tokio::spawn(async move {
        let mut read = Vec::new();
        let mut session = 0;
        loop {
            match source.next().await.expect("no error") {
                Next::Assigned(partitions) => {
                    for partition in partitions {
                        session += 1;
                        let offset = partition.committed.map_or(partition.low, |c| c.offset);
                        source.start(&partition.at, session, offset);
                    }
                }
                Next::Batch(batch) => {
                    for event in batch.events() {
                        let session = batch.slices()[event.slot()].session;
                        let payload = event.payload().expect("a payload").to_vec();
                        let payload = String::from_utf8(payload).expect("text");
                        read.push((event.partition(), event.offset(), session, payload));
                    }
                    for slice in batch.slices() {
                        source.acknowledge(&slice.at, slice.next_offset);
                    }
                }
                Next::Revoked(partitions) => source.released(&partitions),
                Next::Closed => return read,
            }
        }
    })
}

/// What a group read: every record of every partition, and none twice.
fn assert_all_once(mut read: Vec<Record>, partitions: i32, count: i64) {
    read.sort();
    let read: Vec<_> = read
        .into_iter()
        .map(|(p, o, _, payload)| (p, o, payload))
        .collect();
    let all: Vec<_> = (0..partitions)
        .flat_map(|p| (0..count).map(move |n| (p, n, format!("event-{n}"))))
        .collect();
    assert_eq!(read, all);
}

#[tokio::test]
async fn a_second_member_gets_released_partitions_where_the_first_one_stopped() {
    for strategy in STRATEGIES {
        let topic = support::topic("second", 4).await;
        for partition in 0..4 {
            produce(&topic, partition, 0..10);
        }
        let settings = || {
            let settings = settings(&topic, &topic);
            with(settings, "partition.assignment.strategy", strategy)
        };
        let (first, first_handle) = open(settings());
        let first = work(first);
        eventually("all is read", || {
            let partitions = first_handle.state().partitions;
            partitions.len() == 4 && partitions.iter().all(|p| p.lag == Some(0))
        })
        .await;

        let (mut second, second_handle) = open(settings());
        let partitions = assigned(&mut second).await;
        assert_eq!(partitions.len(), 2, "{strategy}");
        for partition in &partitions {
            let ours = Committed {
                offset: 10,
                ours: true,
            };
            assert_eq!(partition.committed, Some(ours), "{strategy}");
            start_at_committed(&mut second, partition);
        }
        for partition in 0..4 {
            produce(&topic, partition, 10..20);
        }
        let mut read = records(&mut second, 20).await;
        drop(second);
        second_handle.close().await;
        eventually("the first has all again and has read it", || {
            (0..4).all(|p| committed(&topic, &topic, p).is_some_and(|(o, _)| o == 20))
        })
        .await;
        first_handle.close().await;
        // The second acknowledged nothing, so that the first may have read its records again.
        let mine: Vec<i32> = partitions.iter().map(|a| a.at.partition).collect();
        let first = first.await.expect("a worker");
        read.extend(
            first
                .into_iter()
                .filter(|(p, o, _, _)| *o < 10 || !mine.contains(p)),
        );
        assert_all_once(read, 4, 20);
    }
}

fn start_at_committed(source: &mut KafkaWorkerSource, partition: &Assigned) {
    let offset = partition.committed.map_or(partition.low, |c| c.offset);
    source.start(&partition.at, 1, offset);
}

#[tokio::test]
async fn members_that_come_and_go_lose_and_repeat_nothing() {
    for strategy in STRATEGIES {
        let topic = support::topic("come-and-go", 6).await;
        let settings = || {
            let settings = settings(&topic, &topic);
            with(settings, "partition.assignment.strategy", strategy)
        };
        let (mut ends, stays) = KafkaSource::open(settings(), 2).expect("a source");
        let mut workers = vec![work(ends.remove(0)), work(ends.remove(0))];
        let mut count = 0;
        for _ in 0..4 {
            let (end, comes) = open(settings());
            workers.push(work(end));
            for partition in 0..6 {
                produce(&topic, partition, count..count + 50);
            }
            count += 50;
            eventually("both have partitions", || {
                let parts = [&stays, &comes].map(|h| h.state().partitions.len());
                parts == [3, 3]
            })
            .await;
            comes.close().await;
        }
        eventually("one has all and has read it", || {
            let partitions = stays.state().partitions;
            partitions.len() == 6 && partitions.iter().all(|p| p.lag == Some(0) && p.reading)
        })
        .await;
        eventually("all is committed", || {
            (0..6).all(|p| committed(&topic, &topic, p).is_some_and(|(o, _)| o == count))
        })
        .await;
        stays.close().await;
        let mut read = Vec::new();
        for worker in workers {
            read.extend(worker.await.expect("a worker"));
        }
        assert_all_once(read, 6, count);
    }
}

#[tokio::test]
async fn a_worker_that_does_not_let_go_holds_a_rebalance_up_only_for_a_while() {
    let topic = support::topic("stuck", 2).await;
    produce(&topic, 0, 0..5);
    let mut first_settings = settings(&topic, &topic);
    first_settings.drain_timeout = Duration::from_millis(700);
    let (mut stuck, first_handle) = open(first_settings);
    let partitions = assigned(&mut stuck).await;
    for partition in &partitions {
        stuck.start(&partition.at, 1, 0);
    }
    records(&mut stuck, 5).await;
    for partition in &partitions {
        stuck.acknowledge(&partition.at, 3);
    }

    let begun = Instant::now();
    let (mut second, second_handle) = open(settings(&topic, &topic));
    let got = assigned(&mut second).await;
    assert!(
        begun.elapsed() >= Duration::from_millis(700),
        "it was waited for"
    );
    assert_eq!(got.len(), 1);
    let ours = Committed {
        offset: 3,
        ours: true,
    };
    assert_eq!(
        got[0].committed,
        Some(ours),
        "what was acknowledged is committed"
    );
    timeout(PATIENCE, stuck.interrupted())
        .await
        .expect("word of it");
    let gone = revoked(&mut stuck).await;
    assert_eq!(gone, [got[0].at.clone()]);
    stuck.released(&gone);
    close(stuck, first_handle).await;
    close(second, second_handle).await;
}

#[tokio::test]
async fn interrupted_returns_only_when_partitions_are_taken_or_the_source_ends() {
    let topic = support::topic("interrupted", 1).await;
    produce(&topic, 0, 0..5);
    let (mut source, handle) = open(settings(&topic, &topic));
    let partitions = assigned(&mut source).await;
    source.start(&partitions[0].at, 1, 0);
    eventually("records wait", || handle.state().in_flight_bytes > 0).await;
    let quiet = timeout(Duration::from_millis(100), source.interrupted()).await;
    assert!(quiet.is_err(), "records are no interruption");

    let closing = tokio::spawn(async move { handle.close().await });
    timeout(PATIENCE, source.interrupted())
        .await
        .expect("word of the end");
    let gone = revoked(&mut source).await;
    source.released(&gone);
    closing.await.expect("closed");
    timeout(PATIENCE, source.interrupted())
        .await
        .expect("the end");
    assert!(matches!(next(&mut source).await, Next::Closed));
    assert!(matches!(next(&mut source).await, Next::Closed), "for good");
}

#[tokio::test]
async fn what_is_in_flight_is_bounded_and_its_member_stays_in_the_group() {
    const LIMIT: usize = 256 << 10;
    let topic = support::topic("in-flight", 3).await;
    let payload = "x".repeat(1_000);
    for partition in 0..3 {
        let payloads = std::iter::repeat_n(&*payload, 1_000);
        support::producer(&support::brokers(), &[]).send_all(&topic, partition, payloads);
    }
    let mut settings = settings(&topic, &topic);
    settings.in_flight_bytes = LIMIT;
    settings.max_events = 50;
    settings.drain_timeout = Duration::from_secs(1);
    for key in ["session.timeout.ms", "max.poll.interval.ms"] {
        settings.properties.insert(key.into(), "2000".into());
    }
    let (mut source, handle) = open(settings);
    for partition in assigned(&mut source).await {
        source.start(&partition.at, 1, 0);
    }
    eventually("full", || handle.state().in_flight_bytes >= LIMIT).await;
    // The limit, and the record that met it. Twice the longest that the group waits for a poll.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        let held = handle.state().in_flight_bytes;
        assert!(held < LIMIT + 4_000, "{held} bytes are in flight");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(handle.state().rebalances, 1, "only the assignment");
    let mut read = records(&mut source, 3_000).await;
    read.sort();
    let offsets: Vec<_> = read.iter().map(|(p, o, _, _)| (*p, *o)).collect();
    let all: Vec<_> = (0..3)
        .flat_map(|p| (0..1_000).map(move |o| (p, o)))
        .collect();
    assert_eq!(offsets, all, "all of it, in order and once");
    close(source, handle).await;
}

#[tokio::test]
async fn a_record_larger_than_a_batch_comes_alone() {
    let topic = support::topic("large", 1).await;
    let large = "x".repeat(5_000);
    support::producer(&support::brokers(), &[("linger.ms", "100")]).send_all(
        &topic,
        0,
        ["a", "b", &*large, "c"],
    );
    let mut settings = settings(&topic, &topic);
    settings.max_bytes = 2_000;
    let (mut source, handle) = open(settings);
    let partitions = assigned(&mut source).await;
    source.start(&partitions[0].at, 1, 0);
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < 4 {
        if let Next::Batch(batch) = next(&mut source).await {
            sizes.push(batch.len());
            let offsets: Vec<_> = batch.events().map(|event| event.offset()).collect();
            assert!(batch.len() == 1 || !offsets.contains(&2), "{offsets:?}");
        }
    }
    close(source, handle).await;
}

#[tokio::test]
async fn a_topic_made_again_has_another_id() {
    let topic = support::topic("again", 1).await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let (mut source, handle) = open(settings(&topic, &support::unique("again")));
        ids.push(assigned(&mut source).await[0].topic_id);
        close(source, handle).await;
        support::delete_topic(&topic).await;
        support::create_topic_when_free(&topic, 1).await;
    }
    assert!(ids.iter().all(Option::is_some), "{ids:?}");
    assert_ne!(ids[0], ids[1]);
}

#[tokio::test]
async fn a_position_outside_of_the_log_goes_back_to_its_worker() {
    for strategy in STRATEGIES {
        let topic = support::topic("outside", 2).await;
        for partition in [0, 1] {
            produce(&topic, partition, 0..10);
        }
        support::delete_records(&topic, 0, 6).await;
        let settings = settings(&topic, &topic);
        let (mut source, handle) = open(with(settings, "partition.assignment.strategy", strategy));
        let partitions = assigned(&mut source).await;
        let (zero, one) = (partitions[0].at.clone(), partitions[1].at.clone());
        source.start(&zero, 1, 2);
        let fresh = assigned(&mut source).await;
        assert_eq!(fresh.len(), 1);
        assert_eq!((&fresh[0].at, fresh[0].low, fresh[0].high), (&zero, 6, 10));
        assert!(
            !handle.state().partitions[0].reading,
            "it stands still until told"
        );

        source.start(&one, 2, 8);
        assert_eq!(records(&mut source, 2).await, expected(1, 8..10, 2));
        source.start(&zero, 3, 6);
        assert_eq!(
            records(&mut source, 4).await,
            expected(0, 6..10, 3),
            "{strategy}"
        );
        produce(&topic, 1, 10..11);
        assert_eq!(records(&mut source, 1).await, expected(1, 10..11, 2));
        close(source, handle).await;
    }
}

#[tokio::test]
async fn reassign_commits_exactly_this_offset_and_offers_the_partition_again() {
    let topic = support::topic("reassign", 2).await;
    produce(&topic, 0, 0..10);
    let (mut source, handle) = open(settings(&topic, &topic));
    let at = assigned(&mut source).await[0].at.clone();
    source.start(&at, 1, 0);
    records(&mut source, 10).await;
    source.acknowledge(&at, 10);
    eventually("committed", || {
        committed(&topic, &topic, 0).is_some_and(|(offset, _)| offset == 10)
    })
    .await;

    source.reassign(&at, 4);
    let again = assigned(&mut source).await;
    assert_eq!(again.len(), 1);
    let ours = Committed {
        offset: 4,
        ours: true,
    };
    assert_eq!((&again[0].at, again[0].committed), (&at, Some(ours)));
    assert!(!handle.state().partitions[0].reading);
    source.start(&at, 2, 4);
    assert_eq!(records(&mut source, 6).await, expected(0, 4..10, 2));
    source.acknowledge(&at, 7);
    eventually("committed behind the reassignment", || {
        committed(&topic, &topic, 0).is_some_and(|(offset, _)| offset == 7)
    })
    .await;
    close(source, handle).await;
}

#[tokio::test]
async fn partitions_are_spread_over_the_workers() {
    let topic = support::topic("spread", 5).await;
    let (mut ends, handle) = KafkaSource::open(settings(&topic, &topic), 2).expect("a source");
    let mut counts = Vec::new();
    for end in &mut ends {
        counts.push(assigned(end).await.len());
    }
    assert_eq!(counts, [3, 2]);
    drop(ends);
    handle.close().await;
}

#[tokio::test]
async fn a_topic_that_does_not_exist_is_waited_for() {
    let topic = support::unique("later");
    let (mut source, handle) = open(settings(&topic, &topic));
    eventually("it says what it waits for", || {
        handle
            .state()
            .waiting
            .is_some_and(|waiting| waiting.contains(&topic))
    })
    .await;
    let error = begin(&mut source, &topic).await.expect_err("no topic");
    assert_eq!(error.class(), onceonly::error::Class::Transient);
    support::create_topic(&topic, 1, &[]).await;
    assert_eq!(assigned(&mut source).await.len(), 1);
    assert_eq!(handle.state().waiting, None);
    close(source, handle).await;
}

#[tokio::test]
async fn a_pattern_meets_topics_that_come_later() {
    let prefix = support::unique("pattern");
    let first = format!("{prefix}-a");
    support::create_topic(&first, 1, &[]).await;
    let (mut source, handle) = open(settings(&format!("^{prefix}-.*"), &prefix));
    assert_eq!(&*assigned(&mut source).await[0].at.topic, first);
    let second = format!("{prefix}-b");
    support::create_topic(&second, 1, &[]).await;
    assert_eq!(&*assigned(&mut source).await[0].at.topic, second);
    close(source, handle).await;
}

#[tokio::test]
async fn brokers_that_cannot_be_reached_are_shown_and_the_end_is_bounded() {
    let mut settings = settings("t", "g");
    settings.brokers = "127.0.0.1:1".into();
    let (source, handle) = open(settings);
    eventually("an error is shown", || handle.state().last_error.is_some()).await;
    assert!(!handle.state().connected);
    timeout(Duration::from_secs(15), close(source, handle))
        .await
        .expect("an end");
}

#[tokio::test]
async fn settings_that_the_client_refuses_are_fatal() {
    let refused = with(settings("t", "g"), "no.such.property", "1");
    let error = KafkaSource::open(refused, 1).err().expect("refused");
    assert_eq!(error.class(), onceonly::error::Class::Fatal);
    assert!(error.to_string().contains("no.such.property"), "{error}");
}

#[tokio::test]
async fn a_source_without_workers_leaves_the_group() {
    let topic = support::topic("dropped", 1).await;
    let (mut source, handle) = open(settings(&topic, &topic));
    assigned(&mut source).await;
    drop(source);
    eventually("closed", || handle.state().closed).await;
    let (mut source, handle) = open(settings(&topic, &topic));
    assert_eq!(assigned(&mut source).await.len(), 1);
    close(source, handle).await;
}

/// Settings for a cluster that the client simulates, whose topics exist already.
fn mocked(brokers: String, topic: &str) -> KafkaSettings {
    let mut settings = settings(topic, topic);
    settings.brokers = brokers;
    with(settings, "fetch.wait.max.ms", "10")
}

#[tokio::test]
async fn another_tools_metadata_may_be_anything() {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let brokers = cluster.bootstrap_servers();
    support::commit_bytes(&brokers, "t", "t", 0, 0, b"\xff\xfe onceonly/1 \xff");
    let (mut source, handle) = open(mocked(brokers, "t"));
    let partitions = assigned(&mut source).await;
    let foreign = Committed {
        offset: 0,
        ours: false,
    };
    assert_eq!(partitions[0].committed, Some(foreign));
    close(source, handle).await;
}

#[tokio::test]
async fn lost_partitions_are_neither_waited_for_nor_committed() {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let brokers = cluster.bootstrap_servers();
    support::producer(&brokers, &[]).send_all("t", 0, ["event-0", "event-1"]);
    let mut settings = mocked(brokers, "t");
    settings.drain_timeout = Duration::from_millis(2_900);
    let (mut source, handle) = open(with(settings, "session.timeout.ms", "3000"));
    let at = assigned(&mut source).await[0].at.clone();
    source.start(&at, 1, 0);
    assert_eq!(records(&mut source, 2).await, expected(0, 0..2, 1));

    let unknown = RDKafkaRespErr::RD_KAFKA_RESP_ERR_UNKNOWN_MEMBER_ID;
    cluster.request_errors(RDKafkaApiKey::Heartbeat, &[unknown]);
    let gone = revoked(&mut source).await;
    let begun = Instant::now();
    assert_eq!(gone, std::slice::from_ref(&at));
    eventually("given back", || handle.state().rebalances == 2).await;
    assert!(
        begun.elapsed() < Duration::from_secs(5),
        "nobody was waited for"
    );
    // Not released; and what is acknowledged now is another owner's to commit.
    source.acknowledge(&at, 2);
    let again = assigned(&mut source).await;
    assert_eq!((&again[0].at, again[0].committed), (&at, None));
    source.start(&at, 2, 0);
    assert_eq!(records(&mut source, 2).await, expected(0, 0..2, 2));
    close(source, handle).await;
}

#[tokio::test]
async fn a_commit_that_was_not_taken_is_said_again() {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let rebalancing = RDKafkaRespErr::RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS;
    cluster.request_errors(RDKafkaApiKey::OffsetCommit, &[rebalancing; 2]);
    let brokers = cluster.bootstrap_servers();
    let (mut source, handle) = open(mocked(brokers.clone(), "t"));
    let at = assigned(&mut source).await[0].at.clone();
    source.acknowledge(&at, 3);
    eventually("committed in the end", || {
        committed_at(&brokers, "t", "t", 0).is_some_and(|(offset, _)| offset == 3)
    })
    .await;
    assert_eq!(handle.state().failed_commits, 2);
    close(source, handle).await;
}

#[tokio::test]
async fn a_broker_that_goes_and_comes_back_is_shown_and_read_on() {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let brokers = cluster.bootstrap_servers();
    let producer = support::producer(&brokers, &[]);
    let (mut source, handle) = open(mocked(brokers, "t"));
    let at = assigned(&mut source).await[0].at.clone();
    source.start(&at, 1, 0);
    eventually("connected", || handle.state().connected).await;
    cluster.broker_down(1).expect("down");
    eventually("not connected", || !handle.state().connected).await;
    cluster.broker_up(1).expect("up");
    producer.send_all("t", 0, ["event-0"]);
    assert_eq!(records(&mut source, 1).await, expected(0, 0..1, 1));
    eventually("connected again", || handle.state().connected).await;
    close(source, handle).await;
}

#[tokio::test]
async fn what_only_a_person_can_mend_is_fatal_for_every_worker() {
    let cluster = MockCluster::new(1).expect("a cluster");
    cluster.create_topic("t", 1, 1).expect("a topic");
    let denied = RDKafkaRespErr::RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED;
    cluster.request_errors(RDKafkaApiKey::JoinGroup, &[denied; 10]);
    let settings = mocked(cluster.bootstrap_servers(), "t");
    let (mut ends, handle) = KafkaSource::open(settings, 2).expect("a source");
    for end in &mut ends {
        let error = timeout(PATIENCE, end.next())
            .await
            .expect("an error in time");
        let error = error.expect_err("an error");
        assert_eq!(error.class(), onceonly::error::Class::Fatal);
        assert!(error.to_string().contains("grant READ"), "{error}");
        timeout(PATIENCE, end.interrupted())
            .await
            .expect("word of it");
    }
    drop(ends);
    handle.close().await;
}

/// Where a topic begins that is read for the first time.
async fn begin(
    source: &mut impl Source,
    topic: &str,
) -> Result<Vec<(i32, i64)>, onceonly::error::Error> {
    let starts = source.starts(topic, true).await?;
    let found = starts.into_iter().find(|start| &*start.topic == topic);
    Ok(found.expect("the topic asked about").offsets)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pattern_begins_by_the_configuration_what_it_finds_first_and_at_its_beginning_what_it_finds_later()
 {
    let prefix = support::unique("pattern");
    let (early, late) = (format!("{prefix}-early"), format!("{prefix}-late"));
    support::create_topic(&early, 1, &[]).await;
    support::create_topic(&late, 1, &[]).await;
    let producer = support::producer(&support::brokers(), &[]);
    producer.send_all(&early, 0, ["a", "b"]);
    producer.send_all(&late, 0, ["a"]);
    let topics = vec![format!("^{prefix}-.*")];
    let settings = KafkaSettings::new(support::brokers(), &prefix, topics, Start::Latest);
    let (mut sources, handle) = KafkaSource::open(settings, 1).expect("a source");
    let source = &mut sources[0];
    let mut first = source.starts(&early, true).await.expect("starts");
    first.sort_by(|a, b| a.topic.cmp(&b.topic));
    let found: Vec<_> = first
        .iter()
        .map(|s| (&*s.topic, s.offsets.clone()))
        .collect();
    assert_eq!(found, [(&*early, vec![(0, 2)]), (&*late, vec![(0, 1)])]);
    let later = source.starts(&late, false).await.expect("starts");
    let found: Vec<_> = later
        .iter()
        .map(|s| (&*s.topic, s.offsets.clone()))
        .collect();
    assert_eq!(found, [(&*late, vec![(0, 0)])]);
    drop(sources);
    handle.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_tells_its_cluster_before_anything_is_assigned() {
    let topics = vec![support::unique("absent")];
    let settings = KafkaSettings::new(
        support::brokers(),
        &topics[0],
        topics.clone(),
        Start::Latest,
    );
    let (sources, handle) = KafkaSource::open(settings, 1).expect("a source");
    let cluster = handle.cluster_id().await.expect("a cluster id");
    assert_eq!(cluster.len(), 22, "a base64 uuid: {cluster}");
    drop(sources);
    handle.close().await;
}
