//! Ids as fields of hashes, one set of hashes for each slice of time: less work and memory for the
//! server than a key for each id.
//!
//! A slice is as long as the time to live. Ids are marked in the slice of now and looked up in it
//! and in the one before, so that a mark lives for one to two times that long, and a slice dies
//! whole. The slice is told by this process's clock: where clocks differ, marks live that much
//! shorter for others, and nothing else, because what a mark proves does not depend on time.
//!
//! A slice is many hashes, its shards, so that none grows too large to be freed in one go by an
//! expiry, and shards expire one after the other. Whoever enters a slice has the last but one freed
//! in the server's background before that: an expiry would hold up everyone else.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::{Cmd, Pipeline, RedisWrite, Value};

use super::link::Answers;
use super::request::{IDS_MAX, Request};
use crate::filter::mark_key::MarkKeys;
use crate::filter::{Mark, Place, Probe, Proofs, packed_mark};
use crate::identity::EventKey;

/// Hashes of a slice: few enough that a batch has many ids for each.
const SHARDS: u8 = 32;

/// A century: expiries of absurd lengths are refused by the server, and what has none stays.
const TTL_MAX_S: u64 = 100 * 366 * 86_400;

/// No slice has been entered yet.
const NO_SLICE: u64 = u64::MAX;

/// Tells the time.
#[derive(Clone)]
pub(super) struct Clock(pub(super) Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Clock")
    }
}

/// An id, and which of those asked it is.
#[derive(Clone, Copy)]
struct Member {
    shard: u8,
    index: u32,
    key: EventKey,
}

/// Ids in the order of their shards: what is asked together.
pub(super) struct Sharded(Vec<Member>);

impl Sharded {
    pub(super) fn new(keys: impl Iterator<Item = EventKey>) -> Self {
        let member = |(key, index)| Member {
            shard: shard(key),
            index,
            key,
        };
        let mut members: Vec<_> = keys.zip(0..).map(member).collect();
        members.sort_unstable_by_key(|member| (member.shard, member.index));
        Self(members)
    }

    /// Ids of a request each.
    fn requests(&self) -> impl Iterator<Item = &[Member]> {
        self.0.chunks(IDS_MAX)
    }
}

/// Ids of a command each: those of the same shard.
fn commands(members: &[Member]) -> impl Iterator<Item = (u8, &[Member])> {
    let same_shard = members.chunk_by(|a, b| a.shard == b.shard);
    same_shard.filter_map(|members| Some((members.first()?.shard, members)))
}

/// Ids that producers choose may differ in few bits: every bit counts.
fn shard(key: EventKey) -> u8 {
    const ODD: u128 = 0x9e37_79b9_7f4a_7c15;
    let (high, low) = key.0.as_u64_pair();
    let product = u128::from(high ^ low.rotate_left(32)) * ODD;
    let mixed = (product >> 64) as u64 ^ product as u64;
    ((mixed >> 32) as u32 % u32::from(SHARDS)) as u8
}

/// Requests of one pipeline, and what their answers say.
#[derive(Clone, Debug)]
pub(super) struct Buckets {
    pub(super) keys: MarkKeys,
    pub(super) clock: Clock,
    ttl_s: u64,
    /// The slice that any worker of this process entered last.
    entered: Arc<AtomicU64>,
}

impl Buckets {
    pub(super) fn new(keys: MarkKeys, ttl_s: u64) -> Self {
        Self {
            keys,
            clock: Clock(Arc::new(SystemTime::now)),
            ttl_s: ttl_s.clamp(1, TTL_MAX_S),
            entered: Arc::new(AtomicU64::new(NO_SLICE)),
        }
    }

    /// The slice of now, and how many milliseconds of it are over.
    fn now(&self) -> (u64, u64) {
        let since_epoch = (self.clock.0)().duration_since(UNIX_EPOCH);
        // A clock before 1970 is as wrong as any other.
        let since_epoch = since_epoch.unwrap_or_default();
        let over_s = since_epoch.as_secs() % self.ttl_s;
        let over_ms = over_s * 1000 + u64::from(since_epoch.subsec_millis());
        (since_epoch.as_secs() / self.ttl_s, over_ms)
    }

