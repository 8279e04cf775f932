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
}

/// A bound of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Goal {
    /// Met where the ratio is not below.
    AtLeast(f64),
}

impl Goal {
    /// The bound itself.
    pub(super) fn bound(self) -> f64 {
        let Self::AtLeast(bound) = self;
        bound
    }

    /// Whether a ratio meets it.
    pub(super) fn is_met(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(bound) => ratio >= bound,
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
        }
    }

    /// What it is compared with. The first one's ratio is the scenario's figure.
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
        }
    }

    /// Whether the product has Redis.
    pub(super) fn has_redis(self) -> bool {
        match self {
            Self::Filtered | Self::Buckets | Self::Mixed | Self::Replay => true,
            Self::Unique | Self::Sql | Self::Ledger => false,
        }
    }

    /// Whether everything was applied before.
    pub(super) fn is_again(self) -> bool {
        matches!(self, Self::Replay | Self::Ledger)
    }
}
