//! A topic of which half the records are duplicates: half of those near their event, half far from
//! it, and of the far ones every other in another partition.

use std::sync::Arc;

use super::events::{Event, PARTITIONS, mixed};
use crate::cli::produce::Record;

/// A near duplicate has at most so many events between itself and its event.
const NEAR_MAX: u64 = 500;

/// A record's place: behind how many events, and which of those there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Placed {
    behind: u64,
    is_copy: bool,
    number: u32,
    partition: u16,
}

/// Each event twice.
pub(super) fn records(events: &Arc<Vec<Event>>) -> impl Iterator<Item = Record> + Send + 'static {
    let events = Arc::clone(events);
    let placed = placed(&events);
    placed.into_iter().filter_map(move |placed| {
        let event = events.get(placed.number as usize)?;
        Some(event.record(placed.partition))
    })
}

fn placed(events: &[Event]) -> Vec<Placed> {
    let count = events.len() as u64;
    let mut placed = Vec::with_capacity(events.len() * 2);
    for (number, event) in (0_u32..).zip(events) {
        let at = u64::from(number);
        let random = mixed(at ^ 1 << 50);
        let (distance, partition) = match number % 4 {
            0 | 2 => (1 + random % NEAR_MAX, event.partition),
            1 => (count / 8 + random % (count / 4).max(1), event.partition),
            _ => {
                let other = (event.partition + 1 + (random % 7) as u16) % PARTITIONS;
                (count / 8 + random % (count / 4).max(1), other)
            }
        };
        let of = |behind, is_copy, partition| Placed {
            behind,
            is_copy,
            number,
            partition,
        };
        placed.push(of(at, false, event.partition));
        placed.push(of(at + distance, true, partition));
    }
    placed.sort_unstable();
    placed
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn every_event_comes_twice_and_half_of_the_copies_come_near() {
        let events: Vec<Event> = (0..8_000).map(Event::new).collect();
        let placed = placed(&events);
        assert_eq!(placed.len(), 16_000);
        let mut first: HashMap<u32, (usize, u16)> = HashMap::new();
        let (mut near, mut far, mut elsewhere) = (0, 0, 0);
        for (at, record) in placed.iter().enumerate() {
            let Some((before, partition)) = first.get(&record.number) else {
                assert!(!record.is_copy);
                first.insert(record.number, (at, record.partition));
                continue;
            };
            match at - before {
                0..1_100 => near += 1,
                _ => far += 1,
            }
            elsewhere += usize::from(record.partition != *partition);
        }
        assert_eq!(first.len(), 8_000);
        // Behind the last event distances shrink.
        assert!((4_000..5_000).contains(&near), "{near} near, {far} far");
        assert_eq!((near + far, elsewhere), (8_000, 2_000));
    }
}
