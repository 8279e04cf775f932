//! What a process says of itself: every metric's name, unit, labels and meaning in one place, and
//! how they are written, exported and logged.
//!
//! Nothing here is touched per event: counters and histograms once per transaction through
//! [`LineMetrics`], gauges once per second from a [`ProcessState`].

use metrics::Unit;

#[cfg(feature = "http")]
mod exporter;
mod heartbeat;
mod line_metrics;
#[cfg(feature = "cli")]
mod logs;
mod process_state;
mod sampler;

#[cfg(feature = "http")]
pub use exporter::{Exporter, IDLE_TIMEOUT};
pub use heartbeat::{Heartbeat, Heartbeats, Stalled};
pub use line_metrics::LineMetrics;
#[cfg(feature = "cli")]
pub use logs::{LogError, LogFormat, start_logs};
pub use process_state::{FilterState, LedgerState, PartitionState, ProcessState, SourceState};
pub use sampler::Sampler;

/// Records whose transaction committed, by `outcome`.
pub const EVENTS: &str = "onceonly_events_total";
/// Ids that came with another body.
pub const CONFLICTS: &str = "onceonly_conflicts_total";
/// Further attempts at waiting events, by `result`.
pub const RETRIES: &str = "onceonly_retries_total";
/// Events that became dead letters, at the first attempt or a later one.
pub const DEAD_LETTERS: &str = "onceonly_dead_letters_total";
/// Partitions that another member claimed while this one believed to own them.
pub const FENCED: &str = "onceonly_fenced_total";
/// Records per transaction.
pub const TRANSACTION_EVENTS: &str = "onceonly_transaction_events";
/// From the beginning of a transaction to the answer of its commit.
pub const TRANSACTION_SECONDS: &str = "onceonly_transaction_seconds";
/// The commit alone.
pub const COMMIT_SECONDS: &str = "onceonly_commit_seconds";
/// Partitions that this process reads, or that stand still with it.
pub const PARTITIONS_OWNED: &str = "onceonly_partitions_owned";
/// Partitions that stand still until a person decides.
pub const PARTITIONS_STOPPED: &str = "onceonly_partitions_stopped";
/// Records between the position and the end of the log, by `topic` and `partition`.
pub const LAG: &str = "onceonly_lag_records";
/// How long the position stands although records wait, by `topic` and `partition`.
pub const POSITION_AGE: &str = "onceonly_position_age_seconds";
/// Whether the process does its work.
pub const READY: &str = "onceonly_ready";
/// Whether Postgres answers.
pub const POSTGRES_UP: &str = "onceonly_postgres_up";
/// Whether any Kafka broker can be reached.
pub const KAFKA_UP: &str = "onceonly_kafka_up";
/// How often partitions came or went.
pub const KAFKA_REBALANCES: &str = "onceonly_kafka_rebalances_total";
/// Offset commits that Kafka did not take.
pub const KAFKA_FAILED_COMMITS: &str = "onceonly_kafka_failed_commits_total";
/// Failed requests to Redis, by `kind`.
pub const REDIS_ERRORS: &str = "onceonly_redis_errors_total";
/// Whether a `breaker` keeps requests from Redis.
pub const REDIS_BREAKER_OPEN: &str = "onceonly_redis_breaker_open";
/// Marks that were not written.
pub const MARKS_DROPPED: &str = "onceonly_marks_dropped_total";

/// What the ledger's generations take on disk.
pub const LEDGER_BYTES: &str = "onceonly_ledger_bytes";
/// Whether a backlog keeps ids from being forgotten in their time.
pub const FORGETTING_HELD: &str = "onceonly_forgetting_held";

/// The upper bounds of the buckets of durations, in seconds: from a fast commit to a stalled one.
const SECONDS: &[f64] = &[
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// The upper bounds of the buckets of records per transaction.
const EVENT_COUNTS: &[f64] = &[
    1.0, 10.0, 50.0, 100.0, 500.0, 1_000.0, 2_500.0, 5_000.0, 10_000.0, 25_000.0, 100_000.0,
];

/// What a metric's number does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Grows from 0 as long as the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts values by size, in buckets with these upper bounds.
    Histogram(&'static [f64]),
}

impl Kind {
    /// The name that Prometheus has for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram(_) => "histogram",
        }
    }
}

