//! How durations are written: `50ms`, `1h30m`, `24h`, `7d`, as a configuration would have them.

use std::time::Duration;

const UNITS: [(&str, u128); 6] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("ns", 1),
];
const DAY_SECONDS: u64 = 86_400;

/// Writes a duration exactly; it reads back as the same. Whole days from two on are days.
pub fn text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    if duration.is_zero() {
        return "0s".into();
    }
    if duration.subsec_nanos() == 0
        && seconds >= 2 * DAY_SECONDS
        && seconds.is_multiple_of(DAY_SECONDS)
    {
        return format!("{}d", seconds / DAY_SECONDS);
    }
    let mut text = String::new();
    let mut rest = duration.as_nanos();
    for (unit, nanos) in UNITS {
        if rest >= nanos {
            text.push_str(&format!("{}{unit}", rest / nanos));
            rest %= nanos;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations_look_as_people_write_them() {
        for written in [
            "0s", "1ns", "50ms", "1s500ms", "20s", "10m", "1h30m", "24h", "36h", "2d", "7d",
            "3650d",
        ] {
            let duration = humantime::parse_duration(written).unwrap();
            assert_eq!(text(duration), written);
        }
    }

    proptest! {
        #[test]
        fn a_duration_reads_back_as_it_is_written(seconds in 0..u64::MAX / 2, nanos in 0u32..1_000_000_000) {
            let duration = Duration::new(seconds, nanos);
            prop_assert_eq!(humantime::parse_duration(&text(duration)), Ok(duration));
        }
    }
}
