//! Marks in Redis: a key for each id, or ids in hashes by time; each mark carries its proof.
//!
//! Whatever Redis does, a batch waits for it no longer than the timeout says, and learns
//! [`Probe::Unknown`] of every id that it got no answer for. Marks are written by a task of their
//! own. A breaker leaves a Redis alone that keeps failing.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use self::buckets::{Buckets, Clock, Sharded};
use self::circuits::Purpose;
use self::keys::Keys;
use self::link::Link;
use self::marker::Marker;
use self::request::Request;
use super::mark_key::MarkKeys;
use super::{Filter, Lookup, Mark, MarkOrder, Place, Probe, Proofs, Receipt};
use crate::error::Error;
use crate::telemetry::FilterState;

mod breaker;
mod buckets;
mod circuits;
mod failure;
mod keys;
mod link;
mod marker;
mod report;
mod request;
mod session;

pub use report::{RedisReport, report};

/// How marks are stored (`redis.layout`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// A key for each id. A mark lives as long as the time to live.
    #[default]
    Keys,
    /// Ids in hashes, one set of them for each slice of time. A mark lives for one to two times the
    /// time to live. There are no claims.
    Buckets,
}

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
    /// How marks are stored.
    pub layout: Layout,
}

#[derive(Clone)]
enum Encoding {
    Keys(Keys),
    Buckets(Buckets),
}

/// A worker's view of Redis. Clones share the connection, the breakers and the task that writes
/// marks; each worker has a clone, and claims of its own.
#[derive(Clone)]
pub struct RedisFilter {
    link: Arc<Link>,
    marker: Marker,
    encoding: Encoding,
    order: MarkOrder,
    /// Marks the claims of the last probe as ours.
    token: String,
}

impl RedisFilter {
    /// Opens a filter within a Tokio runtime. It connects when first used, so that an absent server
    /// is no error; only a URL that cannot be read is one, and claims in a layout that has none.
    pub fn open(settings: RedisSettings) -> Result<Self, Error> {
        let RedisSettings {
            url,
            timeout,
            ttl,
            pipeline,
            mark,
            layout,
        } = settings;
        let (keys, ttl_s) = (MarkKeys::new(&pipeline), ttl.as_secs());
        let encoding = match (layout, mark) {
            (Layout::Keys, _) => Encoding::Keys(Keys::new(keys, ttl_s)),
            (Layout::Buckets, MarkOrder::After) => Encoding::Buckets(Buckets::new(keys, ttl_s)),
            (Layout::Buckets, MarkOrder::Before) => {
                return Err(Error::fatal(
                    "redis.layout = \"buckets\" has no claims, which dedup.mark = \"before\" needs; \
                     use \"keys\"",
                ));
            }
        };
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
            encoding,
            order: mark,
            token: String::new(),
        })
    }

    /// How Redis fares, for whoever watches. Costs no I/O.
    pub fn state(&self) -> FilterState {
        self.link.circuits().state()
    }

    /// Tells the time by another clock; buckets are slices of it.
    #[must_use]
    pub fn with_clock(mut self, now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Self {
        if let Encoding::Buckets(buckets) = &mut self.encoding {
            buckets.clock = Clock(Arc::new(now));
        }
        self
    }

    /// What [`Filter::probe`] sends where nothing is claimed: to measure the cost of encoding.
    #[doc(hidden)]
    pub fn packed_looks(&self, lookups: &[Lookup<'_>]) -> Vec<Vec<u8>> {
        packed(&match &self.encoding {
            Encoding::Keys(keys) => keys.looks(lookups),
            Encoding::Buckets(buckets) => buckets.looks(&sharded(lookups)),
        })
    }

    /// What [`Filter::mark`] sends: to measure the cost of encoding.
    #[doc(hidden)]
    pub fn packed_marks(
        &self,
        places: &[Place],
        committed: &[i64],
        marks: &[Mark<'_>],
    ) -> Vec<Vec<u8>> {
        packed(&self.marks(places, committed, marks))
    }

    fn marks(&self, places: &[Place], committed: &[i64], marks: &[Mark<'_>]) -> Vec<Request> {
        match &self.encoding {
            Encoding::Keys(keys) => keys.marks(places, committed, marks),
            Encoding::Buckets(buckets) => buckets.marks(places, committed, marks),
        }
    }

    async fn look(&self, lookups: &[Lookup<'_>], proofs: &impl Proofs) -> Vec<Probe> {
        match &self.encoding {
            Encoding::Keys(keys) => {
                let requests = keys.looks(lookups);
                let answers = self.link.exchange(Purpose::Look, &requests).await;
                Keys::read_looks(lookups, answers, proofs)
            }
            Encoding::Buckets(buckets) => {
                let sharded = sharded(lookups);
                let requests = buckets.looks(&sharded);
                let answers = self.link.exchange(Purpose::Look, &requests).await;
                Buckets::read_looks(&sharded, answers, proofs)
            }
        }
    }

    async fn claim(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        let Encoding::Keys(keys) = &self.encoding else {
            return self.look(lookups, proofs).await;
        };
        self.token = format!("{:016x}", rand::random::<u64>());
        let style = self.link.claim_style();
        let requests = keys.claims(places, lookups, &self.token, style);
        let answers = self.link.exchange(Purpose::Claim, &requests).await;
        Keys::read_claims(places, lookups, &self.token, style, answers, proofs)
    }
}

fn sharded(lookups: &[Lookup<'_>]) -> Sharded {
    Sharded::new(lookups.iter().map(|lookup| lookup.key))
}

fn packed(requests: &[Request]) -> Vec<Vec<u8>> {
    let pack = |request: &Request| request.pipeline.get_packed_pipeline();
    requests.iter().map(pack).collect()
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
        self.marker.write(self.marks(places, committed, marks));
    }

    async fn unclaim(&mut self, places: &[Place], lookups: &[Lookup<'_>]) {
        let (MarkOrder::Before, Encoding::Keys(keys)) = (self.order, &self.encoding) else {
            return;
        };
        let requests = keys.unclaims(places, lookups, &self.token);
        // A claim that stays proves nothing, and expires.
        _ = self.link.exchange(Purpose::Unclaim, &requests).await;
    }

    async fn flush(&mut self, limit: Duration) {
        self.marker.flush(limit).await;
    }

    fn set_namespace(&mut self, namespace: i32) {
        match &mut self.encoding {
            Encoding::Keys(keys) => keys.keys.set_namespace(namespace),
            Encoding::Buckets(buckets) => buckets.keys.set_namespace(namespace),
        }
    }

    fn health(&self) -> Result<(), Error> {
        match self.link.circuits().trouble() {
            Some(trouble) => Err(Error::transient(trouble)),
            None => Ok(()),
        }
    }
}
