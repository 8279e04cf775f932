//! This member's part in the group: what happens when partitions come and go.
//!
//! Runs inside the client's poll, on the thread that reads. It never waits for Postgres, and holds
//! no lock while it waits for workers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::{BaseConsumer, Consumer, ConsumerContext, RebalanceProtocol};
use rdkafka::error::KafkaError;
use rdkafka::types::{RDKafkaErrorCode, RDKafkaRespErr};
use rdkafka::{Offset, TopicPartitionList};

use super::assignment::{Assignment, list};
use super::desk::{Desk, lock};
use super::health::Health;
use super::mailbox::Mailbox;
use super::native::{self, Commits};
use crate::event::TopicPartition;

/// What the metadata of our commits begins with: how they are told from an operator's.
const MARKER: &str = "onceonly/";

/// The longest that a commit waits for its answer.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3);

/// This member's part in the group. The client's callbacks come here.
pub(super) struct Membership {
    pub(super) assignment: Mutex<Assignment>,
    pub(super) mailboxes: Vec<Arc<Mailbox>>,
    pub(super) desk: Arc<Desk>,
    pub(super) health: Arc<Health>,
    drain_timeout: Duration,
    metadata: String,
}

impl Membership {
    pub(super) fn new(
        mailboxes: Vec<Arc<Mailbox>>,
        desk: Arc<Desk>,
        health: Arc<Health>,
        drain_timeout: Duration,
        client_id: &str,
    ) -> Self {
        Self {
            assignment: Mutex::new(Assignment::new(mailboxes.len())),
            mailboxes,
            desk,
            health,
            drain_timeout,
            metadata: format!("{MARKER}1 {client_id}"),
        }
    }

    /// Whether a commit's metadata says that one of us wrote it.
    pub(super) fn is_ours(metadata: &[u8]) -> bool {
        metadata.starts_with(MARKER.as_bytes())
    }

    /// Commits offsets in our name and waits for the answer, for at most [`COMMIT_TIMEOUT`].
    pub(super) fn commit(
        &self,
        consumer: &BaseConsumer<Self>,
        offsets: &[(TopicPartition, i64)],
    ) -> Result<(), KafkaError> {
        if offsets.is_empty() {
            return Ok(());
        }
        let commit = || {
            let commits = Commits::new(consumer.client())?;
            commits.send(consumer.client(), &self.in_our_name(offsets)?)?;
            let unanswered = KafkaError::ConsumerCommit(RDKafkaErrorCode::OperationTimedOut);
            commits.answer(COMMIT_TIMEOUT).ok_or(unanswered)?.result
        };
        commit().inspect_err(|error| self.health.commit_failed(error))
    }

    /// The client's form of offsets to commit, with metadata that names us.
    pub(super) fn in_our_name(
        &self,
        offsets: &[(TopicPartition, i64)],
    ) -> Result<TopicPartitionList, KafkaError> {
        let mut list = TopicPartitionList::new();
        for (at, offset) in offsets {
            let mut element = list.add_partition(&at.topic, at.partition);
            element.set_offset(Offset::Offset(*offset))?;
            element.set_metadata(&self.metadata);
        }
        Ok(list)
    }

    /// Each partition is assigned at an absolute offset and paused: no committed offset is asked
    /// for, no reset policy runs, and nothing is read before a worker says where.
    fn assigned(&self, consumer: &BaseConsumer<Self>, partitions: &mut TopicPartitionList) {
        let result = partitions
            .set_all_offsets(Offset::Offset(0))
            .and_then(|()| match consumer.rebalance_protocol() {
                RebalanceProtocol::Cooperative => consumer.incremental_assign(partitions),
                _ => consumer.assign(partitions),
            })
            .and_then(|()| consumer.pause(partitions));
        if let Err(error) = result {
            self.health.warn(
                "assign",
                &format!("partitions could not be assigned: {error}"),
            );
        }
        let partitions = names(partitions);
        tracing::info!(partitions = partitions.len(), "partitions assigned");
        self.desk.forget(&partitions);
        lock(&self.assignment).add(partitions);
    }

    fn revoked(&self, consumer: &BaseConsumer<Self>, partitions: &TopicPartitionList, lost: bool) {
        self.let_go(consumer, &names(partitions), lost);
        let result = match consumer.rebalance_protocol() {
            RebalanceProtocol::Cooperative => consumer.incremental_unassign(partitions),
            _ => consumer.unassign(),
        };
        if let Err(error) = result {
            self.health.warn(
                "unassign",
                &format!("partitions could not be given back: {error}"),
            );
        }
    }

    /// Takes partitions from their workers. Unless they are lost already: waits a while until
    /// nothing of them is in work, and commits what came of it.
    pub(super) fn let_go(
        &self,
        consumer: &BaseConsumer<Self>,
        partitions: &[TopicPartition],
        lost: bool,
    ) {
        let gone = lock(&self.assignment).remove(partitions);
        for (worker, mailbox) in self.mailboxes.iter().enumerate() {
            let of_worker: Vec<_> = gone
                .iter()
                .filter(|owned| owned.worker == worker)
                .map(|owned| owned.at.clone())
                .collect();
            if !of_worker.is_empty() {
                mailbox.revoke(&of_worker, !lost);
            }
        }
        tracing::info!(partitions = gone.len(), lost, "partitions revoked");
        if lost {
            self.desk.forget(partitions);
            return;
        }
        let late = self.desk.await_release(self.drain_timeout);
        if !late.is_empty() {
            let names: Vec<_> = late.iter().map(ToString::to_string).collect();
            tracing::warn!(
                partitions = names.join(", "),
                timeout = ?self.drain_timeout,
                "partitions are given away while something of them is still in work; it is fenced"
            );
        }
        let acknowledged = self.desk.forget(partitions);
        let owned = |at: &TopicPartition| gone.iter().any(|o| o.at == *at);
        let offsets: Vec<_> = acknowledged
            .into_iter()
            .filter(|(at, _)| owned(at))
            .collect();
        // What fails here was counted, and Postgres knows it anyway.
        let _ = self.commit(consumer, &offsets);
    }

