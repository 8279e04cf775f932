//! How long to wait before another attempt: pure arithmetic, with the randomness given.

use std::fmt;
use std::time::Duration;

use rand::{Rng, RngExt as _};
use serde::{Deserialize, Serialize};

/// How a wait is spread, so that what failed together does not come back together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Jitter {
    /// Anywhere from nothing to the exponential wait.
    #[default]
    Full,
    /// Half of the exponential wait, and anywhere in the other half.
    Equal,
    /// Anywhere from `base` to three times the wait before.
    Decorrelated,
    /// The exponential wait itself.
    None,
}

impl fmt::Display for Jitter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "full",
            Self::Equal => "equal",
            Self::Decorrelated => "decorrelated",
            Self::None => "none",
        })
    }
}

/// Exponential backoff: the wait doubles with every attempt from `base` up to `cap`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The wait after the first attempt, before jitter.
    pub base: Duration,
    /// No wait is longer.
    pub cap: Duration,
    /// How waits are spread.
    pub jitter: Jitter,
}

impl Backoff {
    /// The wait after an attempt, the first of which is number 1. `previous` is the wait before
    /// that attempt (zero before the first) and counts for [`Jitter::Decorrelated`] only.
    pub fn wait(&self, attempt: u32, previous: Duration, random: &mut impl Rng) -> Duration {
        let full = self.exponential(attempt);
        match self.jitter {
            Jitter::None => full,
            Jitter::Full => between(Duration::ZERO, full, random),
            Jitter::Equal => between(full / 2, full, random),
            Jitter::Decorrelated => {
                let base = self.base.min(self.cap);
                let upper = previous.max(base).saturating_mul(3).min(self.cap);
                between(base, upper, random)
            }
        }
    }

    /// The wait without jitter.
    fn exponential(&self, attempt: u32) -> Duration {
        // Beyond 2^100 any base but zero is beyond any duration.
        let factor = 1u128 << attempt.saturating_sub(1).min(100);
        let nanos = self.base.as_nanos().saturating_mul(factor);
        if nanos >= self.cap.as_nanos() {
            return self.cap;
        }
        let seconds = (nanos / 1_000_000_000) as u64;
        Duration::new(seconds, (nanos % 1_000_000_000) as u32)
    }
}

fn between(low: Duration, high: Duration, random: &mut impl Rng) -> Duration {
    if low < high {
        random.random_range(low..=high)
    } else {
        high
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand::rngs::StdRng;

    use super::*;

    fn backoff(base_ms: u64, cap_ms: u64, jitter: Jitter) -> Backoff {
        Backoff {
            base: Duration::from_millis(base_ms),
            cap: Duration::from_millis(cap_ms),
            jitter,
        }
    }

    #[test]
    fn without_jitter_the_wait_doubles_up_to_the_cap() {
        let backoff = backoff(100, 1_000, Jitter::None);
        let mut random = StdRng::seed_from_u64(1);
        let waits = [0, 1, 2, 3, 4, 5, 33, u32::MAX].map(|attempt| {
            backoff
                .wait(attempt, Duration::ZERO, &mut random)
                .as_millis()
        });
        assert_eq!(waits, [100, 100, 200, 400, 800, 1_000, 1_000, 1_000]);
    }

    #[test]
    fn however_small_the_base_the_wait_reaches_the_cap() {
        let backoff = Backoff {
            base: Duration::from_nanos(1),
            cap: Duration::from_hours(1_000),
            jitter: Jitter::None,
        };
        let mut random = StdRng::seed_from_u64(1);
        let mut wait = |attempt| backoff.wait(attempt, Duration::ZERO, &mut random);
        assert_eq!(wait(34), Duration::from_nanos(1 << 33));
        assert_eq!(wait(60), backoff.cap);
    }

    #[test]
    fn jitter_spreads_waits_over_its_whole_range() {
        let ranges = [
            (Jitter::Full, 0, 800),
            (Jitter::Equal, 400, 800),
            (Jitter::Decorrelated, 100, 900),
        ];
        for (jitter, low, high) in ranges {
            let backoff = backoff(100, 10_000, jitter);
            let mut random = StdRng::seed_from_u64(7);
            let waits: Vec<_> = (0..1_000)
                .map(|_| {
                    backoff
                        .wait(4, Duration::from_millis(300), &mut random)
                        .as_millis()
                })
                .collect();
            let (min, max) = (waits.iter().min().unwrap(), waits.iter().max().unwrap());
            let tenth = (high - low) / 10;
            assert!((low..low + tenth).contains(min), "{jitter} from {min}");
            assert!((high - tenth..=high).contains(max), "{jitter} to {max}");
        }
    }

    fn jitter() -> impl Strategy<Value = Jitter> {
        prop::sample::select(vec![
            Jitter::Full,
            Jitter::Equal,
            Jitter::Decorrelated,
            Jitter::None,
        ])
    }

    fn duration() -> impl Strategy<Value = Duration> {
        prop_oneof![
            Just(Duration::ZERO),
            Just(Duration::MAX),
            any::<u64>().prop_map(Duration::from_nanos),
        ]
    }

    proptest! {
        #[test]
        fn no_wait_is_above_the_cap(
            (base, cap, previous) in (duration(), duration(), duration()),
            attempt in prop_oneof![Just(0), Just(u32::MAX), any::<u32>(), 0u32..70],
            (jitter, seed) in (jitter(), any::<u64>()),
        ) {
            let backoff = Backoff { base, cap, jitter };
            let wait = backoff.wait(attempt, previous, &mut StdRng::seed_from_u64(seed));
            prop_assert!(wait <= cap);
            if matches!(jitter, Jitter::Equal | Jitter::Decorrelated) {
                prop_assert!(wait >= base.min(cap) / 2);
            }
        }

        #[test]
        fn the_same_seed_gives_the_same_waits(attempt in any::<u32>(), jitter in jitter(), seed in any::<u64>()) {
            let wait = || backoff(100, 60_000, jitter).wait(attempt, Duration::ZERO, &mut StdRng::seed_from_u64(seed));
            prop_assert_eq!(wait(), wait());
        }
    }
}
