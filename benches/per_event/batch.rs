//! A batch as orders would come: 250 bytes of JSON, an id of 36 characters.

use onceonly::event::{Batch, Incoming, TopicPartition};
use uuid::Uuid;

use crate::EVENTS;

/// Ids that differ in every bit, as random ones do.
pub fn ids() -> impl Iterator<Item = Uuid> {
    (0..EVENTS as u64).map(|n| {
        let hash = blake3::hash(&n.to_le_bytes());
        Uuid::from_slice(&hash.as_bytes()[..16]).expect("16 bytes")
    })
}

/// The id stands in a header, in the key and in the payload, and makes a CloudEvent with `source`.
pub fn batch() -> Batch {
    let mut batch = Batch::new();
    let slot = batch.slice(&TopicPartition::new("orders", 3), 1);
    for (offset, id) in (0..).zip(ids()) {
        let id = id.to_string();
        let payload = format!(
            r#"{{"customer":"c-{offset:012}","amount":"{}.95","currency":"EUR","lines":[{{"sku":"a-1","count":2}},{{"sku":"b-{offset}","count":1}}],"note":"leave it at the neighbour's, the bell does not ring","id":"{id}","at":"2026-01-31T09:00:00Z"}}"#,
            offset % 1000
        );
        let headers = [
            (
                "traceparent",
                &b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"[..],
            ),
            ("event-id", id.as_bytes()),
            ("ce_specversion", b"1.0"),
            ("ce_source", b"/shops/berlin"),
            ("ce_id", id.as_bytes()),
        ];
        let record = Incoming {
            offset,
            timestamp_ms: Some(1_700_000_000_000),
            key: Some(id.as_bytes()),
            payload: Some(payload.as_bytes()),
        };
        batch.push(
            slot,
            record,
            headers.into_iter().map(|(name, value)| (name, Some(value))),
        );
    }
    batch
}
