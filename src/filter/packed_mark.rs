//! A mark in few bytes, for stores of many: what it says is what [`super::mark_value`] says.
//!
//! ```text
//! <topic> <partition> <next offset> <lengths>
//! ```
//!
//! Numbers are little-endian without zeros at the end. The last byte holds how many bytes the
//! offset has (bits 0 to 3) and the partition (bits 4 to 6), and whether the topic, sixteen
//! hexadecimal digits around a hyphen, is packed into eight bytes (bit 7).

use super::mark_value::weigh;
use super::{Place, Probe, Proofs};

const HEX_PACKED: u8 = 0x80;
/// `01234567-89abcdef`
const HEX_CHARS: usize = 17;
const HYPHEN_AT: usize = 8;
const HEX_BYTES: usize = 8;

/// Appends a mark: its proof is that the position `next_offset` was committed.
pub(super) fn write(value: &mut Vec<u8>, place: &Place, next_offset: i64) {
    let (offset, partition) = (next_offset.to_le_bytes(), place.partition.to_le_bytes());
    let (offset, partition) = (trimmed(&offset), trimmed(&partition));
    let mut lengths = (partition.len() << 4 | offset.len()) as u8;
    match pack_hex(&place.topic) {
        Some(packed) => {
            lengths |= HEX_PACKED;
            value.extend_from_slice(&packed);
        }
        None => value.extend_from_slice(place.topic.as_bytes()),
    }
    value.extend_from_slice(partition);
    value.extend_from_slice(offset);
    value.push(lengths);
}

/// What a mark that was found proves; what cannot be read proves nothing.
pub(super) fn judge(value: &[u8], proofs: &impl Proofs) -> Probe {
    let mut digits = [b'-'; HEX_CHARS];
    match read(value, &mut digits) {
        Some((topic, partition, next_offset)) => weigh(topic, partition, next_offset, proofs),
        None => Probe::Unproven,
    }
}

/// Reads a mark; `digits` takes the name of a topic that was packed.
fn read<'a>(value: &'a [u8], digits: &'a mut [u8; HEX_CHARS]) -> Option<(&'a str, i32, i64)> {
    let (&lengths, rest) = value.split_last()?;
    let (rest, offset) = split_number(rest, lengths & 0x0f)?;
    let (topic, partition) = split_number(rest, lengths >> 4 & 0x07)?;
    let topic = if lengths & HEX_PACKED != 0 {
        unpack_hex(topic.try_into().ok()?, digits);
        &digits[..]
    } else {
        topic
    };
    Some((
        std::str::from_utf8(topic).ok()?,
        i32::from_le_bytes(partition[..4].try_into().ok()?),
        i64::from_le_bytes(offset),
    ))
    .filter(|_| partition[4..] == [0; 4])
}

fn trimmed(number: &[u8]) -> &[u8] {
    let zeros = number.iter().rev().take_while(|byte| **byte == 0).count();
    number.split_at(number.len() - zeros).0
}

/// Splits a number of so many bytes off the end.
fn split_number(bytes: &[u8], length: u8) -> Option<(&[u8], [u8; 8])> {
    let at = bytes.len().checked_sub(length.into())?;
    let (rest, number) = bytes.split_at(at);
    let mut padded = [0; 8];
    padded.get_mut(..number.len())?.copy_from_slice(number);
    Some((rest, padded))
}

fn pack_hex(topic: &str) -> Option<[u8; HEX_BYTES]> {
    let digits: &[u8; HEX_CHARS] = topic.as_bytes().try_into().ok()?;
    if digits[HYPHEN_AT] != b'-' {
        return None;
    }
    let mut packed = [0; HEX_BYTES];
    let halves = digits[..HYPHEN_AT].iter().chain(&digits[HYPHEN_AT + 1..]);
    for (at, digit) in halves.enumerate() {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        packed[at / 2] |= nibble << if at % 2 == 0 { 4 } else { 0 };
    }
    Some(packed)
}

