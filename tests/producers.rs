//! Records of other makers' producers: every codec, transactions, compaction; and what Kafka's own
//! tool says of the group afterwards.
//!
//! `compose/producers prepare` installs them; `make test` does so.

#![cfg(feature = "kafka")]

mod support;

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer};
use rdkafka::{Offset, TopicPartitionList};
use support::PATIENCE;
use support::line::{Line, Record};
use tokio::task::spawn_blocking;

const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];
const PARTITIONS: i32 = 4;

/// Runs a script of `compose` with what it is to read; returns what it printed.
fn compose(script: &str, arguments: &[&str], input: &str) -> String {
    let mut child = Command::new(format!("compose/{script}"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let mut stdin = child.stdin.take().expect("its standard input");
    stdin.write_all(input.as_bytes()).expect("input taken");
    drop(stdin);
    let output = child.wait_with_output().expect("its end");
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{script} {arguments:?}: {told}{errors}\n`compose/producers prepare` installs the producers"
    );
    told
}

fn ids(producer: &str, codec: &str, kind: &str, count: usize) -> Vec<String> {
    let id = |number| format!("{producer}/{codec}/{kind}/{number}");
    (0..count).map(id).collect()
}

/// The same events as tests/producers/events.py, but for the aborted ones: kcat aborts before
/// anything stands in the log.
fn produce_with_kcat(brokers: &str, topic: &str) {
    let lines = |ids: &[String]| -> String {
        ids.iter()
            .map(|id| format!("{id}|{{\"id\": \"{id}\"}}\n"))
            .collect()
    };
    for codec in CODECS {
        let plain = ids("kcat", codec, "plain", 60);
        let header = format!("codec={codec}");
        let arguments = [
            "kcat", "-P", "-b", brokers, "-t", topic, "-z", codec, "-K", "|", "-H", &header,
        ];
        let sent = [&plain[..], &plain[..1], &plain[..20]].concat();
        compose("producers", &arguments, &lines(&sent));

        let sent = [&ids("kcat", codec, "committed", 40)[..], &plain[..10]].concat();
        let transaction = format!("transactional.id={topic}-kcat-{codec}");
        let arguments = [&arguments[..], &["-X", &transaction]].concat();
        compose("producers", &arguments, &lines(&sent));
    }
}

/// What `kafka-consumer-groups --describe` says: partition and lag.
fn lags(group: &str) -> Vec<(String, String)> {
    let told = group_tool(group, &["--describe"]);
    let mut lags: Vec<_> = told
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.first() == Some(&group))
        .map(|columns| (columns[2].to_owned(), columns[5].to_owned()))
        .collect();
    lags.sort();
    lags
}

fn group_tool(group: &str, arguments: &[&str]) -> String {
    let brokers = support::brokers();
    let tool = [
        "kafka-tool",
        "consumer-groups",
        "--bootstrap-server",
        &brokers,
    ];
    let arguments = [&tool[..], &["--group", group], arguments].concat();
    compose("stack", &arguments, "")
}

fn zeros(partitions: i32) -> Vec<(String, String)> {
    (0..partitions)
        .map(|partition| (partition.to_string(), "0".to_owned()))
        .collect()
}

/// A query that says whether every position is at the end of its partition's log.
fn at_the_end(topic: &str, partitions: i32) -> String {
    let ends = (0..partitions).map(|partition| {
        let end = end_without_open_transaction(topic, partition);
        format!("({partition}, {end}::bigint)")
    });
    format!(
        "select count(*) = {partitions} from onceonly.position \
         join (values {}) as e(p, log_end) on p = partition and log_end = next_offset",
        ends.collect::<Vec<_>>().join(", ")
    )
}

