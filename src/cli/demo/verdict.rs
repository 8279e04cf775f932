//! Whether every event had exactly one effect.

use indicatif::HumanCount;

/// Effects compared with what was produced, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Ids that were produced.
    pub(super) produced: u64,
    /// Effects that are there.
    pub(super) effects: u64,
    /// Ids that were produced and have no effect.
    pub(super) missing: u64,
    /// Ids with more than one effect.
    pub(super) repeated: u64,
    /// Ids with an effect that were not produced.
    pub(super) extra: u64,
    /// The first ids that differ.
    pub(super) differences: Vec<Difference>,
}

/// An id whose effects are not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Difference {
    /// The id.
    pub(super) event_id: String,
    /// Whether it was produced.
    pub(super) produced: bool,
    /// How many effects it has.
    pub(super) times: i64,
}

impl Comparison {
    /// Every id once, none missing, none extra. Nothing produced proves nothing.
    pub(super) fn is_exactly_once(&self) -> bool {
        self.produced > 0
            && self.effects == self.produced
            && (self.missing, self.repeated, self.extra) == (0, 0, 0)
    }

    /// What was compared, and how it came out.
    pub(super) fn sentence(&self) -> String {
        let [effects, produced, missing, repeated, extra] = [
            self.effects,
            self.produced,
            self.missing,
            self.repeated,
            self.extra,
        ]
        .map(HumanCount);
        let mut sentence = format!(
            "effects in Postgres: {effects} for {produced} events; \
             missing {missing}, repeated {repeated}, extra {extra}\n"
        );
        for difference in &self.differences {
            let Difference {
                event_id,
                produced,
                times,
            } = difference;
            let was = if *produced {
                ""
            } else {
                ", which was never produced"
            };
            sentence += &format!("  {event_id}: {times} effects{was}\n");
        }
        sentence
    }
}
