//! The keys under which ids are known.

use crate::identity::EventKey;

/// Longer ids stand under their event key, so that a key costs the server no more than this.
const ID_BYTES_MAX: usize = 128;

/// Builds keys. Different (pipeline, namespace, scope, id) never share one:
///
/// ```text
/// event:<pipeline>[~<namespace>][/<topic>]:<id>
/// event-key:<pipeline>[~<namespace>]:<event key>      for long ids, and for places
/// marks:<pipeline>[~<namespace>]:<begin>+<length>:<shard>     for the ids of a slice of time
/// ```
///
/// Pipeline names are escaped so that they hold none of the separators; names of topics cannot.
#[derive(Clone, Debug)]
pub(super) struct MarkKeys {
    /// Pipeline and namespace.
    owner: String,
    pipeline: String,
}

impl MarkKeys {
    pub(super) fn new(pipeline: &str) -> Self {
        let pipeline = escape(pipeline);
        Self {
            owner: pipeline.clone(),
            pipeline,
        }
    }

    pub(super) fn set_namespace(&mut self, namespace: i32) {
        self.owner = match namespace {
            0 => self.pipeline.clone(),
            n => format!("{}~{n}", self.pipeline),
        };
    }

    /// Appends the key of an id.
    pub(super) fn write(
        &self,
        key: &mut Vec<u8>,
        scope: Option<&str>,
        id: Option<&str>,
        of: EventKey,
    ) {
        match (id.filter(|id| id.len() <= ID_BYTES_MAX), scope) {
            (Some(id), None) => append(key, &["event:", &self.owner, ":", id]),
            (Some(id), Some(topic)) => append(key, &["event:", &self.owner, "/", topic, ":", id]),
            (None, _) => {
                let mut text = [0; uuid::fmt::Hyphenated::LENGTH];
                let text = of.0.hyphenated().encode_lower(&mut text);
                append(key, &["event-key:", &self.owner, ":", text]);
            }
        }
    }

    /// The key of a shard of the slice that begins so many seconds after 1970 and is so long.
    pub(super) fn shard(&self, begin_s: u64, length_s: u64, shard: u8) -> Vec<u8> {
        format!("marks:{}:{begin_s}+{length_s}:{shard:02x}", self.owner).into_bytes()
    }

    /// The most bytes that a key with this scope can take.
    pub(super) fn bytes_max(&self, scope: Option<&str>) -> usize {
        "event-key::".len() + self.owner.len() + scope.map_or(0, str::len) + ID_BYTES_MAX
    }
}

fn append(key: &mut Vec<u8>, parts: &[&str]) {
    for part in parts {
        key.extend_from_slice(part.as_bytes());
    }
}

fn escape(name: &str) -> String {
    use std::fmt::Write;
    let mut escaped = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                escaped.push(byte.into());
            }
            // Writing to a string cannot fail.
            _ => _ = write!(escaped, "%{byte:02x}"),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn key(pipeline: &str, namespace: i32, scope: Option<&str>, id: &str, of: u128) -> String {
        let mut keys = MarkKeys::new(pipeline);
        keys.set_namespace(namespace);
        let mut key = Vec::new();
        keys.write(&mut key, scope, Some(id), EventKey(Uuid::from_u128(of)));
        String::from_utf8(key).unwrap()
    }

    #[test]
    fn a_key_reads_as_documented() {
        assert_eq!(key("orders", 0, None, "a:1", 7), "event:orders:a:1");
        assert_eq!(key("orders", 2, None, "a", 7), "event:orders~2:a");
        assert_eq!(key("orders", 0, Some("t"), "a", 7), "event:orders/t:a");
        assert_eq!(
            key("orders", 0, Some("t"), &"a".repeat(129), 7),
            "event-key:orders:00000000-0000-0000-0000-000000000007"
        );
    }

    #[test]
    fn the_key_of_a_shard_reads_as_documented() {
        let mut keys = MarkKeys::new("a:b");
        let shard = keys.shard(1_764_547_200, 86_400, 0x0f);
        assert_eq!(shard, b"marks:a%3ab:1764547200+86400:0f");
        keys.set_namespace(2);
        assert_eq!(keys.shard(60, 60, 255), b"marks:a%3ab~2:60+60:ff");
    }

    #[test]
    fn the_name_of_a_pipeline_cannot_stand_for_more_than_a_name() {
        assert_ne!(key("p~1", 0, None, "a", 7), key("p", 1, None, "a", 7));
        assert_ne!(key("p/t", 0, None, "a", 7), key("p", 0, Some("t"), "a", 7));
        assert_ne!(key("p:a", 0, None, "b", 7), key("p", 0, None, "a:b", 7));
        assert_ne!(key("p%3a", 0, None, "b", 7), key("p:", 0, None, "b", 7));
    }

    #[test]
    fn a_long_id_never_shares_its_key_with_a_short_one() {
        let long = key("p", 0, None, &"a".repeat(129), 7);
        let id = long.strip_prefix("event-key:p:").unwrap();
        assert_ne!(key("p", 0, None, id, 8), long);
    }

    proptest! {
        #[test]
        fn different_ids_never_share_a_key(
            ids in prop::collection::hash_set(
                ("[a~/:%]{1,4}", 0..3i32, prop::option::of("[a.]{1,2}"), "[a~/:.%0-9]{0,5}"),
                2..60,
            )
        ) {
            let mut seen = HashMap::new();
            for id in ids {
                let text = key(&id.0, id.1, id.2.as_deref(), &id.3, 7);
                if let Some(other) = seen.insert(text.clone(), id.clone()) {
                    prop_assert!(false, "{other:?} and {id:?} share {text}");
                }
            }
        }
    }
}
