//! A topic, a database and what a pipeline between them has to come to.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use sqlx::Row;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::process::Process;
use crate::support::database::Database;
use crate::support::{self, TestProducer};

/// How long anything may take: nothing here waits for a person.
pub const BOUND: Duration = Duration::from_secs(60);

/// A pipeline's surroundings, and what was produced into them.
pub struct Scene {
    pub database: Database,
    pub topic: String,
    /// Kafka's address as members see it.
    pub brokers: String,
    /// Postgres's address as members see it.
    pub postgres: String,
    /// The section `[redis]`, if there is one.
    pub redis: String,
    /// Further sections.
    pub more: String,
    partitions: i32,
    producer: TestProducer,
    /// How often each id was produced.
    produced: BTreeMap<String, u64>,
}

impl Scene {
    /// A topic and a migrated database of its own.
    pub async fn set(partitions: i32) -> Self {
        Self::over(Database::migrated().await, partitions).await
    }

    /// A topic of its own, and a database.
    pub async fn over(database: Database, partitions: i32) -> Self {
        Self {
            topic: support::topic("outage", partitions).await,
            brokers: support::brokers(),
            postgres: database.url(),
            redis: String::new(),
            more: "[batch]\nmax_events = 100\n".to_owned(),
            partitions,
            producer: support::producer(&support::brokers(), &[("linger.ms", "5")]),
            produced: BTreeMap::new(),
            database,
        }
    }

    /// Has members use a Redis, and wait for its answers for so long.
    pub fn with_redis(&mut self, url: &str, timeout_ms: u32) {
        self.redis = format!("[redis]\nurl = \"{url}\"\ntimeout = \"{timeout_ms}ms\"\n");
    }

    /// The configuration of a member.
    pub fn configuration(&self) -> String {
        format!(
            "pipeline = \"outage\"\n\
             [kafka]\nbrokers = \"{brokers}\"\ntopics = [\"{topic}\"]\ngroup = \"{topic}\"\n\
             start = \"earliest\"\n\
             [kafka.properties]\n\"session.timeout.ms\" = \"1500\"\n\
             \"heartbeat.interval.ms\" = \"300\"\n\"reconnect.backoff.max.ms\" = \"1000\"\n\
             [postgres]\nurl = \"{postgres}\"\n\
             [identity]\nfrom = \"header:event-id\"\n\
             {redis}{more}",
            brokers = self.brokers,
            topic = self.topic,
            postgres = self.postgres,
            redis = self.redis,
            more = self.more,
        )
    }

    /// Starts a member.
    pub fn member(&self) -> Process {
        Process::start(&self.configuration())
    }

    /// Produces ids, spread over the partitions in turn, and waits until they are in the log.
    pub fn produce(&mut self, ids: impl IntoIterator<Item = String>) {
        for (number, id) in ids.into_iter().enumerate() {
            let partition = number as i32 % self.partitions;
            self.producer.send_json(&self.topic, partition, &id);
            *self.produced.entry(id).or_default() += 1;
        }
        self.producer.flush();
    }

    /// Produces `count` ids, of which every third comes twice, in another partition mostly.
    pub fn produce_with_repeats(&mut self, prefix: &str, count: usize) {
        let id = |number: usize| format!("{prefix}-{}", number - number % 3 / 2);
        self.produce((0..count).map(id));
    }

    /// Produces one event with a body.
    pub fn produce_body(&mut self, partition: i32, id: &str, body: &str) {
        self.producer.send_body(&self.topic, partition, id, body);
        *self.produced.entry(id.to_owned()).or_default() += 1;
    }

    /// Waits until what was produced is in the log.
    pub fn flush(&self) {
        self.producer.flush();
    }

