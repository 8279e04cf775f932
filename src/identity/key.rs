//! The ledger's key of an event.

use std::fmt;

use uuid::{Builder, Uuid};

use crate::event::Event;

/// The ledger's key of an event: 16 bytes, whatever the id looks like.
///
/// A canonical UUID (small letters, hyphens, any version but 8) is its own key under the scope of
/// the pipeline, so that ids ordered by time keep their locality in the index. Everything else is
/// BLAKE3 over length-prefixed parts, shaped as a UUID of version 8; so neither kind can be taken
/// for the other. What is hashed is part of the tables' format and never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKey(pub Uuid);

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Keeps the kinds of ids apart from each other.
#[derive(Clone, Copy)]
#[repr(u8)]
enum Domain {
    Text = 1,
    TextOfTopic = 2,
    PositionByTopicId = 3,
    PositionByTopicName = 4,
    Body = 5,
}

impl EventKey {
    /// The key of an id that is one event in the whole pipeline.
    pub fn in_pipeline(id: &str) -> Self {
        match canonical_uuid(id) {
            Some(uuid) => Self(uuid),
            None => Self(shaped(hash(Domain::Text, &[id.as_bytes()]))),
        }
    }

    /// The key of an id that is one event in its topic.
    pub fn in_topic(topic: &str, id: &str) -> Self {
        let parts = [topic.as_bytes(), id.as_bytes()];
        Self(shaped(hash(Domain::TextOfTopic, &parts)))
    }

    /// The key of a record that is known by its place in the log.
    ///
    /// A topic that was deleted and made again has another id, so its records are other events.
    pub fn of_position(topic_id: Option<Uuid>, topic: &str, partition: i32, offset: i64) -> Self {
        let (partition, offset) = (partition.to_le_bytes(), offset.to_le_bytes());
        let hash = match &topic_id {
            Some(id) => {
                let parts: [&[u8]; 3] = [id.as_bytes(), &partition, &offset];
                hash(Domain::PositionByTopicId, &parts)
            }
            None => {
                let parts: [&[u8]; 3] = [topic.as_bytes(), &partition, &offset];
                hash(Domain::PositionByTopicName, &parts)
            }
        };
        Self(shaped(hash))
    }
}

/// A hash of key and value, by which the same id with another body is found.
///
/// 64 bits of BLAKE3; a null key or value is not an empty one. It decides no effect, so that a
/// collision, one in 2^64, is a conflict not counted.
pub fn body_hash(event: Event<'_>) -> i64 {
    let presence = [u8::from(event.key().is_some()) | u8::from(event.payload().is_some()) << 1];
    let parts: [&[u8]; 3] = [
        &presence,
        event.key().unwrap_or_default(),
        event.payload().unwrap_or_default(),
    ];
    let [a, b, c, d, e, f, g, h, ..] = hash(Domain::Body, &parts);
    i64::from_le_bytes([a, b, c, d, e, f, g, h])
}

fn canonical_uuid(id: &str) -> Option<Uuid> {
    // 36 is the length of the hyphenated form alone.
    if id.len() != 36 || id.bytes().any(|b| b.is_ascii_uppercase()) {
        return None;
    }
    Uuid::try_parse(id)
        .ok()
        .filter(|uuid| uuid.get_version_num() != 8)
}

