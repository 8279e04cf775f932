//! The partitions that a worker owns, and what its connection has read of everybody's progress.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use crate::event::TopicPartition;
use crate::filter::{Place, Proofs};
use crate::ledger::Standing;

/// A partition that this worker claimed.
#[derive(Clone, Debug)]
pub(super) struct Owned {
    /// The epoch of the claim: the fence.
    pub epoch: i64,
    /// The committed position, as this owner last knew it.
    pub next_offset: i64,
    /// Records of other sessions are stale.
    pub session: u64,
    /// The topic's id, where a broker told.
    pub topic_id: Option<Uuid>,
    /// Names the place in marks.
    pub place: Place,
    /// Failed events since the last one that was applied.
    pub failed_in_a_row: u32,
    /// Whether a person has to decide before it goes on.
    pub stopped: bool,
}

/// What a worker owns.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    partitions: BTreeMap<TopicPartition, Owned>,
    sessions: u64,
}

impl Ownership {
    pub fn get(&self, at: &TopicPartition) -> Option<&Owned> {
        self.partitions.get(at)
    }

    pub fn get_mut(&mut self, at: &TopicPartition) -> Option<&mut Owned> {
        self.partitions.get_mut(at)
    }

    /// The partition, if records of this session may be processed.
    pub fn reading(&self, at: &TopicPartition, session: u64) -> Option<&Owned> {
        self.get(at)
            .filter(|owned| owned.session == session && !owned.stopped)
    }

    pub fn insert(&mut self, at: TopicPartition, owned: Owned) {
        self.partitions.insert(at, owned);
    }

    pub fn remove(&mut self, at: &TopicPartition) -> Option<Owned> {
        self.partitions.remove(at)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&TopicPartition, &Owned)> {
        self.partitions.iter()
    }

    /// A session number that no record carries yet.
    pub fn next_session(&mut self) -> u64 {
        self.sessions += 1;
        self.sessions
    }
}

/// How far every partition of the pipeline was ever committed, as one connection has read it.
#[derive(Debug, Default)]
pub(super) struct HighWaters {
    /// The history that they belong to.
    history: String,
    topics: HashMap<String, HashMap<i32, i64>>,
}

impl HighWaters {
    /// Forgets everything: another connection may see another history.
    pub fn begin(&mut self, history: String) {
        self.history = history;
        self.topics.clear();
    }

    /// How marks name a partition.
    ///
    /// By the topic's incarnation, so that a mark of a topic that was deleted proves nothing about
    /// the one made after it (where no broker tells the id, by its name), and by the history that
    /// the position belongs to, so that a mark of another database proves nothing in this one.
    pub fn place(&self, at: &TopicPartition, topic_id: Option<Uuid>) -> Place {
        let topic = match topic_id {
            Some(id) => id.simple().to_string(),
            None => blake3::hash(at.topic.as_bytes()).to_hex().to_string(),
        };
        let history = blake3::hash(self.history.as_bytes()).to_hex();
        Place {
            topic: format!("{}-{}", &topic[..8], &history[..8]),
            partition: at.partition,
        }
    }

    /// Replaces what is known by what was just read.
    pub fn read(&mut self, standings: &[Standing]) {
        self.topics.clear();
        for standing in standings {
            let place = self.place(&standing.at, standing.topic_id);
            self.raise(&place, standing.high_water);
        }
    }

    /// Notes a position that this connection committed.
    pub fn raise(&mut self, place: &Place, high_water: i64) {
        if !self.topics.contains_key(&place.topic) {
            self.topics.insert(place.topic.clone(), HashMap::new());
        }
        if let Some(partitions) = self.topics.get_mut(&place.topic) {
            let known = partitions.entry(place.partition).or_insert(high_water);
            *known = high_water.max(*known);
        }
    }
}

impl Proofs for HighWaters {
    fn high_water(&self, topic: &str, partition: i32) -> Option<i64> {
        self.topics.get(topic)?.get(&partition).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(topic_id: u128, high_water: i64) -> Standing {
        let at = TopicPartition::new("orders", 1);
        let topic_id = Some(Uuid::from_u128(topic_id << 64));
        Standing {
            at,
            epoch: 1,
            next_offset: 0,
            high_water,
            topic_id,
        }
    }

    #[test]
    fn a_topic_made_again_and_another_history_are_other_places() {
        let at = TopicPartition::new("orders", 1);
        let mut waters = HighWaters::default();
        let ids = [
            None,
            Some(Uuid::from_u128(1 << 100)),
            Some(Uuid::from_u128(2 << 100)),
        ];
        let mut places: Vec<Place> = Vec::new();
        for history in ["one", "two"] {
            waters.begin(history.to_owned());
            places.extend(ids.map(|id| waters.place(&at, id)));
            assert_eq!(waters.place(&at, None), waters.place(&at, None));
        }
        for (index, place) in places.iter().enumerate() {
            assert!(!places[..index].contains(place), "{places:?}");
        }
    }

    #[test]
    fn a_high_water_is_believed_until_the_next_reading_says_less() {
        let mut waters = HighWaters::default();
        let standing = standing(7 << 40, 50);
        waters.read(std::slice::from_ref(&standing));
        let place = waters.place(&standing.at, standing.topic_id);
        waters.raise(&place, 80);
        waters.raise(&place, 60);
        assert_eq!(waters.high_water(&place.topic, 1), Some(80));
        assert_eq!(waters.high_water(&place.topic, 2), None);
        waters.read(&[standing]);
        assert_eq!(waters.high_water(&place.topic, 1), Some(50));
    }
}