    /// How long a shard that is written now is kept: until nobody reads the slice any more, and a
    /// little longer, each shard longer than the one before.
    fn life_ms(&self, over_ms: u64, shard: u8) -> u64 {
        let ttl_ms = self.ttl_s * 1000;
        let read = 2 * ttl_ms - over_ms;
        read + ttl_ms / 4 / u64::from(SHARDS) * (u64::from(shard) + 1)
    }

    fn key(&self, slice: u64, shard: u8) -> Vec<u8> {
        let begin_s = slice.saturating_mul(self.ttl_s);
        self.keys.shard(begin_s, self.ttl_s, shard)
    }

    /// Asks what the shards of two slices say of their ids: two answers for each shard.
    pub(super) fn looks(&self, sharded: &Sharded) -> Vec<Request> {
        let (slice, _) = self.now();
        let look = |members: &[Member]| {
            let mut pipeline = Pipeline::with_capacity(2 * usize::from(SHARDS));
            for (shard, members) in commands(members) {
                for slice in [slice, slice.saturating_sub(1)] {
                    let mut command = command("HMGET", &self.key(slice, shard), members.len());
                    for member in members {
                        command.write_arg(member.key.0.as_bytes());
                    }
                    pipeline.add_command(command);
                }
            }
            Request::new(pipeline, members.len())
        };
        sharded.requests().map(look).collect()
    }

    /// A mark in either slice counts; of two the one that proves more.
    pub(super) fn read_looks(
        sharded: &Sharded,
        answers: Answers,
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        let mut probes = vec![Probe::Unknown; sharded.0.len()];
        for (members, answer) in sharded.requests().zip(answers) {
            let answer = answer.unwrap_or_default();
            for ((_, members), replies) in commands(members).zip(answer.chunks(2)) {
                for reply in replies {
                    read_shard(&mut probes, members, reply, proofs);
                }
            }
        }
        probes
    }

    /// Marks the ids with the position committed in their place, over what stands there: it is
    /// true. An id without a place is left out.
    pub(super) fn marks(
        &self,
        places: &[Place],
        committed: &[i64],
        marks: &[Mark<'_>],
    ) -> Vec<Request> {
        let values: Vec<Vec<u8>> = places
            .iter()
            .zip(committed)
            .map(|(place, &next_offset)| {
                let mut value = Vec::new();
                packed_mark::write(&mut value, place, next_offset);
                value
            })
            .collect();
        let placed = |mark: &&Mark<'_>| (mark.place as usize) < values.len();
        let marks: Vec<_> = marks.iter().filter(placed).collect();
        let sharded = Sharded::new(marks.iter().map(|mark| mark.key));
        let value = |member: &Member| {
            let mark = marks.get(member.index as usize)?;
            values.get(mark.place as usize).map(Vec::as_slice)
        };
        let now = self.now();
        let requests = sharded
            .requests()
            .map(|members| self.mark(now, members, value));
        self.enter(now.0).into_iter().chain(requests).collect()
    }

    /// All or nothing: a shard without an expiry would be kept for ever.
    fn mark<'v>(
        &self,
        (slice, over_ms): (u64, u64),
        members: &[Member],
        value: impl Fn(&Member) -> Option<&'v [u8]>,
    ) -> Request {
        let mut pipeline = Pipeline::with_capacity(2 + 2 * usize::from(SHARDS));
        pipeline.cmd("MULTI");
        for (shard, members) in commands(members) {
            let key = self.key(slice, shard);
            let mut set = command("HSET", &key, 2 * members.len());
            for member in members {
                set.write_arg(member.key.0.as_bytes());
                set.write_arg(value(member).unwrap_or_default());
            }
            let mut expire = command("PEXPIRE", &key, 1);
            expire.arg(self.life_ms(over_ms, shard));
            pipeline.add_command(set).add_command(expire);
        }
        pipeline.cmd("EXEC");
        Request::atomic(pipeline, members.len())
    }

    /// Frees what nobody reads any more, where this process enters a slice; it does so in the
    /// server's background, and once more where a clock went back.
    fn enter(&self, slice: u64) -> Option<Request> {
        if self.entered.swap(slice, Ordering::Relaxed) == slice {
            return None;
        }
        let over = slice.checked_sub(2)?;
        let mut unlink = Cmd::new();
        unlink.arg("UNLINK");
        for shard in 0..SHARDS {
            unlink.write_arg(&self.key(over, shard));
        }
        let mut pipeline = Pipeline::with_capacity(1);
        pipeline.add_command(unlink);
        Some(Request::new(pipeline, 0))
    }
}