/// A label, with its values where they are known beforehand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The label's name.
    pub name: &'static str,
    /// Every value it can have; empty where the input decides.
    pub values: &'static [&'static str],
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name, as exported.
    pub name: &'static str,
    /// What its number does.
    pub kind: Kind,
    /// What is counted or measured, for people.
    pub unit: &'static str,
    /// By what it is split. At most one label has values known beforehand.
    pub labels: &'static [Label],
    /// What it means, and what to make of it.
    pub meaning: &'static str,
}

/// The label of [`EVENTS`]: the names of [`crate::outcome::Outcome::ALL`].
const OUTCOME: Label = Label {
    name: "outcome",
    values: &[
        "applied",
        "duplicate_batch",
        "duplicate_position",
        "duplicate_recent",
        "duplicate_redis",
        "duplicate_ledger",
        "duplicate_waiting",
        "duplicate_dead",
        "retrying",
        "dead",
        "skipped",
    ],
};
const RESULT: Label = Label {
    name: "result",
    values: &["applied", "waiting", "dead"],
};
const TOPIC: Label = Label {
    name: "topic",
    values: &[],
};
const PARTITION: Label = Label {
    name: "partition",
    values: &[],
};
/// The label of [`REDIS_ERRORS`].
pub(crate) const REDIS_ERROR: Label = Label {
    name: "kind",
    values: &[
        "connect",
        "timeout",
        "disconnected",
        "not-ready",
        "read-only",
        "full",
        "refused",
    ],
};
const BREAKER: Label = Label {
    name: "breaker",
    values: &["answers", "writes"],
};

/// Every metric there is, in the order in which people ask for them.
pub const METRICS: &[Metric] = &[
    Metric {
        name: EVENTS,
        kind: Kind::Counter,
        unit: "records",
        labels: &[OUTCOME],
        meaning: "Records of this process whose transaction committed, by what became of them. Outcomes sum to the records consumed",
    },
    Metric {
        name: DEAD_LETTERS,
        kind: Kind::Counter,
        unit: "events",
        labels: &[],
        meaning: "Events that became dead letters here, at the first attempt or a later one. Each wants a look: `onceonly dead-letters list`",
    },
    Metric {
        name: RETRIES,
        kind: Kind::Counter,
        unit: "attempts",
        labels: &[RESULT],
        meaning: "Further attempts at waiting events: applied at last, waiting again, or dead",
    },
    Metric {
        name: CONFLICTS,
        kind: Kind::Counter,
        unit: "records",
        labels: &[],
        meaning: "Records whose id was known with another body. They count as duplicates; the producer reuses ids",
    },
    Metric {
        name: LAG,
        kind: Kind::Gauge,
        unit: "records",
        labels: &[TOPIC, PARTITION],
        meaning: "Offsets between the position of an owned partition and the end of the log, as of the last few seconds. 0 when all is done",
    },
    Metric {
        name: POSITION_AGE,
        kind: Kind::Gauge,
        unit: "seconds",
        labels: &[TOPIC, PARTITION],
        meaning: "How long the position of an owned partition has not moved although records wait; 0 while it moves. Alarm on this one",
    },
    Metric {
        name: TRANSACTION_EVENTS,
        kind: Kind::Histogram(EVENT_COUNTS),
        unit: "records",
        labels: &[],
        meaning: "Records per committed transaction; its count is the transactions",
    },
    Metric {
        name: TRANSACTION_SECONDS,
        kind: Kind::Histogram(SECONDS),
        unit: "seconds",
        labels: &[],
        meaning: "From the beginning of a transaction to the answer of its commit, the handler's work included",
    },
    Metric {
        name: COMMIT_SECONDS,
        kind: Kind::Histogram(SECONDS),
        unit: "seconds",
        labels: &[],
        meaning: "The commit alone: how long Postgres takes to make it durable",
    },
    Metric {
        name: READY,
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        meaning: "1 while `/ready` answers 200",
    },
    Metric {
        name: POSTGRES_UP,
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        meaning: "1 while Postgres answers; without it nothing is applied and nothing is lost",
    },
    Metric {
        name: KAFKA_UP,
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        meaning: "1 while any broker can be reached",
    },
    Metric {
        name: PARTITIONS_OWNED,
        kind: Kind::Gauge,
        unit: "partitions",
        labels: &[],
        meaning: "Partitions that this process claimed. Over all members they sum to the topic's",
    },
    Metric {
        name: PARTITIONS_STOPPED,
        kind: Kind::Gauge,
        unit: "partitions",
        labels: &[],
        meaning: "Those of them that stand still until a person decides; `/ready` has the reasons",
    },
    Metric {
        name: FENCED,
        kind: Kind::Counter,
        unit: "partitions",
        labels: &[],
        meaning: "Partitions that another member claimed while this one believed to own them. Some come with every rebalance; each was stopped in time",
    },
    Metric {
        name: KAFKA_REBALANCES,
        kind: Kind::Counter,
        unit: "rebalances",
        labels: &[],
        meaning: "How often partitions came or went",
    },
    Metric {
        name: KAFKA_FAILED_COMMITS,
        kind: Kind::Counter,
        unit: "commits",
        labels: &[],
        meaning: "Offset commits that Kafka did not take. Only the lag that Kafka's own tools show depends on them",
    },
    Metric {
        name: REDIS_BREAKER_OPEN,
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[BREAKER],
        meaning: "1 while Redis is left alone because it keeps failing: `answers` for everything, `writes` for new marks. Duplicates then cost Postgres a look",
    },
    Metric {
        name: REDIS_ERRORS,
        kind: Kind::Counter,
        unit: "requests",
        labels: &[REDIS_ERROR],
        meaning: "Requests to Redis that failed, by kind. They cost speed, never correctness",
    },
    Metric {
        name: MARKS_DROPPED,
        kind: Kind::Counter,
        unit: "marks",
        labels: &[],
        meaning: "Marks that did not reach Redis. Their duplicates cost Postgres a look",
    },
    Metric {
        name: LEDGER_BYTES,
        kind: Kind::Gauge,
        unit: "bytes",
        labels: &[],
        meaning: "What the ledger takes on disk. Only from the member that keeps its memory",
    },
    Metric {
        name: FORGETTING_HELD,
        kind: Kind::Gauge,
        unit: "0 or 1",
        labels: &[],
        meaning: "1 while ids are kept beyond `dedup.retention` because a backlog may hold their duplicates. Only from the member that keeps the ledger's memory",
    },
];

