//! A filter in memory that behaves like Redis, and misbehaves when told to: for simulation.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::mark_key::MarkKeys;
use super::mark_value::{judge, write_claim, write_mark};
use super::{Filter, Lookup, Mark, MarkOrder, Place, Probe, Proofs, Receipt};
use crate::error::Error;

#[derive(Debug, Default)]
struct Store {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    forgotten: BTreeMap<Vec<u8>, Vec<u8>>,
    attempts: u64,
    failing_probes: u32,
    lost_answers: u32,
    lost_marks: u32,
    lost_unclaims: u32,
}

/// A store of marks in memory. Clones share it, as workers share a Redis.
///
/// Nothing in it depends on time or chance; marks expire when they are told to.
#[derive(Clone, Debug)]
pub struct MemoryFilter {
    store: Arc<Mutex<Store>>,
    keys: MarkKeys,
    order: MarkOrder,
    always_overwrites: bool,
    token: String,
}

impl MemoryFilter {
    /// An empty store, and the first worker's handle to it.
    pub fn new(pipeline: &str, order: MarkOrder) -> Self {
        Self {
            store: Arc::default(),
            keys: MarkKeys::new(pipeline),
            order,
            always_overwrites: false,
            token: String::new(),
        }
    }

    /// A handle that writes marks over whatever is there, as a store of buckets does.
    #[must_use]
    pub fn that_always_overwrites(mut self) -> Self {
        self.always_overwrites = true;
        self
    }

    /// A handle to the same store for another pipeline.
    pub fn for_pipeline(&self, pipeline: &str, order: MarkOrder) -> Self {
        Self {
            store: self.store.clone(),
            ..Self::new(pipeline, order)
        }
    }

    /// The key of an id, as this handle's pipeline and namespace have it.
    pub fn key_of(&self, lookup: &Lookup<'_>) -> Vec<u8> {
        let mut key = Vec::with_capacity(self.keys.bytes_max(lookup.scope));
        self.keys
            .write(&mut key, lookup.scope, lookup.id, lookup.key);
        key
    }

    /// What stands under a key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        self.lock().values.get(key).cloned()
    }

    /// Puts any value under a key.
    pub fn put(&self, key: &[u8], value: &[u8]) {
        self.lock().values.insert(key.to_vec(), value.to_vec());
    }

    /// Forgets the keys that `which` picks, as expiry and eviction do; it is asked in order.
    pub fn forget(&self, mut which: impl FnMut(&[u8]) -> bool) {
        let mut store = self.lock();
        let forgotten = store.values.extract_if(.., |key, _| which(key));
        let mut forgotten: BTreeMap<_, _> = forgotten.collect();
        store.forgotten.append(&mut forgotten);
    }

    /// Puts back what was forgotten last of each key, in the place of what is there now, as a
    /// replica that lags behind does when it is promoted, and a clock that goes back.
    pub fn recall(&self) {
        let store = &mut *self.lock();
        store.values.append(&mut store.forgotten);
    }

    /// The next `count` probes fail: nothing is claimed, and all they learn is
    /// [`Probe::Unknown`].
    pub fn fail_probes(&self, count: u32) {
        self.lock().failing_probes = count;
    }

    /// The answers to the next `count` probes are lost: their claims stand, and all they learn is
    /// [`Probe::Unknown`].
    pub fn lose_answers(&self, count: u32) {
        self.lock().lost_answers = count;
    }

    /// The next `count` calls of [`Filter::mark`] write nothing.
    pub fn lose_marks(&self, count: u32) {
        self.lock().lost_marks = count;
    }

    /// The next `count` calls of [`Filter::unclaim`] give nothing back.
    pub fn lose_unclaims(&self, count: u32) {
        self.lock().lost_unclaims = count;
    }

    fn lock(&self) -> MutexGuard<'_, Store> {
        // The store is consistent after every statement, so a panic elsewhere does not spoil it.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claim_of(&self, places: &[Place], lookup: &Lookup<'_>) -> Option<Vec<u8>> {
        let mut claim = Vec::new();
        write_claim(
            &mut claim,
            places.get(lookup.place as usize)?,
            lookup.offset,
            &self.token,
        );
        Some(claim)
    }

    fn look_up(
        &self,
        store: &mut Store,
        places: &[Place],
        lookup: &Lookup<'_>,
        proofs: &impl Proofs,
    ) -> Probe {
        let key = self.key_of(lookup);
        let claim = match self.order {
            MarkOrder::After => None,
            MarkOrder::Before => self.claim_of(places, lookup),
        };
        match (store.values.get(&key), claim) {
            (Some(value), claim) => judge(value, claim.as_deref(), proofs),
            (None, None) => Probe::Unknown,
            (None, Some(claim)) => {
                store.values.insert(key, claim);
                Probe::Claimed
            }
        }
    }
}

/// Whether a fault that was ordered happens now.
fn take(count: &mut u32) -> bool {
    let happens = *count > 0;
    *count = count.saturating_sub(1);
    happens
}

impl Filter for MemoryFilter {
    async fn probe(
        &mut self,
        places: &[Place],
        lookups: &[Lookup<'_>],
        proofs: &impl Proofs,
    ) -> Vec<Probe> {
        let unknown = vec![Probe::Unknown; lookups.len()];
        let store = self.store.clone();
        let mut store = store.lock().unwrap_or_else(PoisonError::into_inner);
        store.attempts += 1;
        self.token = store.attempts.to_string();
        if take(&mut store.failing_probes) {
            return unknown;
        }
        let probes = lookups
            .iter()
            .map(|lookup| self.look_up(&mut store, places, lookup, proofs))
            .collect();
        if take(&mut store.lost_answers) {
            unknown
        } else {
            probes
        }
    }

    async fn mark(&mut self, _: &Receipt, places: &[Place], committed: &[i64], marks: &[Mark<'_>]) {
        let mut store = self.lock();
        if take(&mut store.lost_marks) {
            return;
        }
        for mark in marks {
            let place = mark.place as usize;
            let (Some(at), Some(&next_offset)) = (places.get(place), committed.get(place)) else {
                continue;
            };
            let (mut key, mut value) = (Vec::new(), Vec::new());
            self.keys.write(&mut key, mark.scope, mark.id, mark.key);
            write_mark(&mut value, at, next_offset);
            if mark.overwrite || self.always_overwrites {
                store.values.insert(key, value);
            } else {
                store.values.entry(key).or_insert(value);
            }
        }
    }

    async fn unclaim(&mut self, places: &[Place], lookups: &[Lookup<'_>]) {
        let mut store = self.lock();
        if take(&mut store.lost_unclaims) {
            return;
        }
        for lookup in lookups {
            let key = self.key_of(lookup);
            if store.values.get(&key) == self.claim_of(places, lookup).as_ref() {
                store.values.remove(&key);
            }
        }
    }

    async fn flush(&mut self, _: Duration) {}

    fn set_namespace(&mut self, namespace: i32) {
        self.keys.set_namespace(namespace);
    }

    fn health(&self) -> Result<(), Error> {
        Ok(())
    }
}
