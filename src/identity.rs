//! What makes two records the same event.
//!
//! An [`Identity`] finds a record's id as text, and turns the text into the ledger's key. The text
//! alone decides the key (with the topic under [`Scope::Topic`]), so a person who knows the id can
//! look the event up; nothing is trimmed, folded or rounded on the way:
//!
//! - Ids that differ in any character are different events: `a` and ` a`, `1e3` and `1000`, `-0`
//!   and `0`, a UUID in capitals and the same in small letters.
//! - A JSON string and a JSON number of the same text, `"1"` and `1`, are the same id, as they are
//!   for `payload->>'id'`. Where an object has a name twice, the last one counts, as in `jsonb`.
//! - Missing, null, empty, blank (white space only), holding NUL (which Postgres's text cannot), not
//!   UTF-8, or of another JSON type: no id.
//! - The length of an id has no bound but `limits.max_event_bytes`; the key is 16 bytes always.
//!
//! A Kafka key is bytes. One that is not text (not UTF-8, or with NUL) is written as Postgres writes
//! `bytea`, `\x00ff`; so is a text that itself begins with `\x`, so that no two keys meet.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::event::Event;

pub mod cloudevents;
pub mod json;
mod key;

pub use json::Pointer;
pub use key::{EventKey, body_hash};

/// What a record's id was found to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// An id.
    Id,
    /// The record's place in the log, which the configuration takes for its id. The text is for
    /// people: a record elsewhere may have an id of the same text and is another event.
    Place,
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
        let start = self.text.len();
        self.text.push_str(text);
        self.finish(start, key, found);
    }

    /// Forgets all, and keeps the memory for the next batch.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.text.clear();
    }

    /// Makes an entry of the text that was appended from `start` on.
    fn finish(&mut self, start: usize, key: EventKey, found: Found) {
        self.entries.push(Entry {
            key,
            start: start as u32,
            len: (self.text.len() - start) as u32,
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
        &self.text[start as usize..start as usize + len as usize]
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

/// Where a record's id stands. Written `header:NAME`, `key`, `json:/pointer`, `cloudevents`,
/// `position` or `payload`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IdSource {
    /// The last header of this name, as text.
    Header(String),
    /// The Kafka key.
    Key,
    /// A string or number in the JSON payload.
    Json(Pointer),
    /// `source` and `id` of a CloudEvent, in binary or structured mode.
    CloudEvents,
    /// The record's place in the log: the topic's id, partition and offset. Recognises no event
    /// that was published twice.
    Position,
    /// The BLAKE3 hash of the payload: equal payloads are one event.
    Payload,
}

impl IdSource {
    /// How each kind is written.
    pub const FORMS: &'static str =
        "header:NAME, key, json:/pointer, cloudevents, position, payload";
}

impl FromStr for IdSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "key" => Ok(Self::Key),
            "cloudevents" => Ok(Self::CloudEvents),
            "position" => Ok(Self::Position),
            "payload" => Ok(Self::Payload),
            _ => match text.split_once(':') {
                Some(("header", "")) => Err("`header:` lacks the header's name".into()),
                Some(("header", name)) => Ok(Self::Header(name.into())),
                Some(("json", pointer)) => pointer.parse().map(Self::Json),
                _ => Err(format!("`{text}` is none of {}", Self::FORMS)),
            },
        }
    }
}

impl fmt::Display for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header(name) => write!(f, "header:{name}"),
            Self::Key => f.write_str("key"),
            Self::Json(pointer) => write!(f, "json:{pointer}"),
            Self::CloudEvents => f.write_str("cloudevents"),
            Self::Position => f.write_str("position"),
            Self::Payload => f.write_str("payload"),
        }
    }
}

/// Within what an id is one event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scope {
    /// The same id on two topics is one event.
    #[default]
    Pipeline,
    /// The same id on two topics is two events.
    Topic,
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pipeline => "pipeline",
            Self::Topic => "topic",
        })
    }
}

/// What becomes of a record without an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnMissing {
    /// It is a dead letter.
    #[default]
    DeadLetter,
    /// Its place in the log is its id.
    Position,
    /// It is passed over, and counted.
    Skip,
}

/// How a pipeline tells events apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Where the id stands.
    pub from: IdSource,
    /// Within what an id is one event.
    pub scope: Scope,
    /// What becomes of a record without an id.
    pub on_missing: OnMissing,
}

