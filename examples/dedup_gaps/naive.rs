//! The usual consumer: a key in Redis around a row in Postgres, one event at a time.

use std::time::Duration;

use anyhow::Context as _;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{Offset, TopicPartitionList};

use super::stage::Stage;
use super::{Gap, Mark, STRUCK};

pub const TABLE: &str = "naive_effect";

/// Longer than a record of the log takes to come.
const SILENCE: Duration = Duration::from_secs(2);

/// Reads from the committed offset to the end of the log. With `crash` it stops as a process that
/// dies does, in the midst of one event: between its mark and its effect, in the order given.
pub async fn consume(stage: &Stage, gap: Gap, crash: Option<Mark>) -> anyhow::Result<()> {
    let consumer: BaseConsumer = stage
        .client()
        .set("group.id", format!("{}-naive", stage.name))
        .set("enable.auto.commit", "false")
        .set("auto.offset.reset", "earliest")
        .create()
        .context("cannot make a consumer")?;
    let mut partitions = TopicPartitionList::new();
    partitions.add_partition_offset(&stage.name, 0, Offset::Stored)?;
    consumer.assign(&partitions)?;
    while let Some(message) = tokio::task::block_in_place(|| consumer.poll(SILENCE)) {
        let message = message.context("cannot read the topic")?;
        let id = event_id(&message).context("a record without an id")?;
        let crashes = crash.is_some() && message.offset() == STRUCK as i64;
        if apply(stage, gap, id, crashes).await? {
            return Ok(());
        }
        consumer.commit_message(&message, CommitMode::Sync)?;
    }
    Ok(())
}

fn event_id<'a>(message: &'a BorrowedMessage<'_>) -> Option<&'a str> {
    let header = message.headers()?.iter().find(|h| h.key == "event-id")?;
    std::str::from_utf8(header.value?).ok()
}

/// Returns whether the process would have ended here.
async fn apply(stage: &Stage, gap: Gap, id: &str, crashes: bool) -> anyhow::Result<bool> {
    match gap.mark() {
        Mark::Before => {
            if !stage.set_nx(id, gap.ttl()).await? {
                return Ok(false);
            }
            if crashes {
                return Ok(true);
            }
            stage.insert(TABLE, id).await?;
        }
        Mark::After => {
            if stage.is_set(id).await? {
                return Ok(false);
            }
            stage.insert(TABLE, id).await?;
            if crashes {
                return Ok(true);
            }
            stage.set_nx(id, gap.ttl()).await?;
        }
    }
    Ok(false)
}
