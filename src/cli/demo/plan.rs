//! What the demo produces: every record decided beforehand, from a seed.

use rand::rngs::StdRng;
use rand::seq::index;
use rand::{RngExt as _, SeedableRng as _};

/// Of ten records, so many carry an event that was there before.
const DUPLICATES_OF_TEN: u32 = 3;

/// One record: which event it carries, and where it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planned {
    /// The event's number, below [`Plan::distinct`].
    pub(super) event: u32,
    /// The partition.
    pub(super) partition: u16,
}

/// Records in the order in which they are sent.
#[derive(Debug)]
pub(super) struct Plan {
    /// The records.
    pub(super) records: Vec<Planned>,
    /// How many events there are; the other records repeat one.
    pub(super) distinct: u32,
    /// How many partitions.
    pub(super) partitions: u16,
    /// Repeats that follow their event in the same partition at once.
    pub(super) adjacent: u32,
    /// Repeats in the same partition, far behind.
    pub(super) distant: u32,
    /// Repeats in another partition, soon or late.
    pub(super) elsewhere: u32,
    seed: u64,
}

/// A record with its place in the order: behind which event, and in which row of those behind it.
struct Placed {
    behind: u32,
    rank: u8,
    record: Planned,
}

impl Plan {
    /// Plans `records` records over `partitions` partitions, two or more. The same seed gives the
    /// same plan.
    pub(super) fn new(records: u32, partitions: u16, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let duplicates = records / 10 * DUPLICATES_OF_TEN;
        let distinct = records - duplicates;
        let (adjacent, distant) = (duplicates / 3, duplicates / 3);
        let elsewhere = duplicates - adjacent - distant;

        let homes: Vec<u16> = (0..distinct)
            .map(|_| random.random_range(0..partitions))
            .collect();
        let home = |event: u32| homes.get(event as usize).copied().unwrap_or_default();
        let place = |event: u32, partition, behind, rank| Placed {
            behind,
            rank,
            record: Planned { event, partition },
        };
        let mut placed: Vec<_> = (0..distinct)
            .map(|event| place(event, home(event), event, 0))
            .collect();
        for event in some_of(distinct, adjacent, &mut random) {
            placed.push(place(event, home(event), event, 1));
        }
        // Of the first half, so that there is a distance before them.
        for event in some_of(distinct / 2, distant, &mut random) {
            let behind = event + random.random_range(distinct / 4..=distinct / 2);
            placed.push(place(event, home(event), behind, 2));
        }
        for event in some_of(distinct, elsewhere, &mut random) {
            let behind = random.random_range(event..distinct);
            let other = (home(event) + random.random_range(1..partitions)) % partitions;
            placed.push(place(event, other, behind, 3));
        }
        placed.sort_by_key(|placed| (placed.behind, placed.rank));
        let records = placed.into_iter().map(|placed| placed.record).collect();
        Self {
            records,
            distinct,
            partitions,
            adjacent,
            distant,
            elsewhere,
            seed,
        }
    }

    /// How many records each partition gets.
    pub(super) fn ends(&self) -> Vec<i64> {
        let mut ends = vec![0; usize::from(self.partitions)];
        for record in &self.records {
            if let Some(end) = ends.get_mut(usize::from(record.partition)) {
                *end += 1;
            }
        }
        ends
    }

    /// How many records there are.
    pub(super) fn produced(&self) -> u64 {
        self.records.len() as u64
    }

    /// Repeats of all three kinds.
    pub(super) fn duplicates(&self) -> u32 {
        self.adjacent + self.distant + self.elsewhere
    }

    /// Every event's id, once.
    pub(super) fn ids(&self) -> impl Iterator<Item = String> {
        (0..self.distinct).map(event_id)
    }

    /// An event's Kafka key and value; each copy has the same.
    pub(super) fn body(&self, event: u32) -> (String, String) {
        let bits = mixed(self.seed ^ u64::from(event).rotate_left(32));
        let customer = bits % 5_000;
        let (euros, cents) = ((bits >> 16) % 500, (bits >> 32) % 100);
        let value = format!(
            r#"{{"order":"{}","customer":{customer},"amount":"{euros}.{cents:02}","currency":"EUR","items":{},"note":"{bits:016x}"}}"#,
            event_id(event),
            1 + (bits >> 48) % 9,
        );
        (format!("customer-{customer}"), value)
    }
}

/// The id of an event.
pub(super) fn event_id(event: u32) -> String {
    format!("order-{event:08}")
}

/// So many different numbers below `bound`.
fn some_of(bound: u32, amount: u32, random: &mut StdRng) -> impl Iterator<Item = u32> + use<> {
    index::sample(random, bound as usize, amount as usize)
        .into_iter()
        .map(|index| index as u32)
}

/// Spreads neighbouring numbers (the finaliser of SplitMix64).
fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use super::*;

    #[test]
    fn thirty_percent_repeat_an_event_in_three_ways() {
        let plan = Plan::new(10_000, 8, 1);
        assert_eq!((plan.records.len(), plan.distinct), (10_000, 7_000));
        assert_eq!(
            (plan.adjacent, plan.distant, plan.elsewhere),
            (1_000, 1_000, 1_000)
        );

        let mut first: HashMap<u32, (usize, u16)> = HashMap::new();
        let mut last: HashMap<u16, u32> = HashMap::new();
        let (mut adjacent, mut distant, mut elsewhere) = (0, 0, 0);
        for (index, record) in plan.records.iter().enumerate() {
            let previous = last.insert(record.partition, record.event);
            let (at, home) = *first
                .entry(record.event)
                .or_insert((index, record.partition));
            match () {
                () if at == index => {}
                () if home != record.partition => elsewhere += 1,
                () if previous == Some(record.event) => adjacent += 1,
                () => {
                    assert!(
                        index - at > 7_000 / 4,
                        "a distant repeat is near: {index} after {at}"
                    );
                    distant += 1;
                }
            }
        }
        assert_eq!((adjacent, distant, elsewhere), (1_000, 1_000, 1_000));
        assert_eq!(first.len(), 7_000, "every event is there");
    }

    #[test]
    fn the_same_seed_gives_the_same_records_and_another_one_others() {
        let (plan, same, other) = (
            Plan::new(1_000, 8, 7),
            Plan::new(1_000, 8, 7),
            Plan::new(1_000, 8, 8),
        );
        assert_eq!(plan.records, same.records);
        assert_eq!(plan.body(42), same.body(42));
        assert_ne!(plan.records, other.records);
        assert_ne!(plan.body(42), other.body(42));
    }

    #[test]
    fn every_partition_gets_its_share() {
        let plan = Plan::new(8_000, 8, 1);
        let ends = plan.ends();
        assert_eq!(ends.iter().sum::<i64>(), 8_000);
        assert!(
            ends.iter().all(|end| (800..1_200).contains(end)),
            "{ends:?}"
        );
    }

    #[test]
    fn ids_are_unique_and_bodies_are_json() {
        let plan = Plan::new(1_000, 8, 1);
        assert_eq!(plan.ids().collect::<HashSet<_>>().len(), 700);
        for event in 0..plan.distinct {
            let (_, value) = plan.body(event);
            let value: serde_json::Value = serde_json::from_str(&value).unwrap();
            assert_eq!(value["order"], event_id(event));
            assert!(value["amount"].as_str().unwrap().parse::<f64>().is_ok());
        }
    }
}
