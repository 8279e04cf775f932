//! How long an event takes from its producer to its commit, at a rate that nothing is busy with.
//!
//! Each event's time is taken before it is handed to the Kafka client. It is over when a look at the
//! positions, which follow each other without a pause of more than a millisecond, sees its partition
//! committed beyond it; the look's own time counts against the product. The bare consumer's time is
//! over when it has the record. Both have consumed a first record of each partition beforehand, and
//! the first twentieth of the events is not counted: the producer makes its connections meanwhile,
//! which is nobody's latency.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use rdkafka::ClientConfig;
use rdkafka::consumer::BaseConsumer;
use rdkafka::message::Message as _;
use rdkafka::producer::{BaseProducer, Producer as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::baseline::{Work, consume};
use super::database::Database;
use super::events::{Event, PARTITIONS};
use super::measured::{Clock, Measured};
use super::product::{Line, Watch, leave};
use super::stage::Stage;
use super::usage::peak_rss_bytes;
use crate::cli::produce::send;
use crate::cli::worker::Worker;

/// So often an event is sent.
const PAUSE: Duration = Duration::from_millis(1);

/// No more events are measured.
pub(super) const EVENTS_MAX: usize = 20_000;

/// One in so many events, the first ones, is not counted.
const WARM_UP: usize = 20;

/// How many events are needed to know the 99th percentile of a commit.
const COMMITS: u32 = 1_000;

/// How long to wait between two looks at the positions.
const GLANCE: Duration = Duration::from_millis(1);

/// So long an event may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// When each event was sent, and when it was there; by its place in the log.
struct Times {
    sent: Vec<Instant>,
    arrived: Vec<Vec<Instant>>,
}

impl Times {
    /// The 99th percentile, in milliseconds. Events go to the partitions in turn, as their first
    /// ones did.
    fn p99_ms(&self) -> anyhow::Result<f64> {
        let partitions = usize::from(PARTITIONS);
        let mut all = Vec::with_capacity(self.sent.len());
        let warm = self.sent.len() / WARM_UP;
        for (number, sent) in self.sent.iter().enumerate().skip(warm) {
            let arrived = self.arrived.get(number % partitions);
            let arrived = arrived.and_then(|arrived| arrived.get(1 + number / partitions));
            let arrived = arrived.context("an event did not arrive")?;
            all.push(arrived.saturating_duration_since(*sent));
        }
        p99_ms(all).context("no event was sent")
    }
}

/// The 99th percentile, in milliseconds.
fn p99_ms(mut all: Vec<Duration>) -> Option<f64> {
    all.sort_unstable();
    let rank = (all.len() * 99).div_ceil(100).checked_sub(1)?;
    Some(all.get(rank)?.as_secs_f64() * 1_000.0)
}

/// The product's 99th percentile, with what the run cost.
pub(super) async fn product(
    stage: &mut Stage,
    database: &mut Database,
    line: &Line,
    events: &Arc<Vec<Event>>,
) -> anyhow::Result<(Measured, f64)> {
    let worker = Worker::start(&line.program(stage)?, &line.pipeline, &stage.folder)?;
    let process = worker.process().context("the product ended at once")?;
    stage.worker = Some(worker);
    let mut watch = Watch::new(line.records, 0);
    let warm = |standing: &super::database::Standing| standing.consumed >= PARTITIONS.into();
    watch.until(stage, database, GLANCE, warm).await?;
    let clock = Clock::start(stage.servers, process);
    let mut sending = pace(stage, &line.topic, events)?;
    let all = (events.len() + usize::from(PARTITIONS)) as i64;
    let mut arrived = vec![Vec::new(); PARTITIONS.into()];
    let mut moved = Instant::now();
    let mut consumed = 0;
    while consumed < all {
        let offsets = database.offsets().await?;
        let now = Instant::now();
        let sum = offsets.iter().map(|(_, offset)| offset).sum();
        if sum != consumed {
            (consumed, moved) = (sum, now);
        }
        for (partition, next_offset) in offsets {
            let partition = usize::try_from(partition).unwrap_or(usize::MAX);
            if let Some(arrived) = arrived.get_mut(partition) {
                arrived.resize(usize::try_from(next_offset).unwrap_or_default(), now);
            }
        }
        ensure!(
            moved.elapsed() < PATIENCE,
            "no event was committed for long"
        );
        sleep(GLANCE).await;
    }
    let mut measured = clock.stop(events.len() as u64);
    measured.peak_rss_bytes = peak_rss_bytes(process);
    let sent = (&mut sending)
        .await
        .context("a producer ended without a word")??;
    leave(stage).await?;
    let p99_ms = Times { sent, arrived }.p99_ms()?;
    Ok((measured, p99_ms))
}

/// The bare consumer's 99th percentile.
pub(super) async fn bare(stage: &Stage, work: &Work) -> anyhow::Result<f64> {
    let consumer = consume::consumer(stage)?;
    let (topic, end) = (work.topic.clone(), stage.end.clone());
    let (first, rest) = (usize::from(PARTITIONS), work.events.len());
    let (warm, is_warm) = tokio::sync::oneshot::channel();
    let receiving = stage.spawn_blocking(move || {
        let mut arrived = vec![Vec::new(); PARTITIONS.into()];
        consume::assign(&consumer, &topic)?;
        receive(&consumer, first, &mut arrived, &end)?;
        // Nobody waits if all is over.
        _ = warm.send(());
        receive(&consumer, rest, &mut arrived, &end)?;
        anyhow::Ok(arrived)
    });
    // An error comes with the end of the thread.
    _ = is_warm.await;
    let sent = pace(stage, &work.topic, &work.events)?;
    let arrived = receiving
        .await
        .context("a consumer ended without a word")??;
    let sent = sent.await.context("a producer ended without a word")??;
    Times { sent, arrived }.p99_ms()
}

fn receive(
    consumer: &BaseConsumer,
    count: usize,
    arrived: &mut [Vec<Instant>],
    end: &CancellationToken,
) -> anyhow::Result<()> {
    for _ in 0..count {
        ensure!(!end.is_cancelled(), "given up");
        let message = consumer.poll(PATIENCE).context("no event came for long")?;
        let message = message.context("cannot consume the topic")?;
        let partition = usize::try_from(message.partition()).unwrap_or(usize::MAX);
        if let Some(arrived) = arrived.get_mut(partition) {
            arrived.push(Instant::now());
        }
    }
    Ok(())
}

/// Sends an event every [`PAUSE`], each at once. Returns when each was.
fn pace(
    stage: &Stage,
    topic: &str,
    events: &Arc<Vec<Event>>,
) -> anyhow::Result<tokio::task::JoinHandle<anyhow::Result<Vec<Instant>>>> {
    let producer: BaseProducer = ClientConfig::new()
        .set("bootstrap.servers", &stage.brokers)
        .set("enable.idempotence", "true")
        .set("linger.ms", "0")
        .create()
        .context("cannot create a Kafka producer")?;
    let (topic, events, end) = (topic.to_owned(), Arc::clone(events), stage.end.clone());
    Ok(stage.spawn_blocking(move || {
        let mut sent = Vec::with_capacity(events.len());
        let begun = Instant::now();
        for (number, event) in (0..).zip(events.iter()) {
            ensure!(!end.is_cancelled(), "given up");
            let record = event.record(event.partition);
            let due = begun + PAUSE * number;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            sent.push(Instant::now());
            send(&producer, &topic, &record)?;
        }
        producer.flush(PATIENCE).context("cannot send all events")?;
        Ok(sent)
    }))
}

/// The 99th percentile of one row's transaction, one after the other over one connection.
pub(super) async fn commit(database: &mut Database, work: &Work) -> anyhow::Result<f64> {
    database.create_rows().await?;
    let mut times = Vec::new();
    for event in work.events.iter().cycle().take(COMMITS as usize) {
        let begun = Instant::now();
        database.insert_row(event, &work.topic).await?;
        times.push(begun.elapsed());
        sleep(PAUSE).await;
    }
    database.drop_rows().await?;
    p99_ms(times).context("nothing was committed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_leaves_the_slowest_hundredth_out() {
        let times = |count: u64| (1..=count).rev().map(Duration::from_millis).collect();
        assert_eq!(p99_ms(times(1_000)), Some(990.0));
        assert_eq!(p99_ms(times(100)), Some(99.0));
        assert_eq!(p99_ms(times(1)), Some(1.0));
        assert_eq!(p99_ms(times(0)), None);
    }

    #[test]
    fn an_event_arrived_when_its_place_in_the_log_did() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        // The second round of partition 0 is late; the first record of each came before the clock.
        let mut arrived = vec![vec![begun, at(11)]; PARTITIONS.into()];
        arrived[0].push(at(90));
        let times = Times {
            sent: (0..9).map(at).collect(),
            arrived,
        };
        assert_eq!(times.p99_ms().unwrap(), 82.0);
    }

    #[test]
    fn the_producers_start_is_not_counted() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let partitions = usize::from(PARTITIONS);
        let mut arrived = vec![vec![begun]; partitions];
        for number in 0..1_000 {
            let late_ms = if number < 50 { 300 } else { 2 };
            arrived[number % partitions].push(at(number as u64 + late_ms));
        }
        let times = Times {
            sent: (0..1_000).map(at).collect(),
            arrived,
        };
        assert_eq!(times.p99_ms().unwrap(), 2.0);
    }
}
