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
        }
    }

    /// Whether the product has Redis.
    pub(super) fn has_redis(self) -> bool {
        match self {
            Self::Unique => false,
            Self::Filtered => true,
        }
    }
}