/// Tells the recorder what each metric means, and begins every counter whose labels are known at
/// 0, so that its first increase can be seen as one.
pub fn describe() {
    for metric in METRICS {
        let unit = match metric.unit {
            "seconds" => Unit::Seconds,
            _ => Unit::Count,
        };
        match metric.kind {
            Kind::Counter => metrics::describe_counter!(metric.name, unit, metric.meaning),
            Kind::Gauge => metrics::describe_gauge!(metric.name, unit, metric.meaning),
            Kind::Histogram(_) => metrics::describe_histogram!(metric.name, unit, metric.meaning),
        }
        if metric.kind == Kind::Counter {
            begin(metric);
        }
    }
}

fn begin(counter: &Metric) {
    match counter.labels {
        [] => metrics::counter!(counter.name).increment(0),
        [label] => {
            for value in label.values {
                metrics::counter!(counter.name, label.name => *value).increment(0);
            }
        }
        _ => {}
    }
}

/// The metrics as a table in Markdown, as the README has it.
pub fn markdown_table() -> String {
    let row = |metric: &Metric| {
        let labels: Vec<_> = metric
            .labels
            .iter()
            .map(|label| format!("`{}`", label.name))
            .collect();
        format!(
            "| `{}` | {} | {} | {} | {} |\n",
            metric.name,
            metric.kind.name(),
            metric.unit,
            labels.join(", "),
            metric.meaning,
        )
    };
    let head = "| metric | type | unit | labels | meaning |\n| --- | --- | --- | --- | --- |\n";
    std::iter::once(head.to_owned())
        .chain(METRICS.iter().map(row))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Outcome;

    #[test]
    fn the_label_of_events_has_every_outcome() {
        assert_eq!(OUTCOME.values, Outcome::ALL.map(Outcome::name));
    }

    #[test]
    fn names_follow_the_conventions_and_none_is_there_twice() {
        let mut names: Vec<_> = METRICS.iter().map(|metric| metric.name).collect();
        for metric in METRICS {
            let total = metric.name.ends_with("_total");
            assert_eq!(total, metric.kind == Kind::Counter, "{}", metric.name);
            let seconds = metric.name.ends_with("_seconds");
            assert_eq!(seconds, metric.unit == "seconds", "{}", metric.name);
            assert!(metric.name.starts_with("onceonly_"), "{}", metric.name);
        }
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }

    #[test]
    fn the_readme_has_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        let readme = std::fs::read_to_string(path).unwrap();
        let (_, rest) = readme.split_once("<!-- metrics -->\n").unwrap();
        let (table, _) = rest.split_once("<!-- /metrics -->").unwrap();
        let expected = markdown_table();
        assert!(
            table.trim() == expected.trim(),
            "put this between the markers of README.md:\n{expected}"
        );
    }
}
