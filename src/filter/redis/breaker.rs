//! Decides when a server that fails is left alone, and when it is tried again.

use std::time::Duration;

use tokio::time::Instant;

/// Failures in a row that open a breaker.
const FAILURES_MAX: u32 = 3;
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// What an outcome changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Opened,
    Closed,
}

/// Closed, everything passes. Opened by [`FAILURES_MAX`] failures in a row, it lets one trial
/// through per pause; pauses double while trials fail, and the first success closes it.
#[derive(Debug)]
pub(super) struct Breaker {
    failures: u32,
    pause: Duration,
    /// When the next trial may pass; `None` while closed.
    next_trial: Option<Instant>,
}

impl Breaker {
    pub(super) fn new() -> Self {
        Self {
            failures: 0,
            pause: PAUSE_MIN,
            next_trial: None,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.next_trial.is_some()
    }

    /// Whether an attempt may pass now. A trial takes its turn with it, so that one whose outcome
    /// is never told blocks nothing for longer than a pause.
    pub(super) fn admits(&mut self, now: Instant) -> bool {
        let Some(next_trial) = self.next_trial else {
            return true;
        };
        if now < next_trial {
            return false;
        }
        self.next_trial = Some(now + self.pause);
        true
    }

    pub(super) fn succeeded(&mut self) -> Option<Change> {
        let was_open = self.is_open();
        *self = Self::new();
        was_open.then_some(Change::Closed)
    }

    /// `jitter` is a random number from 0 to 1: workers of many processes should not come back at
    /// the same instant.
    pub(super) fn failed(&mut self, now: Instant, jitter: f64) -> Option<Change> {
        self.failures = self.failures.saturating_add(1);
        if self.failures < FAILURES_MAX {
            return None;
        }
        let was_open = self.is_open();
        if was_open {
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
        self.next_trial = Some(now + self.pause.mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0));
        (!was_open).then_some(Change::Opened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(now: Instant) -> Breaker {
        let mut breaker = Breaker::new();
        assert_eq!(breaker.failed(now, 1.0), None);
        assert_eq!(breaker.failed(now, 1.0), None);
        assert_eq!(breaker.failed(now, 1.0), Some(Change::Opened));
        breaker
    }

    #[test]
    fn it_opens_after_three_failures_in_a_row_and_says_so_once() {
        let now = Instant::now();
        let mut breaker = Breaker::new();
        breaker.failed(now, 1.0);
        breaker.failed(now, 1.0);
        assert_eq!(breaker.succeeded(), None, "it was not open");
        let mut breaker = opened(now);
        assert!(!breaker.admits(now));
        assert_eq!(breaker.failed(now, 1.0), None);
    }

    #[test]
    fn one_trial_passes_per_pause() {
        let now = Instant::now();
        let mut breaker = opened(now);
        let later = now + PAUSE_MIN;
        assert!(breaker.admits(later));
        assert!(!breaker.admits(later), "a second one in the same pause");
        assert!(breaker.admits(later + PAUSE_MIN), "the first one got lost");
    }

    #[test]
    fn a_success_closes_it_and_the_next_pause_is_short_again() {
        let now = Instant::now();
        let mut breaker = opened(now);
        (0..5).for_each(|_| _ = breaker.failed(now, 1.0));
        assert!(!breaker.admits(now + PAUSE_MIN));
        assert_eq!(breaker.succeeded(), Some(Change::Closed));
        assert!(breaker.admits(now));
        assert!(opened(now).admits(now + PAUSE_MIN));
    }

    #[test]
    fn pauses_double_up_to_five_seconds() {
        let now = Instant::now();
        let mut breaker = opened(now);
        for pause_ms in [200, 400, 800, 1600, 3200, 5000, 5000] {
            breaker.failed(now, 1.0);
            let pause = Duration::from_millis(pause_ms);
            assert_eq!(breaker.next_trial, Some(now + pause));
        }
    }

    #[test]
    fn jitter_shortens_a_pause_by_half_at_most() {
        let now = Instant::now();
        for (jitter, pause_ms) in [(0.0, 100), (0.5, 150), (1.0, 200), (-9.0, 100)] {
            let mut breaker = opened(now);
            breaker.failed(now, jitter);
            let pause = Duration::from_millis(pause_ms);
            assert_eq!(breaker.next_trial, Some(now + pause), "{jitter}");
        }
    }
}
