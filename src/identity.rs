//! What makes two records the same event.

use std::fmt;

use uuid::Uuid;

/// The ledger's key of an event: 16 bytes, whatever the id looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventKey(pub Uuid);

impl fmt::Display for EventKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a record's id was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An id.
    Id,
    /// None that could be used, and why. The entry's text and key are those of the record's place
    /// in the log, so that it can be known as a dead letter.
    Missing(&'static str),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: EventKey,
    start: u32,
    len: u32,
    found: Found,
}

/// The ids of a batch's records, by the same index.
#[derive(Clone, Debug, Default)]
pub struct Ids {
    entries: Vec<Entry>,
    text: String,
}

impl Ids {
    /// Appends the id of the next record.
    pub fn push(&mut self, text: &str, key: EventKey, found: Found) {
        let start = self.text.len() as u32;
        self.text.push_str(text);
        self.entries.push(Entry {
            key,
            start,
            len: text.len() as u32,
            found,
        });
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The id as text.
    pub fn text(&self, index: usize) -> &str {
        let Entry { start, len, .. } = self.entries[index];
        &self.text[start as usize..(start + len) as usize]
    }

    /// The ledger's key.
    pub fn key(&self, index: usize) -> EventKey {
        self.entries[index].key
    }

    /// Whether the record had an id.
    pub fn found(&self, index: usize) -> Found {
        self.entries[index].found
    }
}
