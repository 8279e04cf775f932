//! What an id was found to be.

use serde::{Serialize, Serializer};

/// What the tables know of an id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// A generation of the ledger has a row.
    pub in_ledger: bool,
    /// It waits for another attempt.
    pub waiting: bool,
    /// It is a dead letter, discarded or not.
    pub dead: bool,
}

/// The kinds of findings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A record was consumed, and nothing knows its id.
    Missing,
    /// What is known of an id excludes itself.
    Contradictory,
    /// An effect too many.
    Extra,
}

/// What an id was found to be. The first four are as they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Applied.
    Applied,
    /// Waiting for another attempt.
    Waiting,
    /// A dead letter, discarded or not.
    Dead,
    /// A duplicate of an event from before the horizon, whose id is forgotten.
    Forgotten,
    /// Consumed, and unknown everywhere.
    Missing,
    /// Consumed, unknown to the ledger, and yet with an effect.
    Unclaimed,
    /// Waiting and dead at once.
    WaitingAndDead,
    /// Waiting without a row in the ledger: another copy would be applied beside it.
    WaitingUnclaimed,
    /// Dead without a row in the ledger: another copy would be applied.
    DeadUnclaimed,
    /// Applied, by the ledger, and without an effect.
    AppliedWithoutEffect,
    /// Waiting, and yet with an effect.
    WaitingWithEffect,
    /// Dead, and yet with an effect.
    DeadWithEffect,
    /// More than one effect.
    Repeated,
    /// An effect whose id neither a record nor the ledger knows.
    Stranger,
}

impl State {
    /// All of them; findings are told in this order.
    pub const ALL: [Self; 14] = [
        Self::Applied,
        Self::Waiting,
        Self::Dead,
        Self::Forgotten,
        Self::Missing,
        Self::Unclaimed,
        Self::WaitingAndDead,
        Self::WaitingUnclaimed,
        Self::DeadUnclaimed,
        Self::AppliedWithoutEffect,
        Self::WaitingWithEffect,
        Self::DeadWithEffect,
        Self::Repeated,
        Self::Stranger,
    ];

    /// Without a look at effects.
    pub fn of(known: Known) -> Self {
        match known {
            Known {
                waiting: true,
                dead: true,
                ..
            } => Self::WaitingAndDead,
            Known {
                in_ledger,
                waiting: true,
                ..
            } => match in_ledger {
                true => Self::Waiting,
                false => Self::WaitingUnclaimed,
            },
            Known {
                in_ledger,
                dead: true,
                ..
            } => match in_ledger {
                true => Self::Dead,
                false => Self::DeadUnclaimed,
            },
            Known {
                in_ledger: true, ..
            } => Self::Applied,
            _ => Self::Missing,
        }
    }

    /// With so many effects. `observed` says that duplicates are applied on purpose.
    pub fn with_effects(self, effects: i64, observed: bool) -> Self {
        match (self, effects) {
            (Self::Applied, 0) => Self::AppliedWithoutEffect,
            (Self::Applied, 2..) if !observed => Self::Repeated,
            (Self::Waiting, 1..) => Self::WaitingWithEffect,
            (Self::Dead, 1..) => Self::DeadWithEffect,
            (Self::Missing, 1..) => Self::Unclaimed,
            (state, _) => state,
        }
    }

    /// The kind of finding; `None` where all is as it should be.
    pub fn kind(self) -> Option<Kind> {
        match self {
            Self::Applied | Self::Waiting | Self::Dead | Self::Forgotten => None,
            Self::Missing | Self::Unclaimed => Some(Kind::Missing),
            Self::WaitingAndDead
            | Self::WaitingUnclaimed
            | Self::DeadUnclaimed
            | Self::AppliedWithoutEffect
            | Self::WaitingWithEffect
            | Self::DeadWithEffect => Some(Kind::Contradictory),
            Self::Repeated | Self::Stranger => Some(Kind::Extra),
        }
    }

    /// The name in the session's table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Waiting => "waiting",
            Self::Dead => "dead",
            Self::Forgotten => "forgotten",
            Self::Missing => "missing",
            Self::Unclaimed => "unclaimed",
            Self::WaitingAndDead => "waiting-and-dead",
            Self::WaitingUnclaimed => "waiting-unclaimed",
            Self::DeadUnclaimed => "dead-unclaimed",
            Self::AppliedWithoutEffect => "applied-without-effect",
            Self::WaitingWithEffect => "waiting-with-effect",
            Self::DeadWithEffect => "dead-with-effect",
            Self::Repeated => "repeated",
            Self::Stranger => "stranger",
        }
    }

    /// The state of a name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// What is wrong, for a person.
    pub fn sentence(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Waiting => "waiting for another attempt",
            Self::Dead => "a dead letter",
            Self::Forgotten => "a duplicate of an event whose id is forgotten",
            Self::Missing => "consumed, and neither applied, waiting nor dead",
            Self::Unclaimed => "has an effect, but no row in the ledger",
            Self::WaitingAndDead => "waiting for another attempt and a dead letter at once",
            Self::WaitingUnclaimed => "waiting for another attempt without a row in the ledger",
            Self::DeadUnclaimed => "a dead letter without a row in the ledger",
            Self::AppliedWithoutEffect => "applied, by the ledger, but without an effect",
            Self::WaitingWithEffect => "waiting for another attempt, but has an effect",
            Self::DeadWithEffect => "a dead letter, but has an effect",
            Self::Repeated => "has more than one effect",
            Self::Stranger => "has an effect, but neither a record nor the ledger knows the id",
        }
    }
}

impl Serialize for State {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_is_found_by_its_name() {
        for state in State::ALL {
            assert_eq!(State::named(state.name()), Some(state));
        }
        assert_eq!(State::named("nonsense"), None);
    }

    #[test]
    fn findings_come_by_kind() {
        let kinds: Vec<_> = State::ALL.map(State::kind).into_iter().flatten().collect();
        assert!(kinds.is_sorted(), "{kinds:?}");
        assert_eq!(kinds.len(), 10);
    }

    #[test]
    fn what_the_tables_know_decides() {
        let state = |in_ledger, waiting, dead| {
            State::of(Known {
                in_ledger,
                waiting,
                dead,
            })
        };
        assert_eq!(state(false, false, false), State::Missing);
        assert_eq!(state(true, false, false), State::Applied);
        assert_eq!(state(true, true, false), State::Waiting);
        assert_eq!(state(true, false, true), State::Dead);
        assert_eq!(state(false, true, false), State::WaitingUnclaimed);
        assert_eq!(state(false, false, true), State::DeadUnclaimed);
        assert_eq!(state(true, true, true), State::WaitingAndDead);
        assert_eq!(state(false, true, true), State::WaitingAndDead);
    }

    #[test]
    fn effects_contradict_or_agree() {
        for (state, effects, found) in [
            (State::Applied, 1, State::Applied),
            (State::Applied, 0, State::AppliedWithoutEffect),
            (State::Applied, 2, State::Repeated),
            (State::Waiting, 0, State::Waiting),
            (State::Waiting, 1, State::WaitingWithEffect),
            (State::Dead, 0, State::Dead),
            (State::Dead, 2, State::DeadWithEffect),
            (State::Missing, 0, State::Missing),
            (State::Missing, 1, State::Unclaimed),
            (State::WaitingAndDead, 1, State::WaitingAndDead),
        ] {
            assert_eq!(state.with_effects(effects, false), found, "{state:?}");
        }
        assert_eq!(State::Applied.with_effects(2, true), State::Applied);
    }
}
