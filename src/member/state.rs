//! How a member fares, put together from its parts.

use std::sync::{Arc, PoisonError};

use tokio_util::sync::CancellationToken;

use super::Member;
use crate::event::TopicPartition;
use crate::filter::redis::RedisFilter;
use crate::pipeline::PartitionHealth;
use crate::source::kafka::KafkaState;
use crate::telemetry::{PartitionState, ProcessState, SourceState};

impl<H> Member<H> {
    /// Tells how the member fares whenever it is asked, without any I/O; it is leaving once `end`
    /// is cancelled.
    pub fn watch(
        &self,
        end: CancellationToken,
    ) -> impl Fn() -> ProcessState + Clone + Send + Sync + use<H> {
        let (health, kafka) = (Arc::clone(&self.health), self.kafka.clone());
        let filter = self.filter.clone();
        move || {
            let state = kafka.state();
            let claimed = health.partitions().into_iter();
            ProcessState {
                postgres_up: health.postgres_up(),
                source: SourceState::from(&state),
                filter: filter.as_ref().map(RedisFilter::state),
                partitions: claimed
                    .map(|(at, claimed)| partition(at, claimed, &state))
                    .collect(),
                ledger: *health.ledger.lock().unwrap_or_else(PoisonError::into_inner),
                leaving: end.is_cancelled(),
            }
        }
    }
}

/// What the ledger's side knows of a partition with what the log's side does.
fn partition(at: TopicPartition, claimed: PartitionHealth, kafka: &KafkaState) -> PartitionState {
    let known = kafka.partitions.iter().find(|known| known.at == at);
    PartitionState {
        position: Some(claimed.position),
        lag: known.and_then(|known| known.lag),
        at,
        stopped: claimed.stopped,
    }
}