fn unpack_hex(packed: &[u8; HEX_BYTES], digits: &mut [u8; HEX_CHARS]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (at, byte) in packed.iter().enumerate() {
        // The second half stands behind the hyphen.
        let to = 2 * at + usize::from(at >= HEX_BYTES / 2);
        digits[to] = DIGITS[usize::from(byte >> 4)];
        digits[to + 1] = DIGITS[usize::from(byte & 0x0f)];
    }
    digits[HYPHEN_AT] = b'-';
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Partition 3 of these topics was committed up to a position.
    struct Reached(i64);

    impl Proofs for Reached {
        fn high_water(&self, topic: &str, partition: i32) -> Option<i64> {
            let known = ["abc", "0a1b2c3d-4e5f6071"].contains(&topic) && partition == 3;
            known.then_some(self.0)
        }
    }

    fn packed(topic: &str, partition: i32, next_offset: i64) -> Vec<u8> {
        let mut value = Vec::new();
        let topic = topic.to_owned();
        write(&mut value, &Place { topic, partition }, next_offset);
        value
    }

    #[test]
    fn a_mark_proves_nothing_before_its_position_is_reached() {
        for topic in ["abc", "0a1b2c3d-4e5f6071"] {
            for next_offset in [1, 255, 256, 65_536, i64::from(u32::MAX) + 1] {
                let mark = packed(topic, 3, next_offset);
                assert_eq!(judge(&mark, &Reached(next_offset - 1)), Probe::Unproven);
                assert_eq!(judge(&mark, &Reached(next_offset)), Probe::Proven);
            }
        }
    }

    #[test]
    fn a_mark_of_a_place_that_was_never_read_proves_nothing() {
        for (topic, partition) in [
            ("abc", 4),
            ("abc", 259),
            ("abd", 3),
            ("0a1b2c3d-4e5f6072", 3),
        ] {
            let mark = packed(topic, partition, 10);
            assert_eq!(judge(&mark, &Reached(99)), Probe::Unproven, "{topic}");
        }
    }

    #[test]
    fn what_cannot_be_read_proves_nothing() {
        for value in [
            &b""[..],
            b"\x00",
            b"\x11",
            b"\x8f",
            b"abc\x03\x00",
            b"abc\x03\x20",
            b"abc\x03\x01\x7f",
            b"abc\x03\x00\x00\x00\x00\x00\x00\x00\xff\x18",
            b"abc\x03\x00\x00\x00\x01\x0a\x51",
            b"\xff\x03\x0a\x11",
            b"abc\x03\x0a\x91",
            b"d/abc/3/1",
            b"1",
        ] {
            assert_eq!(
                judge(value, &Reached(i64::MAX)),
                Probe::Unproven,
                "{value:?}"
            );
        }
    }

    #[test]
    fn a_mark_is_as_short_as_documented() {
        assert_eq!(packed("abc", 3, 10), b"abc\x03\x0a\x11");
        let mark = packed("0a1b2c3d-4e5f6071", 300, 3_000_000_000);
        assert_eq!(mark.len(), 8 + 2 + 4 + 1);
        assert_eq!(packed("0a1b2c3d-4e5f6071", 0, 1).len(), 8 + 1 + 1);
    }

    proptest! {
        #[test]
        fn a_mark_reads_back_as_it_was_written(
            topic in "[a-z0-9/\\-]{0,8}|[0-9a-f]{8}-[0-9a-f]{8}|[0-9a-fA-F-]{17}|[0-9a-g]{8}-[0-9a-g]{8}",
            partition: i32,
            next_offset in 0..=i64::MAX,
        ) {
            let mark = packed(&topic, partition, next_offset);
            let mut digits = [0; HEX_CHARS];
            prop_assert_eq!(read(&mark, &mut digits), Some((topic.as_str(), partition, next_offset)));
        }

        #[test]
        fn no_bytes_can_break_it(value in prop::collection::vec(any::<u8>(), 0..30)) {
            judge(&value, &Reached(99));
        }
    }
}
