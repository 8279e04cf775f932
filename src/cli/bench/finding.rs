//! What a scenario came to, over all its rounds.

use super::measured::Measured;
use super::scenario::Goal;
use super::spread::Spread;
use super::usage::PARTS;

/// The product and what it is compared with, measured one after the other.
#[derive(Clone, Debug)]
pub(super) struct Round {
    /// The product.
    pub(super) product: Measured,
    /// The others, in the scenario's order.
    pub(super) baselines: Vec<Measured>,
}

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    /// With what.
    pub(super) name: &'static str,
    /// What that came to: events a second.
    pub(super) value: Spread,
    /// The product's value by it, paired within each round.
    pub(super) ratio: Spread,
    /// What the ratio should be.
    pub(super) goal: Option<Goal>,
    /// As [`Finding::cpu_us`].
    pub(super) cpu_us: [Option<f64>; PARTS.len()],
}

/// What a scenario came to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Finding {
    /// The scenario.
    pub(super) name: &'static str,
    /// Records that the product consumed in each round.
    pub(super) events: u64,
    /// How long that took.
    pub(super) seconds: Spread,
    /// How many a second that were.
    pub(super) rate: Spread,
    /// With the one that decides before all others.
    pub(super) comparisons: Vec<Comparison>,
    /// Microseconds of a processor for each event, by [`PARTS`]: the median.
    pub(super) cpu_us: [Option<f64>; PARTS.len()],
    /// The most memory that the product had in any round.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Finding {
    /// None without a round.
    pub(super) fn of(
        name: &'static str,
        compared: &[(&'static str, Option<Goal>)],
        rounds: &[Round],
    ) -> Option<Self> {
        let products = || rounds.iter().map(|round| &round.product);
        let comparison = |(at, (name, goal)): (usize, &(&'static str, Option<Goal>))| {
            let pairs: Vec<_> = rounds
                .iter()
                .filter_map(|round| Some((&round.product, round.baselines.get(at)?)))
                .collect();
            Some(Comparison {
                name,
                value: Spread::of(pairs.iter().map(|(_, other)| other.rate()))?,
                ratio: Spread::of(pairs.iter().map(|(own, other)| own.rate() / other.rate()))?,
                goal: *goal,
                cpu_us: cpu_us(pairs.iter().map(|(_, other)| *other)),
            })
        };
        Some(Self {
            name,
            events: products().next()?.events,
            seconds: Spread::of(products().map(|own| own.took.as_secs_f64()))?,
            rate: Spread::of(products().map(Measured::rate))?,
            comparisons: compared.iter().enumerate().filter_map(comparison).collect(),
            cpu_us: cpu_us(products()),
            peak_rss_bytes: products().filter_map(|own| own.peak_rss_bytes).max(),
        })
    }

    /// Whether every goal is met.
    pub(super) fn is_met(&self) -> bool {
        self.comparisons
            .iter()
            .all(|with| with.goal.is_none_or(|goal| goal.is_met(with.ratio.median)))
    }
}

fn cpu_us<'a>(measured: impl Iterator<Item = &'a Measured>) -> [Option<f64>; PARTS.len()] {
    let each: Vec<_> = measured.map(Measured::cpu_us).collect();
    std::array::from_fn(|part| {
        let values = each.iter().filter_map(|parts| *parts.get(part)?);
        Spread::of(values).map(|spread| spread.median)
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::usage::Usage;
    use super::*;

    fn measured(events: u64, took_ms: u64) -> Measured {
        Measured {
            events,
            took: Duration::from_millis(took_ms),
            usage: Usage([Some(Duration::from_millis(took_ms / 2)), None, None, None]),
            peak_rss_bytes: Some(took_ms),
        }
    }

    fn round(product_ms: u64, baseline_ms: u64) -> Round {
        Round {
            product: measured(1_000, product_ms),
            baselines: vec![measured(500, baseline_ms)],
        }
    }

    #[test]
    fn ratios_are_paired_within_their_round() {
        // A machine that got slower by half in the middle: each pair says 1.0 or 2.0, whatever the
        // rates are.
        let rounds = [round(1_000, 500), round(2_000, 2_000), round(4_000, 2_000)];
        let goals = [("copy", Some(Goal::AtLeast(0.9)))];
        let finding = Finding::of("unique", &goals, &rounds).unwrap();
        let ratio = finding.comparisons[0].ratio;
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (1.0, 1.0, 2.0));
        assert_eq!(finding.rate.median, 500.0);
        assert_eq!(finding.cpu_us[0], Some(1_000.0));
        assert_eq!(finding.cpu_us[1], None);
        assert_eq!(finding.peak_rss_bytes, Some(4_000));
        assert!(finding.is_met());
    }

    #[test]
    fn a_single_goal_that_is_missed_misses_all() {
        let finding = |goal| {
            let goals = [("copy", Some(goal))];
            Finding::of("unique", &goals, &[round(1_000, 500)]).unwrap()
        };
        assert!(finding(Goal::AtLeast(1.0)).is_met());
        assert!(!finding(Goal::AtLeast(1.01)).is_met());
        assert_eq!(Finding::of("unique", &[], &[]), None);
    }
}
