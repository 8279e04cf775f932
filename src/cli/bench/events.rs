//! The events that are measured: about 250 bytes of JSON, with random UUIDs as ids, all of them
//! computed from their numbers.

use std::ops::Range;

use uuid::{Builder, Uuid};

use crate::cli::produce::Record;

/// Partitions of a topic.
pub(super) const PARTITIONS: u16 = 8;

/// How many customers there are, and with them different Kafka keys.
const CUSTOMERS: u64 = 5_000;

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Its id; the header holds it as text.
    pub(super) id: Uuid,
    /// Its Kafka key.
    pub(super) key: String,
    /// Its JSON.
    pub(super) value: String,
    /// Where its first record goes.
    pub(super) partition: u16,
    /// The offset of that record in a topic without duplicates.
    pub(super) offset: i64,
}

impl Event {
    /// The event of a number.
    pub(super) fn new(number: u32) -> Self {
        let bits = mixed(u64::from(number));
        let customer = bits % CUSTOMERS;
        let (euros, cents) = ((bits >> 16) % 500, (bits >> 32) % 100);
        let id = id(number);
        let value = format!(
            r#"{{"id":"{id}","type":"order.placed","customer":"customer-{customer:05}","amount":"{euros}.{cents:02}","currency":"EUR","items":[{{"sku":"sku-{:06}","quantity":{}}},{{"sku":"sku-{:06}","quantity":1}}],"express":{},"note":"{bits:016x}"}}"#,
            (bits >> 8) % 1_000_000,
            1 + (bits >> 48) % 9,
            (bits >> 24) % 1_000_000,
            bits & 1 == 1,
        );
        Self {
            id,
            key: format!("customer-{customer:05}"),
            value,
            partition: partition(number),
            offset: i64::from(number / u32::from(PARTITIONS)),
        }
    }

    /// A record of it in a partition.
    pub(super) fn record(&self, partition: u16) -> Record {
        Record {
            partition: partition.into(),
            id: self.id.to_string(),
            key: self.key.clone(),
            value: self.value.clone(),
        }
    }
}

/// Where the first record of an event goes.
pub(super) fn partition(number: u32) -> u16 {
    (number % u32::from(PARTITIONS)) as u16
}

fn id(number: u32) -> Uuid {
    let halves = [
        mixed(u64::from(number) << 1 | 1 << 40),
        mixed(u64::from(number) << 1 | 1 | 1 << 40),
    ];
    let mut bytes = [0; 16];
    for (bytes, half) in bytes.chunks_mut(8).zip(halves) {
        bytes.copy_from_slice(&half.to_be_bytes());
    }
    Builder::from_random_bytes(bytes).into_uuid()
}

/// What the effects of events must add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sum {
    /// How many there are.
    pub(super) count: u64,
    /// The ids' first 60 bits, as numbers, added.
    pub(super) ids: u128,
}

impl Sum {
    /// Of the events of these numbers, each once.
    pub(super) fn of(numbers: Range<u32>) -> Self {
        let count = u64::from(numbers.end.saturating_sub(numbers.start));
        let ids = numbers.map(|number| id(number).as_u128() >> 68).sum();
        Self { count, ids }
    }
}

/// Spreads neighbouring numbers (the finaliser of SplitMix64).
pub(super) fn mixed(number: u64) -> u64 {
    let mut bits = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn events_are_about_250_bytes_of_json_with_an_id_of_their_own() {
        let mut ids = HashSet::new();
        for number in 0..10_000 {
            let event = Event::new(number);
            assert!((230..=270).contains(&event.value.len()), "{}", event.value);
            let json: serde_json::Value = serde_json::from_str(&event.value).unwrap();
            assert_eq!(json["id"], event.id.to_string());
            assert_eq!(event.id.get_version_num(), 4);
            assert!(ids.insert(event.id));
        }
    }

    #[test]
    fn partitions_are_filled_in_turn_without_gaps() {
        let mut ends = [0; PARTITIONS as usize];
        for number in 0..100 {
            let event = Event::new(number);
            let end = &mut ends[usize::from(event.partition)];
            assert_eq!(event.offset, *end);
            *end += 1;
        }
        assert_eq!(ends.iter().sum::<i64>(), 100);
    }
}
