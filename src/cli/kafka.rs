//! The Kafka of `demo` and `bench`: embedded, or a topic of its own on a real cluster.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::error::RDKafkaErrorCode;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;
use tokio::time::timeout;

use super::worker::Program;

/// How long a Kafka may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// No topic needs more copies to be watched.
const REPLICAS_MAX: usize = 3;

/// Which Kafka, and what has to be taken away again.
pub(super) enum Kafka {
    /// A mock cluster in a process of its own, which ends with this one.
    Embedded {
        /// The process.
        broker: Child,
        /// Its address.
        address: String,
    },
    /// A cluster that was there before.
    Cluster {
        /// Its addresses.
        brokers: String,
        /// For the topic.
        admin: AdminClient<DefaultClientContext>,
    },
}

impl Kafka {
    /// Starts an embedded Kafka with a topic.
    pub(super) async fn embedded(
        program: &Program,
        topic: &str,
        partitions: u16,
    ) -> anyhow::Result<Self> {
        let mut broker = program
            .command("mock-broker")
            .args(["--topic", topic, "--partitions", &partitions.to_string()])
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .context("cannot start the embedded Kafka")?;
        let failed = "the embedded Kafka did not start";
        let printed = broker.stdout.take().context(failed)?;
        let mut lines = BufReader::new(printed).lines();
        let address = timeout(ANSWER_TIMEOUT, lines.next_line())
            .await
            .context(failed)?
            .context(failed)?;
        let address = address.context(failed)?;
        Ok(Self::Embedded { broker, address })
    }

    /// Creates a topic on a real cluster.
    pub(super) async fn cluster(
        brokers: &str,
        topic: &str,
        partitions: u16,
    ) -> anyhow::Result<Self> {
        let mut config = ClientConfig::new();
        config.set("bootstrap.servers", brokers);
        let admin: AdminClient<DefaultClientContext> =
            config.create().context("cannot use --brokers")?;
        let advice = || {
            format!("there is no Kafka at {brokers}: run `make stack-up`, or give other --brokers")
        };
        let nodes =
            tokio::task::block_in_place(|| admin.inner().fetch_metadata(None, ANSWER_TIMEOUT))
                .with_context(advice)?
                .brokers()
                .len();
        let replicas = nodes.clamp(1, REPLICAS_MAX) as i32;
        let new = NewTopic::new(
            topic,
            i32::from(partitions),
            TopicReplication::Fixed(replicas),
        );
        let kafka = Self::Cluster {
            brokers: brokers.to_owned(),
            admin,
        };
        let Self::Cluster { admin, .. } = &kafka else {
            bail!("no cluster")
        };
        let created = admin.create_topics([&new], &options()).await;
        for topic in created.with_context(|| format!("cannot create topic {topic}"))? {
            topic.map_err(|(topic, error)| {
                anyhow::anyhow!("cannot create topic {topic}: {error}")
            })?;
        }
        Ok(kafka)
    }

    /// Where clients find it.
    pub(super) fn brokers(&self) -> &str {
        match self {
            Self::Embedded { address, .. } => address,
            Self::Cluster { brokers, .. } => brokers,
        }
    }

    /// Fails if an embedded Kafka has ended.
    pub(super) fn check(&mut self) -> anyhow::Result<()> {
        if let Self::Embedded { broker, .. } = self {
            let ended = broker
                .try_wait()
                .context("cannot watch the embedded Kafka")?;
            ensure!(
                ended.is_none(),
                "the embedded Kafka ended too early ({})",
                ended.unwrap_or_default()
            );
        }
        Ok(())
    }

    /// Ends an embedded Kafka; takes topic and groups away from a real cluster.
    pub(super) async fn clear(self, topic: &str, groups: &[&str]) -> anyhow::Result<()> {
        match self {
            Self::Embedded { mut broker, .. } => {
                drop(broker.stdin.take());
                if timeout(ANSWER_TIMEOUT, broker.wait()).await.is_err() {
                    broker
                        .kill()
                        .await
                        .context("cannot end the embedded Kafka")?;
                }
                Ok(())
            }
            Self::Cluster { admin, .. } => {
                delete_topic(&admin, topic).await?;
                // A member that was killed is in the group for some seconds; an empty group goes
                // by itself.
                let _ = admin.delete_groups(groups, &options()).await;
                Ok(())
            }
        }
    }
}

async fn delete_topic(
    admin: &AdminClient<DefaultClientContext>,
    topic: &str,
) -> anyhow::Result<()> {
    let deleted = admin.delete_topics(&[topic], &options()).await;
    for answer in
        deleted.with_context(|| format!("cannot delete topic {topic}; delete it by hand"))?
    {
        match answer {
            Ok(_) | Err((_, RDKafkaErrorCode::UnknownTopicOrPartition)) => {}
            Err((topic, error)) => bail!("cannot delete topic {topic}, delete it by hand: {error}"),
        }
    }
    Ok(())
}

fn options() -> AdminOptions {
    AdminOptions::new()
        .request_timeout(Some(ANSWER_TIMEOUT))
        .operation_timeout(Some(ANSWER_TIMEOUT))
}