    /// Makes the client fetch a partition anew that it gave up on: takes it out of the client's
    /// assignment and puts it back, paused.
    pub(super) fn refetch(
        &self,
        consumer: &BaseConsumer<Self>,
        at: &TopicPartition,
    ) -> Result<(), KafkaError> {
        let eager = !matches!(
            consumer.rebalance_protocol(),
            RebalanceProtocol::Cooperative
        );
        let mut assignment = lock(&self.assignment);
        let partitions = if eager {
            // The whole assignment has to be said again, each where it stands.
            list(assignment.iter().map(|o| (&o.at, Some(o.next))))
        } else {
            list(
                assignment
                    .iter()
                    .filter(|o| o.at == *at)
                    .map(|o| (&o.at, Some(o.next))),
            )
        };
        if eager {
            consumer.assign(&partitions)?;
        } else {
            consumer.incremental_unassign(&partitions)?;
            consumer.incremental_assign(&partitions)?;
        }
        let again = |owned: &super::assignment::Owned| eager || owned.at == *at;
        for owned in assignment.iter_mut().filter(|o| again(o)) {
            owned.paused = true;
            owned.given_up = false;
        }
        drop(assignment);
        consumer.pause(&partitions)
    }
}

fn names(partitions: &TopicPartitionList) -> Vec<TopicPartition> {
    native::entries(partitions)
        .into_iter()
        .map(|entry| TopicPartition::new(entry.topic, entry.partition))
        .collect()
}

impl ClientContext for Membership {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        // The client repeats itself for as long as a broker is away; what matters of it comes as
        // an error too.
        match level {
            RDKafkaLogLevel::Emerg | RDKafkaLogLevel::Alert | RDKafkaLogLevel::Critical => {
                tracing::error!(target: "librdkafka", "{facility}: {message}");
            }
            RDKafkaLogLevel::Error | RDKafkaLogLevel::Warning => {
                tracing::debug!(target: "librdkafka", "{facility}: {message}");
            }
            _ => tracing::trace!(target: "librdkafka", "{facility}: {message}"),
        }
    }

    fn stats_raw(&self, statistics: &[u8]) {
        self.health.statistics(statistics);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if let Some(code) = error.rdkafka_error_code() {
            self.health.error(code, reason);
        }
    }
}

impl ConsumerContext for Membership {
    fn rebalance(
        &self,
        consumer: &BaseConsumer<Self>,
        event: RDKafkaRespErr,
        partitions: &mut TopicPartitionList,
    ) {
        if event == RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS {
            self.assigned(consumer, partitions);
            self.health.rebalanced(true);
        } else {
            let lost = consumer.assignment_lost();
            self.revoked(consumer, partitions, lost);
            self.health.rebalanced(!lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use rdkafka::ClientConfig;
    use rdkafka::config::FromClientConfigAndContext;

    use super::*;
    use crate::source::Assigned;
    use crate::source::kafka::mailbox::Limits;

    /// A member whose broker is nowhere, with one partition that its worker knows of and has
    /// acknowledged records of.
    fn member(drain_timeout: Duration) -> (BaseConsumer<Membership>, TopicPartition) {
        let limits = Limits {
            max_events: 1,
            max_bytes: 1,
            max_wait: Duration::ZERO,
        };
        let desk = Arc::new(Desk::new(1));
        let mailboxes = vec![Arc::new(Mailbox::new(limits, Arc::clone(&desk)))];
        let health = Arc::new(Health::new(mailboxes.clone(), false));
        let membership = Membership::new(mailboxes, desk, health, drain_timeout, "test");
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", "127.0.0.1:1")
            .set("group.id", "g");
        let consumer = BaseConsumer::from_config_and_context(&config, membership).unwrap();
        let at = TopicPartition::new("t", 0);
        let member = consumer.context();
        lock(&member.assignment).add(vec![at.clone()]);
        member.mailboxes[0].assign(vec![Assigned {
            at: at.clone(),
            topic_id: None,
            cluster_id: None,
            committed: None,
            low: 0,
            high: 9,
        }]);
        let told = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap()
            .block_on(member.mailboxes[0].next());
        assert!(told.is_ok());
        member.desk.acknowledge(&at, 5);
        (consumer, at)
    }

    #[test]
    fn lost_partitions_are_not_waited_for_and_never_committed() {
        let (consumer, at) = member(Duration::from_secs(60));
        let begun = Instant::now();
        let member = Arc::clone(consumer.context());
        member.let_go(&consumer, &[at], true);
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert_eq!(member.health.snapshot().failed_commits, 0, "none was tried");
        assert!(lock(&member.assignment).partitions().is_empty());
        assert!(
            member.desk.await_release(Duration::ZERO).is_empty(),
            "none is awaited"
        );
    }

    #[test]
    fn revoked_partitions_are_waited_for_and_committed_though_not_for_ever() {
        let (consumer, at) = member(Duration::from_millis(100));
        let begun = Instant::now();
        let member = Arc::clone(consumer.context());
        member.let_go(&consumer, &[at], false);
        let elapsed = begun.elapsed();
        assert!(elapsed >= Duration::from_millis(100), "{elapsed:?}");
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
        assert_eq!(member.health.snapshot().failed_commits, 1, "one was tried");
        assert!(member.desk.acknowledged().is_empty());
        // Its drop would wait for the commit as long as a session lasts.
        std::mem::forget(consumer);
    }
}
