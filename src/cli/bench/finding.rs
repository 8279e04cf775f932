//! What a scenario came to, over all its rounds.

use serde::Serialize;

use super::measured::Measured;
use super::scenario::Goal;
use super::spread::Spread;
use super::usage::PARTS;

/// In what a scenario is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Unit {
    /// More is better.
    EventsPerSecond,
    /// Of the 99th percentile.
    Milliseconds,
    /// The most that there was.
    Bytes,
    /// Of a processor, for each event.
    Microseconds,
}

/// Something that the product is compared with.
#[derive(Clone, Debug)]
pub(super) struct Against {
    /// Its name.
    pub(super) name: &'static str,
    /// What the ratio should be.
    pub(super) goal: Option<Goal>,
    /// In each round, in the scenario's unit.
    pub(super) values: Vec<f64>,
    /// Whether the ratio is its value by the product's, and not the other way round.
    pub(super) is_dividend: bool,
    /// As [`Finding::cpu_us`].
    pub(super) cpu_us: [Option<f64>; PARTS.len()],
}

impl Against {
    /// Rates, measured after the product in each round.
    pub(super) fn rates<'a>(
        name: &'static str,
        goal: Option<Goal>,
        measured: impl Iterator<Item = &'a Measured> + Clone,
    ) -> Self {
        Self {
            name,
            goal,
            values: measured.clone().map(Measured::rate).collect(),
            is_dividend: false,
            cpu_us: cpu_us(measured),
        }
    }

    /// Other values; the ratio is the product's by them.
    pub(super) fn values(name: &'static str, goal: Option<Goal>, values: Vec<f64>) -> Self {
        Self {
            name,
            goal,
            values,
            is_dividend: false,
            cpu_us: [None; PARTS.len()],
        }
    }

    fn compare(self, own: &[f64]) -> Option<Comparison> {
        let ratio = |(own, other): (&f64, &f64)| match self.is_dividend {
            true => other / own,
            false => own / other,
        };
        Some(Comparison {
            name: self.name,
            value: Spread::of(self.values.iter().copied())?,
            ratio: Spread::of(own.iter().zip(&self.values).map(ratio))?,
            goal: self.goal,
            cpu_us: self.cpu_us,
        })
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Comparison {
    /// With what.
    pub(super) name: &'static str,
    /// What that came to, in the scenario's unit.
    pub(super) value: Spread,
    /// Paired within each round.
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
    /// In what it is measured.
    pub(super) unit: Unit,
    /// Records that the product consumed in each round.
    pub(super) events: u64,
    /// How long that took.
    pub(super) seconds: Spread,
    /// How many a second that were.
    pub(super) rate: Spread,
    /// What the product came to, in the unit.
    pub(super) own: Spread,
    /// With the one that decides before all others.
    pub(super) comparisons: Vec<Comparison>,
    /// Microseconds of a processor for each event, by [`PARTS`]: the median.
    pub(super) cpu_us: [Option<f64>; PARTS.len()],
    /// The most memory that the product had in any round.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Finding {
    /// None without a round. `own` is in the unit, one for each round, as is each of `against`.
    pub(super) fn of(
        name: &'static str,
        unit: Unit,
        products: &[Measured],
        own: &[f64],
        against: Vec<Against>,
    ) -> Option<Self> {
        let seconds = products.iter().map(|own| own.took.as_secs_f64());
        Some(Self {
            name,
            unit,
            events: products.first()?.events,
            seconds: Spread::of(seconds)?,
            rate: Spread::of(products.iter().map(Measured::rate))?,
            own: Spread::of(own.iter().copied())?,
            comparisons: against
                .into_iter()
                .filter_map(|against| against.compare(own))
                .collect(),
            cpu_us: cpu_us(products.iter()),
            peak_rss_bytes: products.iter().filter_map(|own| own.peak_rss_bytes).max(),
        })
    }

    /// Whether there is a goal, and every one is met.
    pub(super) fn is_met(&self) -> bool {
        let mut goals = self
            .comparisons
            .iter()
            .filter_map(|with| Some(with.goal?.is_met(with.ratio.median)))
            .peekable();
        goals.peek().is_some() && goals.all(|is_met| is_met)
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

    /// The product's times, and those of half the events in a baseline.
    fn finding(goal: Goal, rounds: &[(u64, u64)]) -> Option<Finding> {
        let products: Vec<_> = rounds.iter().map(|(ms, _)| measured(1_000, *ms)).collect();
        let others: Vec<_> = rounds.iter().map(|(_, ms)| measured(500, *ms)).collect();
        let own: Vec<f64> = products.iter().map(Measured::rate).collect();
        let against = Against::rates("copy", Some(goal), others.iter());
        Finding::of(
            "unique",
            Unit::EventsPerSecond,
            &products,
            &own,
            vec![against],
        )
    }

    #[test]
    fn ratios_are_paired_within_their_round() {
        // A machine that got slower by half in the middle: each pair says 1.0 or 2.0, whatever the
        // rates are.
        let rounds = [(1_000, 500), (2_000, 2_000), (4_000, 2_000)];
        let finding = finding(Goal::AtLeast(0.9), &rounds).unwrap();
        let ratio = finding.comparisons[0].ratio;
        assert_eq!((ratio.median, ratio.least, ratio.greatest), (1.0, 1.0, 2.0));
        assert_eq!((finding.rate.median, finding.own.median), (500.0, 500.0));
        assert_eq!(finding.cpu_us[0], Some(1_000.0));
        assert_eq!(finding.cpu_us[1], None);
        assert_eq!(finding.peak_rss_bytes, Some(4_000));
        assert!(finding.is_met());
    }

    #[test]
    fn a_goal_is_a_bound_from_its_own_side_and_without_any_nothing_is_met() {
        let finding = |goal| finding(goal, &[(1_000, 500)]).unwrap();
        assert!(finding(Goal::AtLeast(1.0)).is_met());
        assert!(!finding(Goal::AtLeast(1.01)).is_met());
        assert!(finding(Goal::AtMost(1.0)).is_met());
        assert!(!finding(Goal::AtMost(0.99)).is_met());
        let unit = Unit::EventsPerSecond;
        let nothing = Finding::of("unique", unit, &[measured(1, 1)], &[1.0], Vec::new());
        assert!(!nothing.unwrap().is_met());
        assert_eq!(Finding::of("unique", unit, &[], &[], Vec::new()), None);
    }

    #[test]
    fn parts_are_divided_by_the_whole() {
        let mut parts = Against::values("parts", None, vec![8.0]);
        assert_eq!(parts.clone().compare(&[16.0]).unwrap().ratio.median, 2.0);
        parts.is_dividend = true;
        assert_eq!(parts.compare(&[16.0]).unwrap().ratio.median, 0.5);
    }
}
