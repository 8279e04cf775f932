//! Records as they came from a log, copied once into one arena per batch, and what became of each.

use std::fmt;
use std::sync::Arc;

/// A partition of a topic. Orders by topic, then partition: the order in which rows are locked.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic's name.
    pub topic: Arc<str>,
    /// The partition's number.
    pub partition: i32,
}

impl TopicPartition {
    /// Names a partition of a topic.
    pub fn new(topic: impl Into<Arc<str>>, partition: i32) -> Self {
        Self {
            topic: topic.into(),
            partition,
        }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// A range of the arena. `u32` bounds a batch to 4 GiB, far above any allowed `batch.max_bytes`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Span {
    pub(crate) start: u32,
    pub(crate) len: u32,
}

impl Span {
    /// Stands for an absent key or payload, which is not the same as an empty one.
    pub(crate) const ABSENT: Self = Self {
        start: u32::MAX,
        len: 0,
    };

    pub(crate) fn get(self, arena: &[u8]) -> Option<&[u8]> {
        let start = self.start as usize;
        arena.get(start..start + self.len as usize)
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    slot: u32,
    offset: i64,
    timestamp_ms: Option<i64>,
    key: Span,
    headers: Span,
    payload: Span,
}

/// What a batch holds of one partition.
#[derive(Clone, Debug)]
pub struct Slice {
    /// The partition.
    pub at: TopicPartition,
    /// Which start of reading the records belong to: a seek begins another session, and records of
    /// an older one are stale.
    pub session: u64,
    /// Where reading stands after this batch: behind the last record, or further where the log
    /// holds nothing to deliver (transaction markers, compacted records).
    pub next_offset: i64,
}

/// A record on its way into a batch, borrowed from wherever it was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Incoming<'a> {
    /// The record's offset in its partition.
    pub offset: i64,
    /// Milliseconds since the epoch, by producer or broker; `None` where the record has none.
    pub timestamp_ms: Option<i64>,
    /// The Kafka key; `None` is a null key.
    pub key: Option<&'a [u8]>,
    /// The value; `None` is a tombstone.
    pub payload: Option<&'a [u8]>,
}

/// Records of one or more partitions in the order read: offsets rise within a partition.
///
/// All bytes lie in one arena, so that a batch is a few allocations however many events it holds.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    slices: Vec<Slice>,
    records: Vec<Record>,
    arena: Vec<u8>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty batch with room for as much as another one holds: batches that follow each other
    /// are much alike, and one that grows step by step takes up to twice its bytes.
    pub fn as_large_as(other: &Self) -> Self {
        let more = |len: usize| len + len / 16;
        Self {
            slices: Vec::new(),
            records: Vec::with_capacity(other.records.len()),
            arena: Vec::with_capacity(more(other.arena.len())),
        }
    }

    /// The number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it holds no record; it may still move a position.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether there is nothing in it to process: no record, and no position to move.
    pub fn is_idle(&self) -> bool {
        self.slices.is_empty()
    }

    /// Bytes held, as counted against the limits.
    pub fn bytes(&self) -> usize {
        self.arena.len() + self.records.len() * size_of::<Record>()
    }

    /// The partitions that the batch has records of, or moves past gaps.
    pub fn slices(&self) -> &[Slice] {
        &self.slices
    }

    /// Finds or opens the slice of a partition; its index is what [`Batch::push`] takes.
    ///
    /// A slice of an older session is a slice of its own.
    pub fn slice(&mut self, at: &TopicPartition, session: u64) -> u32 {
        let found = self
            .slices
            .iter()
            .rposition(|s| s.session == session && s.at == *at);
        let index = found.unwrap_or_else(|| {
            self.slices.push(Slice {
                at: at.clone(),
                session,
                next_offset: i64::MIN,
            });
            self.slices.len() - 1
        });
        index as u32
    }

    /// Notes that reading of a slice has come to `next_offset` without a record to show for it.
    pub fn read_to(&mut self, slot: u32, next_offset: i64) {
        if let Some(slice) = self.slices.get_mut(slot as usize) {
            slice.next_offset = slice.next_offset.max(next_offset);
        }
    }

