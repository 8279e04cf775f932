//! What can be measured, and what it should come to.

use clap::ValueEnum;

use super::baseline::Baseline;

/// A scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum Scenario {
    /// No duplicates, and no Redis
    Unique,
    /// The same with Redis, a key for each id
    Filtered,
    /// The same with redis.layout = "buckets"
    Buckets,
    /// No duplicates, no Redis, and a user's statement
    Sql,
    /// Half of the records are duplicates, near and far, with Redis
    Mixed,
    /// The whole topic again after a rewind, with Redis, which knows every id
    Replay,
    /// The whole topic again after a rewind, without Redis
    Ledger,
    /// 1,000 events a second for 20 s: the time from producer to commit
    Latency,
    /// Memory while Postgres stalls in the middle of filtered
    Memory,
    /// The processors' time for the parts alone, by that for filtered
    Efficiency,
}

/// A bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// Met where the ratio is not below.
    AtLeast(f64),
    /// Met where the ratio is not above.
    AtMost(f64),
}

impl Goal {
    /// The bound itself.
    pub(super) fn bound(self) -> f64 {
        let (Self::AtLeast(bound) | Self::AtMost(bound)) = self;
        bound
    }

    /// Whether a ratio meets it.
    pub(super) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
            Self::AtMost(bound) => ratio <= bound,
        }
    }
}

impl Scenario {
    /// As on the command line.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Unique => "unique",
            Self::Filtered => "filtered",
            Self::Buckets => "buckets",
            Self::Sql => "sql",
            Self::Mixed => "mixed",
            Self::Replay => "replay",
            Self::Ledger => "ledger",
            Self::Latency => "latency",
            Self::Memory => "memory",
            Self::Efficiency => "efficiency",
        }
    }

    /// The goal of a scenario that is no comparison of rates.
    pub(super) fn own_goal(self) -> Option<Goal> {
        match self {
            Self::Latency => Some(Goal::AtMost(2.0)),
            Self::Memory => Some(Goal::AtMost(1.0)),
            Self::Efficiency => Some(Goal::AtLeast(0.9)),
            _ => None,
        }
    }

    /// What is measured after the product in each round. The first one's ratio is the scenario's
    /// figure, unless it has a goal of its own.
    pub(super) fn baselines(self) -> &'static [(Baseline, Option<Goal>)] {
        match self {
            Self::Unique => &[
                (Baseline::Copy, Some(Goal::AtLeast(0.85))),
                (Baseline::Consume, None),
            ],
            Self::Filtered => &[
                (Baseline::Copy, Some(Goal::AtLeast(0.65))),
                (Baseline::Naive, Some(Goal::AtLeast(25.0))),
                (Baseline::Consume, None),
                (Baseline::Marks, None),
            ],
            Self::Buckets => &[(Baseline::Copy, Some(Goal::AtLeast(0.8)))],
            Self::Sql => &[(Baseline::Sql, Some(Goal::AtLeast(0.8)))],
            Self::Mixed => &[(Baseline::Copy, Some(Goal::AtLeast(1.1)))],
            Self::Replay => &[(Baseline::Consume, Some(Goal::AtLeast(0.6)))],
            Self::Ledger => &[(Baseline::Consume, Some(Goal::AtLeast(0.4)))],
            Self::Efficiency => &[
                (Baseline::Consume, None),
                (Baseline::Copy, None),
                (Baseline::Marks, None),
            ],
            Self::Latency | Self::Memory => &[],
        }
    }

    /// Whether the product has Redis.
    pub(super) fn has_redis(self) -> bool {
        match self {
            Self::Filtered
            | Self::Buckets
            | Self::Mixed
            | Self::Replay
            | Self::Latency
            | Self::Memory
            | Self::Efficiency => true,
            Self::Unique | Self::Sql | Self::Ledger => false,
        }
    }

    /// Whether everything was applied before.
    pub(super) fn is_again(self) -> bool {
        matches!(self, Self::Replay | Self::Ledger)
    }
}
