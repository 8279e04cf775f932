//! Marks in Redis: one key per id, whose value carries its proof.
//!
//! Whatever Redis does, a batch waits for it no longer than the timeout says, and learns
//! [`Probe::Unknown`] of every id that it got no answer for. Marks are written by a task of their
//! own. A breaker leaves a Redis alone that keeps failing.

use std::sync::Arc;
use std::time::Duration;

use ::redis::Value;

use self::circuits::Purpose;
use self::link::{Answers, Link};
use self::marker::Marker;
use self::request::{ClaimStyle, Encoder, IDS_MAX, claim_of};
use super::mark_key::MarkKeys;
use super::mark_value::judge;
use super::{Filter, Lookup, Mark, MarkOrder, Place, Probe, Proofs, Receipt};
use crate::error::Error;
use crate::telemetry::FilterState;

mod breaker;
mod circuits;
mod failure;
mod link;
mod marker;
mod report;
mod request;
mod session;

pub use report::{RedisReport, report};

/// Where marks stand and how long.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://[user:password@]host:port[/database]`, `rediss://…` or `unix:///path`.
    pub url: String,
    /// How long a batch waits for an answer, and from one answer to the next of a large batch.
    pub timeout: Duration,
    /// How long an id is remembered, in whole seconds, at least one.
    pub ttl: Duration,
    /// The pipeline, whose ids are its own.
    pub pipeline: String,
    /// Whether ids are claimed before their effects.
    pub mark: MarkOrder,
}

/// A worker's view of Redis. Clones share the connection, the breakers and the task that writes
/// marks; each worker has a clone, and claims of its own.
#[derive(Clone)]
pub struct RedisFilter {
    link: Arc<Link>,
    marker: Marker,
    encoder: Encoder,
    order: MarkOrder,
    /// Marks the claims of the last probe as ours.
    token: String,
}

impl RedisFilter {
    /// Opens a filter within a Tokio runtime. It connects when first used, so that an absent server
    /// is no error; only a URL that cannot be read is one.
    pub fn open(settings: RedisSettings) -> Result<Self, Error> {
        let RedisSettings {
            url,
            timeout,
            ttl,
            pipeline,
            mark,
        } = settings;
        // The URL may hold a password and is not repeated.
        let client = session::client(&url).map_err(|error| {
            Error::fatal(format!(
                "redis.url is no address of a Redis ({error}); write redis://host:6379"
            ))
        })?;
        let link = Arc::new(Link::new(client, timeout));
        Ok(Self {
            marker: Marker::start(link.clone()),
            link,
            encoder: Encoder::new(MarkKeys::new(&pipeline), ttl.as_secs()),
            order: mark,
            token: String::new(),
        })
    }

    /// How Redis fares, for whoever watches. Costs no I/O.
    pub fn state(&self) -> FilterState {
        self.link.circuits().state()
    }

    async fn look(&self, lookups: &[Lookup<'_>], proofs: &impl Proofs) -> Vec<Probe> {
        let requests = self.encoder.looks(lookups);
        let answers = self.link.exchange(Purpose::Look, &requests).await;
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

    async fn claim(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        self.token = format!("{:016x}", rand::random::<u64>());
        let style = self.link.claim_style();
        let requests = self.encoder.claims(places, lookups, &self.token, style);
        let answers: Answers = self.link.exchange(Purpose::Claim, &requests).await;
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
                claim_of(&mut own, places, lookup, &self.token);
                let reply = replies.next().unwrap_or_default();
                probes.push(read_claim(style, reply, &own, proofs));
            }
        }
        probes
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

impl Filter for RedisFilter {
    async fn probe(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        match self.order {
            MarkOrder::After => self.look(lookups, proofs).await,
            MarkOrder::Before => self.claim(places, lookups, proofs).await,
        }
    }

    async fn mark(&mut self, _: &Receipt, places: &[Place], committed: &[i64], marks: &[Mark<'_>]) {
        if self.link.circuits().is_silent() {
            return marker::count_dropped(marks.len());
        }
        self.marker
            .write(self.encoder.marks(places, committed, marks));
    }

    async fn unclaim(&mut self, places: &[Place], lookups: &[Lookup<'_>]) {
        if self.order == MarkOrder::After {
            return;
        }
        let requests = self.encoder.unclaims(places, lookups, &self.token);
        // A claim that stays proves nothing, and expires.
        _ = self.link.exchange(Purpose::Unclaim, &requests).await;
    }

    async fn flush(&mut self, limit: Duration) {
        self.marker.flush(limit).await;
    }

    fn set_namespace(&mut self, namespace: i32) {
        self.encoder.keys.set_namespace(namespace);
    }

    fn health(&self) -> Result<(), Error> {
        match self.link.circuits().trouble() {
            Some(trouble) => Err(Error::transient(trouble)),
            None => Ok(()),
        }
    }
}
