//! A bare consumer that only counts: one rdkafka client, with its defaults, that has all partitions
//! from their beginning. The clock starts with the first record.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use tokio_util::sync::CancellationToken;

use super::Work;
use crate::cli::KAFKA_TIMEOUT;
use crate::cli::bench::events::PARTITIONS;
use crate::cli::bench::measured::{Clock, Measured};
use crate::cli::bench::stage::Stage;

/// How long nothing may come.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) async fn measure(stage: &Stage, work: &Work) -> anyhow::Result<Measured> {
    let consumer = consumer(stage)?;
    let (servers, work, end) = (stage.servers, work.clone(), stage.end.clone());
    let task = stage.spawn_blocking(move || {
        // Connects.
        consumer
            .fetch_metadata(Some(&work.topic), KAFKA_TIMEOUT)
            .context("cannot read the topic's metadata")?;
        let clock = Clock::start(servers, std::process::id());
        assign(&consumer, &work.topic)?;
        count(&consumer, 1, &end)?;
        let clock = clock.begun_at(Instant::now());
        count(&consumer, work.records - 1, &end)?;
        Ok(clock.stop(work.records))
    });
    task.await.context("a consumer ended without a word")?
}

/// A consumer of no group, with the client's defaults.
pub(in crate::cli::bench) fn consumer(stage: &Stage) -> anyhow::Result<BaseConsumer> {
    ClientConfig::new()
        .set("bootstrap.servers", &stage.brokers)
        .set("group.id", &stage.name)
        .set("enable.auto.commit", "false")
        .create()
        .context("cannot create a Kafka consumer")
}

/// Has it read all partitions from their beginning.
pub(in crate::cli::bench) fn assign(consumer: &BaseConsumer, topic: &str) -> anyhow::Result<()> {
    let mut assignment = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        assignment.add_partition_offset(topic, partition.into(), Offset::Beginning)?;
    }
    consumer
        .assign(&assignment)
        .context("cannot consume the topic")
}

fn count(consumer: &BaseConsumer, records: u64, end: &CancellationToken) -> anyhow::Result<()> {
    let mut counted = 0;
    while counted < records {
        if end.is_cancelled() {
            bail!("given up");
        }
        match consumer.poll(PATIENCE) {
            Some(Ok(_)) => counted += 1,
            Some(Err(error)) => return Err(error).context("cannot consume the topic"),
            None => bail!("the topic ended after {counted} of {records} records"),
        }
    }
    Ok(())
}