    /// Copies a record in. Headers follow by the iterator, in the order of the record.
    pub fn push<'a>(
        &mut self,
        slot: u32,
        record: Incoming<'a>,
        headers: impl Iterator<Item = (&'a str, Option<&'a [u8]>)>,
    ) {
        let key = self.copy(record.key);
        let start = self.arena.len();
        for (name, value) in headers {
            self.copy_header(name, value);
        }
        let headers = Span {
            start: start as u32,
            len: (self.arena.len() - start) as u32,
        };
        let payload = self.copy(record.payload);
        let Incoming {
            offset,
            timestamp_ms,
            ..
        } = record;
        self.records.push(Record {
            slot,
            offset,
            timestamp_ms,
            key,
            headers,
            payload,
        });
        self.read_to(slot, offset + 1);
    }

    fn copy(&mut self, bytes: Option<&[u8]>) -> Span {
        let Some(bytes) = bytes else {
            return Span::ABSENT;
        };
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(bytes);
        Span {
            start,
            len: bytes.len() as u32,
        }
    }

    fn copy_header(&mut self, name: &str, value: Option<&[u8]>) {
        self.arena
            .extend_from_slice(&(name.len() as u32).to_le_bytes());
        self.arena.extend_from_slice(name.as_bytes());
        let len = value.map_or(u32::MAX, |v| v.len() as u32);
        self.arena.extend_from_slice(&len.to_le_bytes());
        self.arena.extend_from_slice(value.unwrap_or_default());
    }

    /// The record at an index below [`Batch::len`].
    pub fn event(&self, index: usize) -> Event<'_> {
        Event {
            batch: self,
            record: &self.records[index],
        }
    }

    /// All records in the order read.
    pub fn events(&self) -> impl ExactSizeIterator<Item = Event<'_>> {
        self.records.iter().map(|record| Event {
            batch: self,
            record,
        })
    }
}

/// One record of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Event<'a> {
    batch: &'a Batch,
    record: &'a Record,
}

impl<'a> Event<'a> {
    /// The index of the record's slice in [`Batch::slices`].
    pub fn slot(&self) -> usize {
        self.record.slot as usize
    }

    /// The partition that it was read from.
    pub fn at(&self) -> &'a TopicPartition {
        &self.batch.slices[self.slot()].at
    }

    /// The topic's name.
    pub fn topic(&self) -> &'a str {
        &self.at().topic
    }

    /// The partition's number.
    pub fn partition(&self) -> i32 {
        self.at().partition
    }

    /// The offset in its partition.
    pub fn offset(&self) -> i64 {
        self.record.offset
    }

    /// Milliseconds since the epoch, where the record has a timestamp.
    pub fn timestamp_ms(&self) -> Option<i64> {
        self.record.timestamp_ms
    }

    /// The Kafka key as it came; `None` is a null key.
    pub fn key(&self) -> Option<&'a [u8]> {
        self.record.key.get(&self.batch.arena)
    }

    /// The value as it came; `None` is a tombstone.
    pub fn payload(&self) -> Option<&'a [u8]> {
        self.record.payload.get(&self.batch.arena)
    }

    /// The headers in order; names may repeat, values may be null.
    pub fn headers(&self) -> Headers<'a> {
        Headers {
            rest: self
                .record
                .headers
                .get(&self.batch.arena)
                .unwrap_or_default(),
        }
    }

    /// The last header of a name: a producer's interceptors append.
    pub fn header(&self, name: &str) -> Option<&'a [u8]> {
        self.headers()
            .filter(|(n, _)| *n == name)
            .last()
            .and_then(|(_, value)| value)
    }

    /// Bytes of key, headers and value.
    pub fn bytes(&self) -> usize {
        (self.record.key.len + self.record.headers.len + self.record.payload.len) as usize
    }
}

/// Iterates over the headers of one record.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    rest: &'a [u8],
}

impl<'a> Headers<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    fn take_len(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a str, Option<&'a [u8]>);

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.take_len()? as usize;
        let name = std::str::from_utf8(self.take(len)?).ok()?;
        let value = match self.take_len()? {
            u32::MAX => None,
            len => Some(self.take(len as usize)?),
        };
        Some((name, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_pushed() {
        let mut batch = Batch::new();
        let at = TopicPartition::new("orders", 3);
        let slot = batch.slice(&at, 1);
        let headers = [("a", Some(&b"1"[..])), ("b", None), ("a", Some(&b""[..]))];
        let record = Incoming {
            offset: 7,
            timestamp_ms: Some(5),
            key: None,
            payload: Some(b"x"),
        };
        batch.push(slot, record, headers.into_iter());
        let event = batch.event(0);
        assert_eq!(
            (event.topic(), event.partition(), event.offset()),
            ("orders", 3, 7)
        );
        assert_eq!((event.key(), event.payload()), (None, Some(&b"x"[..])));
        assert_eq!(event.headers().collect::<Vec<_>>(), headers);
        assert_eq!(
            event.header("a"),
            Some(&b""[..]),
            "the last one of a name counts"
        );
        assert_eq!(batch.slices()[0].next_offset, 8);
    }

    #[test]
    fn a_null_value_is_not_an_empty_one() {
        let mut batch = Batch::new();
        let slot = batch.slice(&TopicPartition::new("t", 0), 1);
        batch.push(
            slot,
            Incoming {
                key: Some(b""),
                ..Incoming::default()
            },
            std::iter::empty(),
        );
        assert_eq!(
            (batch.event(0).key(), batch.event(0).payload()),
            (Some(&b""[..]), None)
        );
    }

    #[test]
    fn a_seek_opens_another_slice() {
        let mut batch = Batch::new();
        let at = TopicPartition::new("t", 0);
        assert_eq!(
            (
                batch.slice(&at, 1),
                batch.slice(&at, 2),
                batch.slice(&at, 2)
            ),
            (0, 1, 1)
        );
    }
}