fn command(name: &str, key: &[u8], arguments: usize) -> Cmd {
    let bytes = name.len() + key.len() + arguments * size_of::<EventKey>();
    let mut command = Cmd::with_capacity(2 + arguments, bytes);
    command.write_arg(name.as_bytes());
    command.write_arg(key);
    command
}

/// Takes what a shard of one slice says of its ids.
fn read_shard(probes: &mut [Probe], members: &[Member], reply: &Value, proofs: &impl Proofs) {
    let Value::Array(values) = reply else {
        return;
    };
    if values.len() != members.len() {
        return;
    }
    for (member, value) in members.iter().zip(values) {
        if let Value::BulkString(value) = value
            && let Some(probe) = probes.get_mut(member.index as usize)
            && *probe != Probe::Proven
        {
            *probe = packed_mark::judge(value, proofs);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    /// Everything was committed.
    struct Everything;

    impl Proofs for Everything {
        fn high_water(&self, _: &str, _: i32) -> Option<i64> {
            Some(i64::MAX)
        }
    }

    fn mark() -> Value {
        let (topic, partition) = ("t".to_owned(), 0);
        let mut value = Vec::new();
        packed_mark::write(&mut value, &Place { topic, partition }, 1);
        Value::BulkString(value)
    }

    fn error() -> Value {
        let error = ::redis::parse_redis_value(b"-WRONGTYPE no hash\r\n").unwrap();
        assert!(matches!(error, Value::ServerError(_)));
        error
    }

    /// Two ids of one shard, and what is made of the answer to what was asked of it.
    fn read(replies: Vec<Value>) -> Vec<Probe> {
        let mut keys = (0..).map(|n| EventKey(Uuid::from_u128(n)));
        let same_shard: Vec<_> = keys
            .by_ref()
            .filter(|key| shard(*key) == 5)
            .take(2)
            .collect();
        let sharded = Sharded::new(same_shard.into_iter());
        Buckets::read_looks(&sharded, vec![Some(replies)], &Everything)
    }

    #[test]
    fn only_an_answer_for_each_id_is_an_answer() {
        use Probe::{Proven, Unknown};
        let array = |values: Vec<Value>| Value::Array(values);
        let nothing = || array(vec![Value::Nil, Value::Nil]);
        let second = || array(vec![Value::Nil, mark()]);
        for (replies, expected) in [
            (vec![second(), nothing()], [Unknown, Proven]),
            (vec![nothing(), second()], [Unknown, Proven]),
            (vec![error(), second()], [Unknown, Proven]),
            (vec![second(), error()], [Unknown, Proven]),
            (vec![second()], [Unknown, Proven]),
            (vec![nothing(), nothing(), second()], [Unknown, Unknown]),
            (vec![array(vec![mark()]), nothing()], [Unknown, Unknown]),
            (
                vec![array(vec![mark(), mark(), mark()])],
                [Unknown, Unknown],
            ),
            (
                vec![array(vec![error(), Value::Int(1)])],
                [Unknown, Unknown],
            ),
            (vec![mark(), mark()], [Unknown, Unknown]),
            (vec![], [Unknown, Unknown]),
        ] {
            assert_eq!(read(replies.clone()), expected, "{replies:?}");
        }
        let keys = (0..3).map(|n| EventKey(Uuid::from_u128(n)));
        let none = Buckets::read_looks(&Sharded::new(keys), vec![None], &Everything);
        assert_eq!(none, [Unknown; 3]);
    }

    #[test]
    fn ids_that_differ_in_few_bits_spread_over_all_shards() {
        let low: fn(u128) -> u128 = |n| n;
        let high: fn(u128) -> u128 = |n| n << 100;
        // As a version 7 with a counter instead of chance.
        let both: fn(u128) -> u128 = |n| ((n / 100) << 80) | (n % 100);
        for (name, id) in [("low", low), ("high", high), ("both", both)] {
            let mut counts = [0; SHARDS as usize];
            for n in 0..32_000 {
                counts[usize::from(shard(EventKey(Uuid::from_u128(id(n)))))] += 1;
            }
            let (least, most) = (counts.iter().min(), counts.iter().max());
            let even = least > Some(&500) && most < Some(&2000);
            assert!(even, "{name}: {least:?} to {most:?}");
        }
    }
}
