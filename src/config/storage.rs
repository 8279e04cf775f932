//! `[redis]` and `[postgres]`.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::secret::Secret;
use super::values::duration;

/// The filter of what was applied already.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Redis {
    /// `redis://…` or `rediss://…`.
    pub url: Secret,
    /// How long an answer may take; after that Postgres decides.
    #[serde(with = "duration", default = "timeout")]
    pub timeout: Duration,
    /// How long a mark lives, at least.
    #[serde(with = "duration", default = "ttl")]
    pub ttl: Duration,
    /// How marks are stored.
    #[serde(default)]
    pub layout: Layout,
}

fn timeout() -> Duration {
    Duration::from_millis(50)
}

fn ttl() -> Duration {
    Duration::from_hours(24)
}

impl Redis {
    /// How long a mark may live.
    pub fn mark_life_max(&self) -> Duration {
        match self.layout {
            Layout::Keys => self.ttl,
            Layout::Buckets => self.ttl.saturating_mul(2),
        }
    }

    pub(super) fn complete() -> Self {
        Self {
            url: Secret::new("redis://localhost:6379"),
            timeout: timeout(),
            ttl: ttl(),
            layout: Layout::default(),
        }
    }
}

/// How marks are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layout {
    /// A key for each id.
    #[default]
    Keys,
    /// Ids in hashes, one set of them for each slice of time; without claims.
    Buckets,
}

/// Where effects and ledger live.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Postgres {
    /// `postgres://…`.
    pub url: Secret,
    /// The schema of onceonly's own tables.
    #[serde(default = "schema")]
    pub schema: String,
}

fn schema() -> String {
    "onceonly".into()
}

impl Postgres {
    pub(super) fn complete() -> Self {
        Self {
            url: Secret::new("postgres://localhost/app"),
            schema: schema(),
        }
    }
}
