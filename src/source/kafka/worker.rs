//! One worker's end of the source.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::desk::{Command, Desk};
use super::inquiry::{Inquiries, Job};
use super::mailbox::Mailbox;
use crate::error::Error;
use crate::event::TopicPartition;
use crate::source::{Next, Source, TopicStart};

/// One worker's end of the Kafka source: its partitions, their records.
///
/// Nothing here blocks: the thread that reads is told, and answers by [`Source::next`]. When this
/// is dropped its partitions stay assigned, and nobody reads them.
pub struct KafkaWorkerSource {
    mailbox: Arc<Mailbox>,
    desk: Arc<Desk>,
    inquiries: Inquiries,
}

impl KafkaWorkerSource {
    pub(super) fn new(mailbox: Arc<Mailbox>, desk: Arc<Desk>, inquiries: Inquiries) -> Self {
        Self {
            mailbox,
            desk,
            inquiries,
        }
    }
}

impl Source for KafkaWorkerSource {
    async fn next(&mut self) -> Result<Next, Error> {
        self.mailbox.next().await
    }

    async fn interrupted(&mut self) {
        self.mailbox.interrupted().await;
    }

    async fn starts(&mut self, topic: &str, first: bool) -> Result<Vec<TopicStart>, Error> {
        let closed = || Error::transient(format!("where {topic} begins: the source is closed"));
        let (reply, answer) = oneshot::channel();
        let topic: Arc<str> = topic.into();
        self.inquiries
            .ask(Job::Starts {
                topic: Arc::clone(&topic),
                first,
                reply,
            })
            .map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    fn start(&mut self, at: &TopicPartition, session: u64, offset: i64) {
        self.desk.command(Command::Start {
            at: at.clone(),
            session,
            offset,
        });
    }

    fn halt(&mut self, at: &TopicPartition) {
        self.desk.command(Command::Halt { at: at.clone() });
    }

    fn reassign(&mut self, at: &TopicPartition, offset: i64) {
        self.desk.command(Command::Reassign {
            at: at.clone(),
            offset,
        });
    }

    fn acknowledge(&mut self, at: &TopicPartition, next_offset: i64) {
        self.desk.acknowledge(at, next_offset);
    }

    fn released(&mut self, partitions: &[TopicPartition]) {
        self.desk.release(partitions);
    }
}

impl Drop for KafkaWorkerSource {
    fn drop(&mut self) {
        self.mailbox.abandon();
    }
}
