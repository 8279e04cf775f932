//! How a process fares at one moment, whoever asks.

use crate::event::TopicPartition;

/// What `/ready` and the gauges are made of. Taken once per second and per request, so that it
/// must cost no I/O.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessState {
    /// Whether Postgres answers.
    pub postgres_up: bool,
    /// How Kafka fares.
    pub source: SourceState,
    /// How the filter fares; `None` where there is none.
    pub filter: Option<FilterState>,
    /// The partitions that this process claimed, in order.
    pub partitions: Vec<PartitionState>,
    /// How the ledger's memory is kept; `None` where another member keeps it.
    pub ledger: Option<LedgerState>,
    /// Whether the process is leaving: it takes nothing new.
    pub leaving: bool,
}

/// How Kafka fares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceState {
    /// Whether any broker can be reached.
    pub connected: bool,
    /// What it waits for: a topic that does not exist.
    pub waiting: Option<String>,
    /// The last thing that went wrong; it may be over.
    pub last_error: Option<String>,
    /// How often partitions came or went.
    pub rebalances: u64,
    /// Offset commits that were not taken.
    pub failed_commits: u64,
}

/// How the filter fares. It costs speed when it fails, never readiness.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterState {
    /// What is wrong, in a sentence.
    pub trouble: Option<String>,
    /// Whether it is left alone because it does not answer.
    pub answers_open: bool,
    /// Whether marks are withheld because it does not take them.
    pub writes_open: bool,
}

/// How the ledger's memory is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerState {
    /// What the ledger takes on disk.
    pub bytes: u64,
    /// Whether a backlog keeps ids from being forgotten in their time.
    pub forgetting_held: bool,
}

/// How one partition fares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionState {
    /// The partition.
    pub at: TopicPartition,
    /// The next offset to process, where that is known.
    pub position: Option<i64>,
    /// Records between the position and the end of the log, where that is known.
    pub lag: Option<i64>,
    /// Why it stands still until a person decides, if it does.
    pub stopped: Option<String>,
}

impl ProcessState {
    /// What keeps the process from doing its work, a sentence each; ready if there is none.
    pub fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if self.leaving {
            missing.push("the process is leaving: it finishes what it has in hand".to_owned());
        }
        if !self.postgres_up {
            missing.push("Postgres is not answering: nothing is applied until it does".to_owned());
        }
        if !self.source.connected {
            missing.push(match &self.source.last_error {
                Some(error) => format!("no Kafka broker can be reached: {error}"),
                None => "no Kafka broker can be reached".to_owned(),
            });
        }
        missing.extend(self.source.waiting.clone());
        missing.extend(self.stopped().map(|(at, reason)| {
            let TopicPartition { topic, partition } = at;
            format!("partition {partition} of {topic} is stopped: {reason}")
        }));
        missing
    }

    /// Whether the process does its work.
    pub fn is_ready(&self) -> bool {
        self.missing().is_empty()
    }

    /// The partitions that stand still, and why.
    pub fn stopped(&self) -> impl Iterator<Item = (&TopicPartition, &str)> {
        let stopped = |p: &'_ PartitionState| p.stopped.is_some();
        let partitions = self.partitions.iter().filter(move |p| stopped(p));
        partitions.map(|p| (&p.at, p.stopped.as_deref().unwrap_or_default()))
    }
}

#[cfg(feature = "kafka")]
impl From<&crate::source::kafka::KafkaState> for SourceState {
    fn from(kafka: &crate::source::kafka::KafkaState) -> Self {
        Self {
            connected: kafka.connected,
            waiting: kafka.waiting.clone(),
            last_error: kafka.last_error.clone(),
            rebalances: kafka.rebalances,
            failed_commits: kafka.failed_commits,
        }
    }
}
