//! What becomes of an event that failed.

use std::time::Duration;

use rand::Rng;

use crate::backoff::Backoff;
use crate::ledger::Verdict;

/// When a failed event is tried again, and when it is given up.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; at least 1.
    pub max_attempts: u32,
    /// The pause before each further one.
    pub backoff: Backoff,
}

impl RetryPolicy {
    /// Decides after so many attempts that all failed.
    pub fn judge(&self, attempts_made: u32, random: &mut impl Rng) -> Verdict {
        if attempts_made >= self.max_attempts {
            return Verdict::Dead;
        }
        Verdict::RetryAfter(self.backoff.wait(attempts_made, Duration::ZERO, random))
    }
}
