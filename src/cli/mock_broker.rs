//! `onceonly mock-broker`: an embedded Kafka in a process of its own.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use rdkafka::mocking::MockCluster;

use super::{lifeline, output};

/// A Kafka in memory, for the demo: prints its address and lives until its standard input ends
#[derive(Debug, Args)]
pub(crate) struct MockBroker {
    /// A topic to create
    #[arg(long)]
    topic: String,
    /// The topic's partitions
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    partitions: u16,
}

impl MockBroker {
    /// Serves until standard input ends: whoever holds the other end of the pipe need not be alive
    /// to end it.
    pub(crate) fn run(self) -> anyhow::Result<ExitCode> {
        let cluster = MockCluster::new(1).context("cannot start the embedded Kafka")?;
        cluster
            .create_topic(&self.topic, i32::from(self.partitions), 1)
            .with_context(|| {
                format!("cannot create topic {:?} in the embedded Kafka", self.topic)
            })?;
        output::print(&format!("{}\n", cluster.bootstrap_servers()))?;
        lifeline::await_end();
        Ok(ExitCode::SUCCESS)
    }
}
