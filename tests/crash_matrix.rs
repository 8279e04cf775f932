//! A process ends at each point of the line, for each setting of marks and each kind of record, on
//! real services; another one goes on. Each event has one effect, each record one outcome.

#[path = "crash_matrix/points.rs"]
mod points;
mod support;

use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use onceonly::config::Config;
use onceonly::ledger::postgres::PostgresLedger;
use onceonly::member::{
    fingerprint, kafka_settings, line_settings, postgres_settings, redis_filter,
};
use onceonly::pipeline::{Health, Worker};
use onceonly::source::kafka::KafkaSource;
use points::{Fuse, Fused, POINTS};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::{Offset, TopicPartitionList};
use support::line::{Line, Record};
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;
use uuid::Uuid;

/// Names the configuration in the process that is to end.
const CONFIG: &str = "ONCEONLY_TEST_CRASH_CONFIG";
/// Names the point at which it ends.
const POINT: &str = "ONCEONLY_TEST_CRASH_POINT";

/// Cases at the same time: each waits for Kafka most of its time.
const AT_ONCE: usize = 6;

const SIGABRT: i32 = 6;

/// What the process meets that ends.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Ids that nobody has seen.
    New,
    /// Records that were applied before, read again after a rewind, and a new one.
    Redelivery,
    /// Ids that were applied before, sent again, and a new one.
    ProducerDuplicate,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_with_marks_after_leaves_one_effect_per_event() {
    at_every_point("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_at_any_point_with_marks_before_leaves_one_effect_per_event() {
    at_every_point("before").await;
}

async fn at_every_point(mark: &'static str) {
    let gate = Arc::new(Semaphore::new(AT_ONCE));
    let mut cases = JoinSet::new();
    for point in POINTS {
        for kind in [Kind::New, Kind::Redelivery, Kind::ProducerDuplicate] {
            let gate = Arc::clone(&gate);
            cases.spawn(async move {
                let _turn = gate.acquire().await.expect("a turn");
                survives(point, mark, kind).await;
            });
        }
    }
    while let Some(ended) = cases.join_next().await {
        ended.expect("a case that holds");
    }
}

async fn survives(point: &str, mark: &str, kind: Kind) {
    let line = Line::new(1, 1).await;
    let config = line.config(true, &sections(mark));
    let first = ["a", "b", "c"];
    let second: &[&str] = match kind {
        Kind::New => &[],
        Kind::Redelivery => &["d"],
        Kind::ProducerDuplicate => &["b", "a", "d"],
    };
    line.send(0, &first.map(|id| Record::new(id, "{}")));
    let mut records = first.len();
    let mut effects = first.to_vec();
    if !matches!(kind, Kind::New) {
        line.consume(&config, records as i64).await;
        let again = matches!(kind, Kind::Redelivery).then_some(first.len());
        records += second.len() + again.unwrap_or_default();
        effects.push("d");
        let second: Vec<Record> = second.iter().map(|id| Record::new(id, "{}")).collect();
        line.send(0, &second);
    }
    if matches!(kind, Kind::Redelivery) {
        let group = config.group().to_owned();
        let topic = line.topics[0].clone();
        tokio::task::spawn_blocking(move || rewind(&group, &topic))
            .await
            .expect("a rewind");
    }
    let case = format!("{point}, mark {mark}, {kind:?}");
    end_at(point, &line.config_text(true, &sections(mark)), &case).await;
    line.consume(&config, records as i64).await;
    assert_eq!(line.effects().await, effects, "effects: {case}");
}

fn sections(mark: &str) -> String {
    format!(
        "[dedup]\nmark = \"{mark}\"\n[kafka.properties]\n\"session.timeout.ms\" = \"1500\"\n\
         \"heartbeat.interval.ms\" = \"300\"\n"
    )
}

/// As an operator does while nobody reads.
fn rewind(group: &str, topic: &str) {
    let consumer: BaseConsumer = support::client(&support::brokers())
        .set("group.id", group)
        .create()
        .expect("a consumer");
    let mut offsets = TopicPartitionList::new();
    offsets
        .add_partition_offset(topic, 0, Offset::Offset(0))
        .expect("an offset");
    consumer
        .commit(&offsets, CommitMode::Sync)
        .expect("a commit behind the position");
}

/// Runs a worker in a process of its own until it ends at the point.
async fn end_at(point: &str, config: &str, case: &str) {
    let child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_process_that_ends", "--nocapture"])
        .env(CONFIG, config)
        .env(POINT, point)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    let output = timeout(support::PATIENCE * 2, child.wait_with_output())
        .await
        .unwrap_or_else(|_| panic!("the process never came to its end: {case}"))
        .expect("its end");
    assert_eq!(
        output.status.signal(),
        Some(SIGABRT),
        "{case}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Not a test of its own: the process that [`end_at`] starts. Without its variables it does nothing.
#[test]
fn the_process_that_ends() {
    let (Ok(config), Ok(point)) = (std::env::var(CONFIG), std::env::var(POINT)) else {
        return;
    };
    let config = Config::from_toml(&config).expect("a configuration");
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(work(&config, &Fuse::new(&point)));
}

/// A member of one worker, whose every part is fused.
async fn work(config: &Config, fuse: &Fuse) {
    let owner = Uuid::new_v4();
    let handler = support::line::handler(config);
    let fingerprint = fingerprint(config, "sql", "");
    let postgres = postgres_settings(config, "crash");
    onceonly::ledger::postgres::register(&postgres, &fingerprint)
        .await
        .expect("a registered pipeline");
    let kafka = kafka_settings(config, "crash").expect("settings");
    let (mut sources, kafka) = KafkaSource::open(kafka, 1).expect("a source");
    let worker = Worker::new(
        Fused::new(sources.pop().expect("one source"), fuse),
        Fused::new(redis_filter(config).expect("a filter"), fuse),
        Fused::new(PostgresLedger::new(postgres, &config.pipeline), fuse),
        Arc::new(Fused::new(handler, fuse)),
        Arc::new(line_settings(config, owner)),
        Arc::new(Health::default()),
    );
    let ended = timeout(Duration::from_secs(30), worker.run()).await;
    kafka.close().await;
    panic!("the point was never reached: {ended:?}");
}
