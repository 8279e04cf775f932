//! The process is killed again and again while it works, on real services.

mod support;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::database::Database;

const EVENTS: usize = 30_000;
const PARTITIONS: i32 = 4;
const KILLS: u32 = 6;

/// A running consumer that does not outlive the test.
struct Consumer(Child);

impl Consumer {
    fn start(config: &Path) -> Self {
        let child = Command::new(env!("CARGO_BIN_EXE_onceonly"))
            .arg("--config")
            .arg(config)
            .arg("run")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn();
        Self(child.expect("a process"))
    }

    fn kill(&mut self) {
        self.0.kill().expect("SIGKILL sent");
        self.0.wait().expect("the process is gone");
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ids of which every third comes again, next to the first, far behind it, or elsewhere.
fn ids() -> Vec<(i32, String)> {
    let mut ids = Vec::with_capacity(EVENTS);
    for number in 0..EVENTS {
        let partition = number as i32 % PARTITIONS;
        let id = match number % 9 {
            2 => format!("id-{}", number - 1),
            5 => format!("id-{}", number / 2 / 9 * 9),
            8 => format!("id-{}", number.saturating_sub(4_000) / 9 * 9),
            _ => format!("id-{number}"),
        };
        ids.push((partition, id));
    }
    ids
}

fn write_config(folder: &Path, database: &Database, topic: &str, mark: &str) -> std::path::PathBuf {
    let path = folder.join("onceonly.toml");
    let text = format!(
        r#"
pipeline = "crash"
[kafka]
brokers = "{brokers}"
topics = ["{topic}"]
group = "{topic}"
start = "earliest"
[kafka.properties]
"session.timeout.ms" = "1500"
"heartbeat.interval.ms" = "300"
[redis]
url = "{redis}"
[postgres]
url = "{postgres}"
[identity]
from = "header:event-id"
[dedup]
mark = "{mark}"
[batch]
max_events = 500
[http]
listen = "127.0.0.1:0"
"#,
        brokers = support::brokers(),
        redis = support::service("REDIS_URL"),
        postgres = database.url(),
    );
    std::fs::write(&path, text).expect("a configuration file");
    path
}

async fn consumed(database: &Database) -> i64 {
    let sum = "select coalesce(sum(applied + duplicate_batch + duplicate_position + duplicate_recent \
               + duplicate_redis + duplicate_ledger + duplicate_waiting + duplicate_dead + retrying \
               + dead + skipped - duplicate_position), 0)::bigint from onceonly.position";
    database.value(sum).await
}

/// Waits until so many records are consumed.
async fn until_consumed(database: &Database, records: i64) {
    let begun = Instant::now();
    while consumed(database).await < records {
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "stuck below {records} records"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn survives_kills(mark: &str) {
    let database = Database::migrated().await;
    let topic = support::topic("crash", PARTITIONS).await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = write_config(folder.path(), &database, &topic, mark);
    let ids = ids();
    let producer = support::producer(&support::brokers(), &[("linger.ms", "5")]);
    let mut produced = 0;
    for kill in 1..=KILLS {
        let share = EVENTS * kill as usize / KILLS as usize;
        for (partition, id) in &ids[produced..share] {
            producer.send_json(&topic, *partition, id);
        }
        producer.flush();
        produced = share;
        let mut consumer = Consumer::start(&config);
        // Somewhere in the midst of this share.
        until_consumed(&database, (share - EVENTS / KILLS as usize / 2) as i64).await;
        consumer.kill();
    }
    let _consumer = Consumer::start(&config);
    until_consumed(&database, EVENTS as i64).await;

    let expected: BTreeSet<&str> = ids.iter().map(|(_, id)| id.as_str()).collect();
    let effects: i64 = database.value("select count(*) from onceonly.event").await;
    assert_eq!(effects as usize, expected.len(), "effects");
    let distinct: i64 = database
        .value("select count(distinct event_id) from onceonly.event")
        .await;
    assert_eq!(distinct as usize, expected.len(), "ids with an effect");
    assert_eq!(
        consumed(&database).await,
        EVENTS as i64,
        "each record has one outcome"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_under_load_leaves_one_effect_per_event() {
    survives_kills("after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sigkill_under_load_leaves_one_effect_per_event_with_marks_before() {
    survives_kills("before").await;
}