impl Identity {
    /// Appends the id of an event. `topic_id` is that of the event's topic, where a broker told.
    ///
    /// Under [`OnMissing::Position`] a record without an id gets that of its place, and is never
    /// [`Found::Missing`].
    pub fn identify(&self, event: Event<'_>, topic_id: Option<Uuid>, ids: &mut Ids) {
        let start = ids.text.len();
        let found = match self.write_id(event, &mut ids.text) {
            Ok(()) => {
                let key = self.key_of(&ids.text[start..], event.topic());
                return ids.finish(start, key, Found::Id);
            }
            Err(NoId::Place) => Found::Place,
            Err(NoId::Missing(_)) if self.on_missing == OnMissing::Position => Found::Place,
            Err(NoId::Missing(reason)) => Found::Missing(reason),
        };
        ids.text.truncate(start);
        let (topic, partition, offset) = (event.topic(), event.partition(), event.offset());
        // Writing to a string cannot fail.
        let _ = write!(ids.text, "{topic}/{partition}/{offset}");
        let key = EventKey::of_position(topic_id, topic, partition, offset);
        ids.finish(start, key, found);
    }

    /// Appends the id's text; what was appended when there is none is to be cut off again.
    fn write_id(&self, event: Event<'_>, out: &mut String) -> Result<(), NoId> {
        let start = out.len();
        match &self.from {
            IdSource::Header(name) => out.push_str(text(last_header(event, name)?)?),
            IdSource::Key => write_key(event.key().ok_or("the record's key is null")?, out),
            IdSource::Json(pointer) => match pointer.find(payload(event)?)? {
                json::Scalar::Text(text) => out.push_str(&text),
                json::Scalar::Number(text) => out.push_str(text),
            },
            IdSource::CloudEvents => cloudevents::write_id(event, out)?,
            IdSource::Payload => {
                let hash = blake3::hash(payload(event)?).to_hex();
                out.push_str(hash.as_str());
            }
            IdSource::Position => return Err(NoId::Place),
        }
        Ok(usable(&out[start..])?)
    }

    /// The ledger's key for the text of an id. The topic counts under [`Scope::Topic`] only.
    ///
    /// For ids that are places in the log (`identity.from = "position"`, dead letters without an
    /// id) the key is [`EventKey::of_position`].
    pub fn key_of(&self, text: &str, topic: &str) -> EventKey {
        match self.scope {
            Scope::Pipeline => EventKey::in_pipeline(text),
            Scope::Topic => EventKey::in_topic(topic, text),
        }
    }
}

/// Why a record is known by its place.
enum NoId {
    /// The configuration says so.
    Place,
    /// It has no id that could be used.
    Missing(&'static str),
}

impl From<&'static str> for NoId {
    fn from(reason: &'static str) -> Self {
        Self::Missing(reason)
    }
}

fn last_header<'a>(event: Event<'a>, name: &str) -> Result<&'a [u8], &'static str> {
    let last = event.headers().filter(|(n, _)| *n == name).last();
    match last {
        Some((_, Some(value))) => Ok(value),
        Some((_, None)) => Err("the id's header is null"),
        None => Err("the id's header is missing"),
    }
}

fn payload(event: Event<'_>) -> Result<&[u8], &'static str> {
    match event.payload() {
        Some(b"") => Err("the id is looked for in the payload, which is empty"),
        Some(payload) => Ok(payload),
        None => Err("the id is looked for in the payload, which is null"),
    }
}

fn text(bytes: &[u8]) -> Result<&str, &'static str> {
    std::str::from_utf8(bytes).map_err(|_| "the id is not UTF-8 text")
}

/// Refuses what would make strangers the same event, or what Postgres's text cannot hold.
fn usable(id: &str) -> Result<(), &'static str> {
    if id.is_empty() {
        Err("the id is empty")
    } else if id.trim_start().is_empty() {
        Err("the id is blank")
    } else if memchr::memchr(0, id.as_bytes()).is_some() {
        Err("the id holds a NUL character")
    } else {
        Ok(())
    }
}

/// Writes a Kafka key as text; distinct keys give distinct texts.
fn write_key(key: &[u8], out: &mut String) {
    match std::str::from_utf8(key) {
        Ok(text) if !text.starts_with("\\x") && memchr::memchr(0, key).is_none() => {
            out.push_str(text);
        }
        _ => {
            out.push_str("\\x");
            for byte in key {
                for nibble in [byte >> 4, byte & 15] {
                    out.extend(char::from_digit(nibble.into(), 16));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