    /// Produces ids of their own all the time, 10 every 10 ms, until told to end.
    pub fn load(&self, prefix: &str) -> Load {
        let end = CancellationToken::new();
        let (topic, partitions, prefix) = (self.topic.clone(), self.partitions, prefix.to_owned());
        let producer = support::producer(&support::brokers(), &[("linger.ms", "5")]);
        let ended = end.clone();
        let producing = tokio::spawn(async move {
            let mut ids = Vec::new();
            while !ended.is_cancelled() {
                for _ in 0..10 {
                    let id = format!("{prefix}-{}", ids.len());
                    producer.send_json(&topic, ids.len() as i32 % partitions, &id);
                    ids.push(id);
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            producer.flush();
            ids
        });
        Load { end, producing }
    }

    /// Ends a load, and counts what it produced.
    pub async fn end(&mut self, load: Load) -> usize {
        load.end.cancel();
        let ids = load.producing.await.expect("a producer");
        let count = ids.len();
        for id in ids {
            *self.produced.entry(id).or_default() += 1;
        }
        count
    }

    /// Records in the log.
    pub fn records(&self) -> u64 {
        self.produced.values().sum()
    }

    /// How many records have which outcome, by the positions' rows; redeliveries are left out.
    pub async fn outcomes(&self) -> BTreeMap<&'static str, u64> {
        const NAMES: [&str; 10] = [
            "applied",
            "duplicate_batch",
            "duplicate_recent",
            "duplicate_redis",
            "duplicate_ledger",
            "duplicate_waiting",
            "duplicate_dead",
            "retrying",
            "dead",
            "skipped",
        ];
        let sums: Vec<_> = NAMES
            .iter()
            .map(|name| format!("coalesce(sum({name}), 0)::bigint"))
            .collect();
        let query = format!("select {} from onceonly.position", sums.join(", "));
        let row = &self.database.rows(&query).await[0];
        let value = |(at, name): (usize, &'static str)| (name, row.get::<i64, _>(at) as u64);
        NAMES.into_iter().enumerate().map(value).collect()
    }

    /// Records consumed.
    pub async fn consumed(&self) -> u64 {
        self.outcomes().await.values().sum()
    }

    /// Waits until everything produced is consumed; returns the outcomes.
    pub async fn until_consumed(&self) -> BTreeMap<&'static str, u64> {
        self.until_consumed_within(BOUND).await
    }

    /// The same within a time of its own.
    pub async fn until_consumed_within(&self, limit: Duration) -> BTreeMap<&'static str, u64> {
        let begun = Instant::now();
        loop {
            let outcomes = self.outcomes().await;
            let consumed: u64 = outcomes.values().sum();
            let records = self.records();
            assert!(consumed <= records, "{records} records: {outcomes:?}");
            if consumed == records {
                return outcomes;
            }
            let waited = begun.elapsed();
            assert!(
                waited < limit,
                "{records} records after {waited:?}: {outcomes:?}"
            );
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until so many records are consumed.
    pub async fn until_consumed_at_least(&self, records: u64) {
        let begun = Instant::now();
        loop {
            let consumed = self.consumed().await;
            if consumed >= records {
                return;
            }
            assert!(begun.elapsed() < BOUND, "{consumed} of {records}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// What the group has committed in Kafka, by partition; negative where it has nothing.
    pub async fn committed(&self) -> Vec<i64> {
        let (topic, partitions) = (self.topic.clone(), self.partitions);
        let ask = move || support::committed(&topic, &topic, partitions);
        tokio::task::spawn_blocking(ask).await.expect("an answer")
    }

    /// Waits until records are consumed beyond those that are by now.
    pub async fn flows(&self) {
        let consumed = self.consumed().await;
        self.until_consumed_at_least(consumed + 1).await;
    }

    /// Waits until records are consumed beyond those that are by now, and tells how long it took
    /// since the fault struck, or ended where nothing can be done before.
    pub async fn flows_again(&self, since: Instant, fault: &str) {
        self.flows().await;
        println!(
            "flow resumed {:.1} s after: {fault}",
            since.elapsed().as_secs_f64()
        );
    }

    /// Every id produced has one effect, and there is no other effect, in a table whose first
    /// column named `event_id` is the id.
    pub async fn assert_effects_once_in(&self, table: &str, without: &[&str]) {
        let query = format!("select event_id, count(*) from {table} group by event_id");
        let rows = self.database.rows(&query).await;
        let effects: BTreeMap<String, i64> = rows.iter().map(|r| (r.get(0), r.get(1))).collect();
        let expected: BTreeMap<String, i64> = self
            .produced
            .keys()
            .filter(|id| !without.contains(&id.as_str()))
            .map(|id| (id.clone(), 1))
            .collect();
        if effects == expected {
            return;
        }
        let missing: Vec<_> = expected
            .keys()
            .filter(|id| !effects.contains_key(*id))
            .collect();
        let other: Vec<_> = effects
            .iter()
            .filter(|(id, count)| expected.get(*id) != Some(count))
            .collect();
        panic!("effects missing: {missing:?}; too many or unknown: {other:?}");
    }

    /// Every id produced has one effect, and there is no other.
    pub async fn assert_effects_once(&self) {
        self.assert_effects_once_in("onceonly.event", &[]).await;
    }
}

/// Events that come all the time.
pub struct Load {
    end: CancellationToken,
    producing: JoinHandle<Vec<String>>,
}

/// Waits until something holds.
pub async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < BOUND, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
