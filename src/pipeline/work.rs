//! A batch on its way through the line: what every record is found to be.

use std::ops::Range;

use hashbrown::HashMap;

use super::ownership::Ownership;
use crate::event::{Batch, Event, TopicPartition};
use crate::filter::{Lookup, Place, Probe};
use crate::identity::{self, EventKey, Found, Ids, Scope};
use crate::ledger::{Entry, Failure};

/// A batch with its ids and with what was found before any transaction.
#[derive(Debug)]
pub(super) struct Work {
    pub batch: Batch,
    pub ids: Ids,
    /// All records by key, those of the same key as they were read.
    by_key: Vec<u32>,
    id_scope: Scope,
    /// What the filter said of each record.
    pub probes: Vec<Probe>,
    /// Records that the configuration passes over.
    pub skipped: Vec<bool>,
    /// Records that can never be handled, and why; few.
    pub condemned: HashMap<u32, Failure>,
}

/// A range of a batch's records that is tried in one transaction.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub range: Range<usize>,
    /// The record in it that failed alone, and why: it is parked instead of handled.
    pub blamed: Option<(u32, Failure)>,
}

impl Work {
    /// A batch of which nothing is known yet.
    pub fn new(batch: Batch, id_scope: Scope) -> Self {
        let records = batch.len();
        Self {
            batch,
            id_scope,
            ids: Ids::default(),
            by_key: Vec::new(),
            probes: vec![Probe::Unknown; records],
            skipped: vec![false; records],
            condemned: HashMap::new(),
        }
    }

    /// Sorts the records, once all of them have an id.
    pub fn sort(&mut self) {
        let key = |index: u32| self.ids.key(index as usize).0.as_u128();
        let mut keys: Vec<(u128, u32)> = (0..self.batch.len() as u32)
            .map(|index| (key(index), index))
            .collect();
        keys.sort_unstable();
        self.by_key = keys.into_iter().map(|(_, index)| index).collect();
    }

    /// Records of a range by key, those of the same key as they were read.
    pub fn sorted(&self, range: &Range<usize>) -> impl Iterator<Item = u32> {
        let within = |index: &u32| range.contains(&(*index as usize));
        self.by_key.iter().copied().filter(within)
    }

    /// The whole batch as one part.
    pub fn whole(&self) -> Part {
        Part {
            range: 0..self.batch.len(),
            blamed: None,
        }
    }

    pub fn scope<'a>(&self, event: Event<'a>) -> Option<&'a str> {
        (self.id_scope == Scope::Topic).then(|| event.topic())
    }

    pub fn event(&self, index: u32) -> Event<'_> {
        self.batch.event(index as usize)
    }

    /// The id as text, where it is more than a name for the record's place.
    pub fn id_text(&self, index: u32) -> Option<&str> {
        let index = index as usize;
        (self.ids.found(index) != Found::Place).then(|| self.ids.text(index))
    }

    pub fn key(&self, index: u32) -> EventKey {
        self.ids.key(index as usize)
    }

    /// What to ask the filter about these records.
    pub fn lookups<'a>(&'a self, indexes: &'a [u32]) -> Vec<Lookup<'a>> {
        let lookup = |&index: &u32| {
            let event = self.event(index);
            Lookup {
                scope: self.scope(event),
                id: self.id_text(index),
                key: self.key(index),
                place: event.slot() as u32,
                offset: event.offset(),
            }
        };
        indexes.iter().map(lookup).collect()
    }

    /// What to ask the ledger about these records.
    pub fn entries<'a>(&'a self, indexes: &[u32], detect_conflicts: bool) -> Vec<Entry<'a>> {
        let entry = |&index: &u32| {
            let event = self.event(index);
            let body_hash = detect_conflicts.then(|| identity::body_hash(event));
            Entry {
                key: self.key(index),
                event,
                body_hash,
            }
        };
        indexes.iter().map(entry).collect()
    }

    /// Records of the part on which the filter holds a claim of this attempt.
    pub fn claimed(&self, range: Range<usize>) -> Vec<u32> {
        let claimed = |&index: &usize| self.probes.get(index) == Some(&Probe::Claimed);
        range.filter(claimed).map(|index| index as u32).collect()
    }
}

/// Cuts a part whose handler refused, so that each piece holds fewer events that were handled. An
/// event that was handled alone is the culprit.
///
/// Returned right to left: the last one is tried first, because order within a partition matters.
pub(super) fn halve(part: &Part, mut handled: Vec<u32>, failure: Failure) -> Vec<Part> {
    if let Some((blamed, _)) = part.blamed {
        handled.push(blamed);
        handled.sort_unstable();
    }
    match handled.as_slice() {
        [] => Vec::new(),
        [culprit] => vec![Part {
            range: part.range.clone(),
            blamed: Some((*culprit, failure)),
        }],
        _ => {
            let middle = handled[handled.len() / 2] as usize;
            let blamed = None;
            vec![
                Part {
                    range: middle..part.range.end,
                    blamed: blamed.clone(),
                },
                Part {
                    range: part.range.start..middle,
                    blamed,
                },
            ]
        }
    }
}

/// The places that marks cite, by slice.
pub(super) fn places(work: &Work, owned: &Ownership) -> Vec<Place> {
    let unowned = || Place {
        topic: String::new(),
        partition: -1,
    };
    let place = |at: &TopicPartition| owned.get(at).map_or_else(unowned, |o| o.place.clone());
    work.batch
        .slices()
        .iter()
        .map(|slice| place(&slice.at))
        .collect()
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::event::Incoming;

    #[test]
    fn records_of_one_key_stay_as_they_were_read() {
        let mut batch = Batch::new();
        let slot = batch.slice(&TopicPartition::new("orders", 0), 1);
        let mut work = Work::new(Batch::new(), Scope::Pipeline);
        for (offset, key) in (0..).zip([2, 1, 2, 1, 2]) {
            let record = Incoming {
                offset,
                ..Incoming::default()
            };
            batch.push(slot, record, std::iter::empty());
            let key = EventKey(Uuid::from_u128(key));
            work.ids.push("", key, Found::Id);
        }
        work.batch = batch;
        work.sort();
        assert_eq!(work.sorted(&(0..5)).collect::<Vec<_>>(), [1, 3, 0, 2, 4]);
        assert_eq!(work.sorted(&(1..4)).collect::<Vec<_>>(), [1, 3, 2]);
    }
}