fn shaped(hash: [u8; 32]) -> Uuid {
    let [key @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = hash;
    Builder::from_custom_bytes(key).into_uuid()
}

/// Small inputs are gathered and hashed in one go, which costs half of feeding a hasher.
const GATHERED_BYTES: usize = 256;

fn hash(domain: Domain, parts: &[&[u8]]) -> [u8; 32] {
    let total = 1 + parts.iter().map(|part| 8 + part.len()).sum::<usize>();
    if total <= GATHERED_BYTES {
        let mut gathered = [0; GATHERED_BYTES];
        let mut at = 0;
        feed(domain, parts, |bytes| {
            gathered[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        });
        return blake3::hash(&gathered[..at]).into();
    }
    let mut hasher = blake3::Hasher::new();
    feed(domain, parts, |bytes| {
        hasher.update(bytes);
    });
    hasher.finalize().into()
}

fn feed(domain: Domain, parts: &[&[u8]], mut sink: impl FnMut(&[u8])) {
    sink(&[domain as u8]);
    for part in parts {
        sink(&(part.len() as u64).to_le_bytes());
        sink(part);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::{Batch, Incoming, TopicPartition};

    #[test]
    fn a_canonical_uuid_is_its_own_key() {
        for id in [
            "018f3a5e-7b4d-7c3a-9f1e-2b6d5c4a3f21",
            "6ba7b810-9dad-11d1-80b4-00c04fd430c8",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(EventKey::in_pipeline(id).to_string(), id);
            assert_ne!(EventKey::in_topic("orders", id).to_string(), id);
        }
    }

    #[test]
    fn any_other_way_to_write_a_uuid_is_hashed() {
        for id in [
            "018F3A5E-7B4D-7C3A-9F1E-2B6D5C4A3F21",
            "018f3a5e7b4d7c3a9f1e2b6d5c4a3f21",
            "{018f3a5e-7b4d-7c3a-9f1e-2b6d5c4a3f21}",
            "urn:uuid:018f3a5e-7b4d-7c3a-9f1e-2b6d5c4a3f21",
            " 018f3a5e-7b4d-7c3a-9f1e-2b6d5c4a3f2",
            "018f3a5e-7b4d-8c3a-9f1e-2b6d5c4a3f21",
            "018f3a5e-7b4d-8c3a-cf1e-2b6d5c4a3f21",
        ] {
            let EventKey(key) = EventKey::in_pipeline(id);
            assert_eq!(key.get_version_num(), 8, "{id}");
            assert_ne!(key.to_string(), id);
        }
    }

    #[test]
    fn keys_stay_what_they_were_in_every_version() {
        let keys = [
            EventKey::in_pipeline("order-1"),
            EventKey::in_topic("orders", "order-1"),
            EventKey::of_position(Some(Uuid::from_u128(7)), "orders", 3, 42),
            EventKey::of_position(None, "orders", 3, 42),
            EventKey::in_pipeline(&"x".repeat(100_000)),
        ];
        let known = [
            "afcb85a0-a6d6-876c-a785-3ed964d25457",
            "246a0335-b438-8da4-8d20-0ae5ca2f022d",
            "ca1a5395-3fb6-88ec-b07f-f55315ae8d93",
            "138e3053-ca2c-8e4d-b31b-5bcd1fa7ed82",
            "127697de-659b-8ab0-a222-e320b408134a",
        ];
        assert_eq!(keys.map(|key| key.to_string()), known);
    }

    #[test]
    fn a_place_is_never_an_id() {
        let place = EventKey::of_position(None, "orders", 3, 42);
        assert_ne!(place, EventKey::in_pipeline("orders/3/42"));
        assert_ne!(place, EventKey::in_topic("orders", "orders/3/42"));
    }

    fn body(key: Option<&[u8]>, payload: Option<&[u8]>) -> i64 {
        let mut batch = Batch::new();
        let slot = batch.slice(&TopicPartition::new("t", 0), 1);
        let record = Incoming {
            key,
            payload,
            ..Incoming::default()
        };
        batch.push(slot, record, std::iter::empty());
        body_hash(batch.event(0))
    }

    #[test]
    fn the_body_is_key_and_value_and_null_is_not_empty() {
        let bodies = [
            body(None, None),
            body(Some(b""), None),
            body(None, Some(b"")),
            body(Some(b""), Some(b"")),
            body(Some(b"a"), Some(b"bc")),
            body(Some(b"ab"), Some(b"c")),
        ];
        let distinct: std::collections::HashSet<_> = bodies.iter().collect();
        assert_eq!(distinct.len(), bodies.len());
        assert_eq!(body(Some(b"a"), Some(b"b")), body(Some(b"a"), Some(b"b")));
    }

    proptest! {
        #[test]
        fn distinct_ids_have_distinct_keys(a in ".{0,300}", b in ".{0,300}") {
            prop_assert_eq!(a == b, EventKey::in_pipeline(&a) == EventKey::in_pipeline(&b));
            prop_assert_eq!(a == b, EventKey::in_topic("t", &a) == EventKey::in_topic("t", &b));
        }

        #[test]
        fn topic_and_id_do_not_flow_into_each_other(all in "[a-z]{2,60}", i in 0usize..60, j in 0usize..60) {
            let (i, j) = (i % (all.len() + 1), j % (all.len() + 1));
            let key = |at: usize| EventKey::in_topic(&all[..at], &all[at..]);
            prop_assert_eq!(i == j, key(i) == key(j));
        }

        #[test]
        fn gathered_or_fed_the_hash_is_the_same(id in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut hasher = blake3::Hasher::new();
            hasher.update(&[1]).update(&(id.len() as u64).to_le_bytes()).update(&id);
            prop_assert_eq!(hash(Domain::Text, &[&id]), *hasher.finalize().as_bytes());
        }

        #[test]
        fn every_uuid_but_version_8_is_a_fixed_point(value in any::<u128>()) {
            let uuid = Uuid::from_u128(value);
            let EventKey(key) = EventKey::in_pipeline(&uuid.to_string());
            prop_assert_eq!(key == uuid, uuid.get_version_num() != 8);
        }

        #[test]
        fn places_are_told_apart(p in any::<i32>(), o in any::<i64>(), q in any::<i32>(), r in any::<i64>()) {
            let key = |p, o| EventKey::of_position(Some(Uuid::from_u128(1)), "t", p, o);
            prop_assert_eq!((p, o) == (q, r), key(p, o) == key(q, r));
            prop_assert_ne!(key(p, o), EventKey::of_position(Some(Uuid::from_u128(2)), "t", p, o));
        }
    }
}
