//! A key for each id: `SET … NX EX`, whose value is a mark or a claim.

use ::redis::{Cmd, Pipeline, RedisWrite, Value};

use super::link::Answers;
use super::request::{IDS_MAX, Request};
use crate::filter::mark_key::MarkKeys;
use crate::filter::mark_value::{judge, write_claim, write_mark};
use crate::filter::{Lookup, Mark, Place, Probe, Proofs};

const UNCLAIM: &str = include_str!("unclaim.lua");

/// How claims are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimStyle {
    /// `SET … NX … GET`, from Redis 7.0: one answer for each id.
    SetGet,
    /// `SET … NX` and `GET`: two answers for each id.
    SetThenGet,
}

/// Requests of one pipeline, and what their answers say.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    pub(super) keys: MarkKeys,
    ttl_s: String,
}

impl Keys {
    pub(super) fn new(keys: MarkKeys, ttl_s: u64) -> Self {
        Self {
            keys,
            ttl_s: ttl_s.max(1).to_string(),
        }
    }

    /// Asks what stands under the ids; one answer with a value for each id.
    pub(super) fn looks(&self, lookups: &[Lookup<'_>]) -> Vec<Request> {
        let look = |lookups: &[Lookup<'_>]| {
            let bytes: usize = lookups.iter().map(|l| self.keys.bytes_max(l.scope)).sum();
            let mut command = Cmd::with_capacity(1 + lookups.len(), bytes);
            command.write_arg(b"MGET");
            let mut key = Vec::new();
            for lookup in lookups {
                command.write_arg(self.key(&mut key, lookup));
            }
            let mut commands = Pipeline::with_capacity(1);
            commands.add_command(command);
            Request::new(commands, lookups.len())
        };
        lookups.chunks(IDS_MAX).map(look).collect()
    }

    pub(super) fn read_looks(
        lookups: &[Lookup<'_>],
        answers: Answers,
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        let judged = |value: &Value| match value {
            Value::BulkString(value) => judge(value, None, proofs),
            _ => Probe::Unknown,
        };
        let mut probes = Vec::with_capacity(lookups.len());
        for (asked, answer) in lookups.chunks(IDS_MAX).zip(answers) {
            match answer.as_deref() {
                Some([Value::Array(values)]) if values.len() == asked.len() => {
                    probes.extend(values.iter().map(judged));
                }
                _ => probes.resize(probes.len() + asked.len(), Probe::Unknown),
            }
        }
        probes
    }

    /// Claims the ids, as [`ClaimStyle`] says.
    pub(super) fn claims(
        &self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        token: &str,
        style: ClaimStyle,
    ) -> Vec<Request> {
        let claim = |lookups: &[Lookup<'_>]| {
            let mut commands = Pipeline::with_capacity(lookups.len());
            let (mut key, mut value) = (Vec::new(), Vec::new());
            for lookup in lookups {
                let key = self.key(&mut key, lookup);
                claim_of(&mut value, places, lookup, token);
                let mut command = self.set(key, &value, true);
                match style {
                    ClaimStyle::SetGet => command.write_arg(b"GET"),
                    ClaimStyle::SetThenGet => {
                        commands.add_command(command);
                        command = Cmd::with_capacity(2, 3 + key.len());
                        command.write_arg(b"GET");
                        command.write_arg(key);
                    }
                }
                commands.add_command(command);
            }
            Request::new(commands, lookups.len())
        };
        lookups.chunks(IDS_MAX).map(claim).collect()
    }

    pub(super) fn read_claims(
        places: &[Place],
        lookups: &[Lookup<'_>],
        token: &str,
        style: ClaimStyle,
        answers: Answers,
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        let mut probes = Vec::with_capacity(lookups.len());
        let mut own = Vec::new();
        for (asked, answer) in lookups.chunks(IDS_MAX).zip(answers) {
            let replies = answer.unwrap_or_default();
            let per_id = match style {
                ClaimStyle::SetGet => 1,
                ClaimStyle::SetThenGet => 2,
            };
            let mut replies = replies.chunks(per_id);
            for lookup in asked {
                claim_of(&mut own, places, lookup, token);
                let reply = replies.next().unwrap_or_default();
                probes.push(read_claim(style, reply, &own, proofs));
            }
        }
        probes
    }

    /// Marks the ids with the position committed in their place; an id without one is left out.
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
                write_mark(&mut value, place, next_offset);
                value
            })
            .collect();
        let mark = |marks: &[Mark<'_>]| {
            let mut commands = Pipeline::with_capacity(marks.len());
            let mut key = Vec::new();
            for mark in marks {
                let Some(value) = values.get(mark.place as usize) else {
                    continue;
                };
                key.clear();
                self.keys.write(&mut key, mark.scope, mark.id, mark.key);
                commands.add_command(self.set(&key, value, !mark.overwrite));
            }
            let ids = commands.len();
            Request::new(commands, ids)
        };
        marks.chunks(IDS_MAX).map(mark).collect()
    }

    /// Deletes the claims of an attempt where they still stand.
    pub(super) fn unclaims(
        &self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        token: &str,
    ) -> Vec<Request> {
        let unclaim = |lookups: &[Lookup<'_>]| {
            let mut command = Cmd::new();
            command.arg("EVAL").arg(UNCLAIM).arg(lookups.len());
            let mut text = Vec::new();
            for lookup in lookups {
                command.write_arg(self.key(&mut text, lookup));
            }
            for lookup in lookups {
                claim_of(&mut text, places, lookup, token);
                command.write_arg(&text);
            }
            let mut commands = Pipeline::with_capacity(1);
            commands.add_command(command);
            Request::new(commands, lookups.len())
        };
        lookups.chunks(IDS_MAX).map(unclaim).collect()
    }

    /// Value and expiry in one command: a key without expiry would be remembered for ever.
    fn set(&self, key: &[u8], value: &[u8], only_if_absent: bool) -> Cmd {
        // SET, key, value, NX, EX, ttl, GET
        let mut command = Cmd::with_capacity(7, key.len() + value.len() + self.ttl_s.len() + 10);
        command.write_arg(b"SET");
        command.write_arg(key);
        command.write_arg(value);
        if only_if_absent {
            command.write_arg(b"NX");
        }
        command.write_arg(b"EX");
        command.write_arg(self.ttl_s.as_bytes());
        command
    }

    fn key<'k>(&self, key: &'k mut Vec<u8>, lookup: &Lookup<'_>) -> &'k [u8] {
        key.clear();
        self.keys.write(key, lookup.scope, lookup.id, lookup.key);
        key
    }
}

/// What became of a claim.
fn read_claim(style: ClaimStyle, reply: &[Value], own: &[u8], proofs: &impl Proofs) -> Probe {
    match (style, reply) {
        // There was nothing, so that it is ours now.
        (ClaimStyle::SetGet, [Value::Nil]) => Probe::Claimed,
        (ClaimStyle::SetThenGet, [Value::Okay, _]) => Probe::Claimed,
        (ClaimStyle::SetGet, [Value::BulkString(value)])
        | (ClaimStyle::SetThenGet, [Value::Nil, Value::BulkString(value)]) => {
            judge(value, Some(own), proofs)
        }
        _ => Probe::Unknown,
    }
}

/// Writes the claim that an attempt makes for a lookup.
fn claim_of(value: &mut Vec<u8>, places: &[Place], lookup: &Lookup<'_>, token: &str) {
    value.clear();
    match places.get(lookup.place as usize) {
        Some(place) => write_claim(value, place, lookup.offset, token),
        // Still a claim, and still recognised as our own.
        None => value.extend_from_slice(format!("c////{token}").as_bytes()),
    }
}
