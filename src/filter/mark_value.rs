//! What stands under an id's key, and what it proves.
//!
//! ```text
//! d/<topic>/<partition>/<next offset>         a mark: applied, by the transaction that moved there
//! c/<topic>/<partition>/<offset>/<token>      a claim: that record is being worked on
//! ```

use std::io::Write;

use super::{Place, Probe, Proofs};

/// Appends a mark: its proof is that the position `next_offset` was committed.
pub(super) fn write_mark(value: &mut Vec<u8>, place: &Place, next_offset: i64) {
    let Place { topic, partition } = place;
    // Writing to memory cannot fail.
    _ = write!(value, "d/{topic}/{partition}/{next_offset}");
}

/// Appends a claim by the record at `offset`.
pub(super) fn write_claim(value: &mut Vec<u8>, place: &Place, offset: i64, token: &str) {
    let Place { topic, partition } = place;
    _ = write!(value, "c/{topic}/{partition}/{offset}/{token}");
}

/// What a value that was found says. `own` is the claim that this attempt makes, if it makes one.
///
/// Only a mark whose position is known to be committed proves anything: one that claims more is
/// left over from a history that the database lost, and whatever cannot be read proves nothing.
pub(super) fn judge(value: &[u8], own: Option<&[u8]>, proofs: &impl Proofs) -> Probe {
    if own == Some(value) {
        return Probe::Claimed;
    }
    if value.starts_with(b"c/") {
        return Probe::ClaimedElsewhere;
    }
    match parse_mark(value) {
        Some((topic, partition, next_offset)) => weigh(topic, partition, next_offset, proofs),
        None => Probe::Unproven,
    }
}

/// What a mark with this proof is worth.
pub(super) fn weigh(topic: &str, partition: i32, next_offset: i64, proofs: &impl Proofs) -> Probe {
    let reached = proofs.high_water(topic, partition);
    // No transaction that applied a record ends before it, so a smaller one would prove anything.
    if next_offset > 0 && reached.is_some_and(|reached| reached >= next_offset) {
        Probe::Proven
    } else {
        Probe::Unproven
    }
}

fn parse_mark(value: &[u8]) -> Option<(&str, i32, i64)> {
    let rest = std::str::from_utf8(value).ok()?.strip_prefix("d/")?;
    let (rest, next_offset) = rest.rsplit_once('/')?;
    let (topic, partition) = rest.rsplit_once('/')?;
    Some((topic, partition.parse().ok()?, next_offset.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Partition 3 of topic `abc` was committed up to a position.
    struct Reached(i64);

    impl Proofs for Reached {
        fn high_water(&self, topic: &str, partition: i32) -> Option<i64> {
            (topic == "abc" && partition == 3).then_some(self.0)
        }
    }

    #[test]
    fn a_mark_proves_nothing_before_its_position_is_reached() {
        assert_eq!(judge(b"d/abc/3/10", None, &Reached(9)), Probe::Unproven);
        assert_eq!(judge(b"d/abc/3/10", None, &Reached(10)), Probe::Proven);
    }

    #[test]
    fn a_mark_of_a_place_that_was_never_read_proves_nothing() {
        assert_eq!(judge(b"d/abc/4/10", None, &Reached(99)), Probe::Unproven);
        assert_eq!(judge(b"d/abd/3/10", None, &Reached(99)), Probe::Unproven);
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        for value in [
            &b""[..],
            b"d",
            b"d/",
            b"d/abc/3",
            b"d/abc/3/",
            b"d/abc/3/x",
            b"d/abc/3/0",
            b"d/abc/3/-5",
            b"d/abc/3/1/",
            b"d/abc/3/99999999999999999999",
            b"d/abc/99999999999/1",
            b"e/abc/3/1",
            b"1",
            b"d/abc/3/1\xff",
            b"d/abc/3/1\n",
            b"d/abc /3/1",
            b" d/abc/3/1",
        ] {
            let text = String::from_utf8_lossy(value);
            assert_eq!(judge(value, None, &Reached(99)), Probe::Unproven, "{text}");
        }
    }

    #[test]
    fn a_claim_is_ours_only_by_its_whole_value() {
        let place = Place {
            topic: "abc".into(),
            partition: 3,
        };
        let mut own = Vec::new();
        write_claim(&mut own, &place, 7, "t1");
        assert_eq!(own, b"c/abc/3/7/t1");
        assert_eq!(judge(&own, Some(&own), &Reached(99)), Probe::Claimed);
        assert_eq!(judge(&own, None, &Reached(99)), Probe::ClaimedElsewhere);
        let other = b"c/abc/3/7/t2";
        assert_eq!(
            judge(other, Some(&own), &Reached(99)),
            Probe::ClaimedElsewhere
        );
    }

    proptest! {
        #[test]
        fn a_mark_reads_back_as_it_was_written(
            topic in "[a-z0-9/]{0,8}", partition: i32, next_offset in 1..i64::MAX
        ) {
            let mut value = Vec::new();
            write_mark(&mut value, &Place { topic: topic.clone(), partition }, next_offset);
            prop_assert_eq!(parse_mark(&value), Some((topic.as_str(), partition, next_offset)));
        }
    }
}
