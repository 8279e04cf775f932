//! The ids applied last, in memory: most duplicates follow soon.

use hashbrown::HashSet;

use crate::identity::EventKey;

/// A bounded set of the ids inserted last, in two generations.
///
/// It remembers at least the last `capacity / 2` ids inserted and never holds more than `capacity`:
/// when the younger generation is full the older one is dropped whole, so that nothing is paid per
/// id for forgetting.
///
/// Memory: 17 bytes per slot of a hash table that is at least 7/16 and at most 7/8 full, so a full
/// set takes 20 to 39 bytes per id of its capacity; it grows up to there as ids come, and keeps
/// what it has.
///
/// Producers choose ids, and time-ordered ones differ in few bits: the hasher mixes all bits under
/// a random seed, so that neither slows it down.
#[derive(Clone, Debug)]
pub struct RecentSet {
    young: HashSet<u128>,
    old: HashSet<u128>,
    generation_max: usize,
}

impl RecentSet {
    /// An empty set for up to `capacity` ids; below two it remembers nothing.
    pub fn new(capacity: usize) -> Self {
        Self {
            young: HashSet::new(),
            old: HashSet::new(),
            generation_max: capacity / 2,
        }
    }

    /// Whether the id is among those remembered.
    pub fn contains(&self, key: EventKey) -> bool {
        let key = key.0.as_u128();
        self.young.contains(&key) || self.old.contains(&key)
    }

    /// Remembers an id.
    pub fn insert(&mut self, key: EventKey) {
        if self.generation_max == 0 {
            return;
        }
        if self.young.len() >= self.generation_max {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key.0.as_u128());
    }

    /// Forgets everything, and keeps the memory.
    pub fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }

    /// How many ids it holds; one that stands in both generations counts twice.
    pub fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of memory it has.
    pub fn bytes(&self) -> usize {
        self.young.allocation_size() + self.old.allocation_size()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    fn key(n: u128) -> EventKey {
        EventKey(Uuid::from_u128(n))
    }

    #[test]
    fn the_last_half_is_remembered_and_never_more_than_the_capacity() {
        let mut set = RecentSet::new(100);
        for n in 0..1000 {
            set.insert(key(n));
            assert!(set.len() <= 100, "{} ids", set.len());
            for last in n.saturating_sub(49)..=n {
                assert!(set.contains(key(last)), "{last} is forgotten at {n}");
            }
        }
        assert!(!set.contains(key(899)));
    }

    #[test]
    fn an_id_that_comes_again_is_young_again() {
        let mut set = RecentSet::new(4);
        for n in [1, 2, 1, 3, 4] {
            set.insert(key(n));
        }
        assert!(set.contains(key(1)));
    }

    #[test]
    fn clearing_forgets_both_generations() {
        let mut set = RecentSet::new(4);
        (0..4).for_each(|n| set.insert(key(n)));
        set.clear();
        assert!(set.is_empty());
        assert!((0..4).all(|n| !set.contains(key(n))));
    }

    #[test]
    fn a_capacity_of_nothing_remembers_nothing() {
        for capacity in [0, 1] {
            let mut set = RecentSet::new(capacity);
            set.insert(key(1));
            assert!(set.is_empty() && !set.contains(key(1)));
        }
    }

    #[test]
    fn a_full_set_takes_20_to_39_bytes_per_id() {
        // The best and the worst case: just fitting a table, and one more.
        for (capacity, best) in [(2 * 57_344, true), (2 * 57_345, false), (100_000, false)] {
            let mut set = RecentSet::new(capacity);
            (0..2 * capacity as u128).for_each(|n| set.insert(key(n)));
            let per_id = set.bytes() as f64 / capacity as f64;
            assert!((19.4..39.0).contains(&per_id), "{capacity}: {per_id} bytes");
            assert_eq!(best, per_id < 20.0, "{capacity}: {per_id} bytes");
        }
    }

    proptest! {
        #[test]
        fn it_holds_only_what_was_inserted_and_all_of_the_last_half(
            ids in prop::collection::vec(0..40u128, 0..200), capacity in 2..20usize
        ) {
            let mut set = RecentSet::new(capacity);
            ids.iter().for_each(|&n| set.insert(key(n)));
            for n in 0..60 {
                if set.contains(key(n)) {
                    prop_assert!(ids.contains(&n));
                }
            }
            for &n in ids.iter().rev().take(capacity / 2) {
                prop_assert!(set.contains(key(n)));
            }
        }
    }
}
