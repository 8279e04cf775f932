//! What became of a record, and how many became what.

use serde::{Deserialize, Serialize};

/// Which layer recognised a duplicate, from the cheapest to the dearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Layer {
    /// The same id stood earlier in the same batch.
    Batch,
    /// The record's offset lies below the committed position.
    Position,
    /// The worker's own memory of what it applied lately.
    Recent,
    /// A mark in Redis whose proof held.
    Redis,
    /// The ledger in Postgres.
    Ledger,
    /// The id is waiting for a retry.
    Waiting,
    /// The id is a dead letter, or was discarded.
    Dead,
}

/// The one outcome in which a record ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The handler ran, and its effects are committed.
    Applied,
    /// The event was known; nothing was done.
    Duplicate(Layer),
    /// It failed and waits for another attempt.
    Retrying,
    /// It is a dead letter.
    Dead,
    /// The configuration says to pass over it: a tombstone, or a missing id.
    Skipped,
}

impl Outcome {
    /// Every outcome, in the order of [`Tally::counts`].
    pub const ALL: [Self; 11] = [
        Self::Applied,
        Self::Duplicate(Layer::Batch),
        Self::Duplicate(Layer::Position),
        Self::Duplicate(Layer::Recent),
        Self::Duplicate(Layer::Redis),
        Self::Duplicate(Layer::Ledger),
        Self::Duplicate(Layer::Waiting),
        Self::Duplicate(Layer::Dead),
        Self::Retrying,
        Self::Dead,
        Self::Skipped,
    ];

    /// The name in tables, metrics and the columns of `position`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Duplicate(Layer::Batch) => "duplicate_batch",
            Self::Duplicate(Layer::Position) => "duplicate_position",
            Self::Duplicate(Layer::Recent) => "duplicate_recent",
            Self::Duplicate(Layer::Redis) => "duplicate_redis",
            Self::Duplicate(Layer::Ledger) => "duplicate_ledger",
            Self::Duplicate(Layer::Waiting) => "duplicate_waiting",
            Self::Duplicate(Layer::Dead) => "duplicate_dead",
            Self::Retrying => "retrying",
            Self::Dead => "dead",
            Self::Skipped => "skipped",
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Applied => 0,
            Self::Duplicate(layer) => 1 + layer as usize,
            Self::Retrying => 8,
            Self::Dead => 9,
            Self::Skipped => 10,
        }
    }
}

/// A count for each outcome; they sum to the records consumed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    counts: [u64; Outcome::ALL.len()],
}

impl Tally {
    /// Takes counts in the order of [`Outcome::ALL`].
    pub fn from_counts(counts: [u64; Outcome::ALL.len()]) -> Self {
        Self { counts }
    }

    /// Counts one record.
    pub fn add(&mut self, outcome: Outcome) {
        self.counts[outcome.index()] += 1;
    }

    /// Adds another tally to this one.
    pub fn merge(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum += count;
        }
    }

    /// How many had this outcome.
    pub fn get(&self, outcome: Outcome) -> u64 {
        self.counts[outcome.index()]
    }

    /// The counts in the order of [`Outcome::ALL`].
    pub fn counts(&self) -> [u64; Outcome::ALL.len()] {
        self.counts
    }

    /// Duplicates of every layer.
    pub fn duplicates(&self) -> u64 {
        self.counts[1..=7].iter().sum()
    }

    /// Records counted.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_a_place_and_a_name_of_its_own() {
        let mut tally = Tally::default();
        for (index, outcome) in Outcome::ALL.into_iter().enumerate() {
            assert_eq!(outcome.index(), index, "{}", outcome.name());
            tally.add(outcome);
        }
        assert_eq!(tally.counts(), [1; 11]);
        assert_eq!((tally.total(), tally.duplicates()), (11, 7));
        let mut names = Outcome::ALL.map(Outcome::name);
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}