/// The end of a log, once no transaction is open in it: a producer has the answer to its abort or
/// commit before the marker is in the log.
fn end_without_open_transaction(topic: &str, partition: i32) -> i64 {
    let end = |isolation| {
        let consumer: BaseConsumer = support::client(&support::brokers())
            .set("isolation.level", isolation)
            .create()
            .expect("a consumer");
        let ends = consumer.fetch_watermarks(topic, partition, PATIENCE);
        ends.expect("the ends of a partition").1
    };
    let begun = Instant::now();
    loop {
        let stable = end("read_committed");
        if stable == end("read_uncommitted") {
            return stable;
        }
        assert!(begun.elapsed() < PATIENCE, "a transaction stays open");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_every_producer_and_codec_have_one_effect_and_a_rewind_none() {
    let line = Line::new(1, PARTITIONS).await;
    let (brokers, topic) = (support::brokers(), line.topics[0].clone());
    let run = move |kind: &str, file: &str| {
        let arguments = [kind, file, &brokers, &topic];
        compose("producers", &arguments, "");
    };
    let (brokers, topic) = (support::brokers(), line.topics[0].clone());
    spawn_blocking(move || {
        std::thread::scope(|scope| {
            scope.spawn(|| run("java", "tests/producers/JavaProducer.java"));
            scope.spawn(|| run("python", "tests/producers/confluent.py"));
            scope.spawn(|| run("python", "tests/producers/kafka_python.py"));
            produce_with_kcat(&brokers, &topic);
        });
    })
    .await
    .expect("all produced");

    let mut expected = BTreeSet::new();
    for codec in CODECS {
        for producer in ["java", "confluent-kafka", "kafka-python", "kcat"] {
            expected.extend(ids(producer, codec, "plain", 60));
            expected.extend(ids(producer, codec, "committed", 40));
            if producer != "kcat" {
                expected.extend(ids(producer, codec, "retried", 10));
            }
        }
    }
    let expected: Vec<String> = expected.into_iter().collect();
    // Of each codec 81 plain records, 50 in a transaction that was committed, and, but for kcat, 10
    // in another.
    let records = 5 * (3 * (81 + 50 + 10) + 81 + 50);

    let config = line.config(true, "[identity]\nfrom = \"json:/id\"\n");
    let end = at_the_end(&line.topics[0], PARTITIONS);
    line.run_until(&config, "read to the end", &end).await;
    assert_eq!(line.consumed().await, records);
    assert_eq!(line.effects().await, expected);
    let codec_kept = "select count(*) from onceonly.event where exists (
        select from unnest(headers) h
        where h.name = 'codec' and convert_from(h.value, 'UTF8') = split_part(event_id, '/', 2))";
    let kept: i64 = line.database.value(codec_kept).await;
    assert_eq!(kept as usize, expected.len(), "headers arrive");
    let group = line.topics[0].clone();
    assert_eq!(
        lags(&group),
        zeros(PARTITIONS),
        "in spite of control records"
    );

    // An operator rewinds with Kafka's own tool: everything is read again, nothing applied.
    let rewind = [
        "--reset-offsets",
        "--to-earliest",
        "--execute",
        "--topic",
        &group,
    ];
    group_tool(&group, &rewind);
    line.consume(&config, 2 * records).await;
    line.run_until(&config, "read to the end again", &end).await;
    assert_eq!(line.effects().await, expected);
    let counts = line.outcomes().await;
    assert_eq!(counts["applied"], expected.len() as i64, "{counts:?}");

    // It is honoured once: the next member goes on at the end.
    line.send(0, &[Record::bare(r#"{"id": "one more"}"#)]);
    line.run_until(
        &config,
        "one more",
        "select count(*) = 1 from onceonly.event where event_id = 'one more'",
    )
    .await;
    assert_eq!(line.consumed().await, 2 * records + 1);
    assert_eq!(lags(&group), zeros(PARTITIONS));
}

/// How many records a partition still holds, of how many offsets.
fn held(topic: &str) -> (i64, i64) {
    let consumer: BaseConsumer = support::client(&support::brokers())
        .set("group.id", topic)
        .set("enable.partition.eof", "true")
        .set("enable.auto.commit", "false")
        .create()
        .expect("a consumer");
    let mut assignment = TopicPartitionList::new();
    assignment
        .add_partition_offset(topic, 0, Offset::Beginning)
        .expect("an offset");
    consumer.assign(&assignment).expect("an assignment");
    let (mut records, begun) = (0, Instant::now());
    while begun.elapsed() < PATIENCE {
        match consumer.poll(Duration::from_millis(100)) {
            Some(Ok(_)) => records += 1,
            Some(Err(rdkafka::error::KafkaError::PartitionEOF(_))) => {
                let ends = consumer.fetch_watermarks(topic, 0, PATIENCE);
                return (records, ends.expect("the ends").1);
            }
            Some(Err(error)) => panic!("{error}"),
            None => {}
        }
    }
    panic!("{topic} was not read to its end");
}

/// Leaves an aborted transaction at the end of a log.
fn abort_at_the_end(topic: &str) {
    let producer: BaseProducer = support::client(&support::brokers())
        .set("transactional.id", topic)
        .create()
        .expect("a producer");
    producer.init_transactions(PATIENCE).expect("ready");
    producer.begin_transaction().expect("a transaction");
    let record = BaseRecord::<str, str>::to(topic)
        .partition(0)
        .key("aborted")
        .payload("{\"id\": \"aborted\"}");
    producer.send(record).map_err(|(e, _)| e).expect("room");
    producer.flush(PATIENCE).expect("in the log");
    producer.abort_transaction(PATIENCE).expect("aborted");
}

#[tokio::test(flavor = "multi_thread")]
async fn gaps_of_compaction_leave_no_lag() {
    const KEYS: usize = 20;
    let configs = [
        ("cleanup.policy", "compact"),
        ("segment.ms", "100"),
        ("min.cleanable.dirty.ratio", "0.01"),
        ("delete.retention.ms", "0"),
    ];
    let line = Line::configured(1, 1, &configs).await;
    let topic = line.topics[0].clone();
    let begun = Instant::now();
    let mut rounds = 0;
    // The cleaner comes by itself; it leaves the last segment alone, so that another must follow.
    loop {
        let round: Vec<_> = (0..KEYS)
            .map(|key| {
                Record::bare(format!("{{\"id\": \"{key}-{rounds}\"}}"))
                    .with_key(Some(key.to_string().as_bytes()))
            })
            .collect();
        line.send(0, &round);
        rounds += 1;
        let (records, offsets) = held(&topic);
        if records < offsets {
            break;
        }
        assert!(begun.elapsed() < 2 * PATIENCE, "never compacted");
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    abort_at_the_end(&topic);

    let config = line.config(false, "[identity]\nfrom = \"json:/id\"\n");
    let end = at_the_end(&topic, 1);
    line.run_until(&config, "read to the end", &end).await;
    let effects = line.effects().await;
    let distinct: BTreeSet<_> = effects.iter().collect();
    assert_eq!(distinct.len(), effects.len());
    for key in 0..KEYS {
        let last = format!("{key}-{}", rounds - 1);
        assert!(distinct.contains(&last), "{last} is missing in {effects:?}");
    }
    assert!(!distinct.contains(&"aborted".to_owned()));
    assert!(effects.len() < rounds * KEYS, "there are gaps");
    assert_eq!(line.outcomes().await["applied"], effects.len() as i64);
    assert_eq!(lags(&topic), zeros(1));
}
