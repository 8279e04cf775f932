//! Where reading of a claimed partition goes on: a pure decision over what Postgres and the log say.

use crate::ledger::Position;
use crate::source::Assigned;

/// What a claim found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Read on at the position.
    Continue,
    /// Read on at the position, once a commit of ours stands in the log.
    Confirm,
    /// An operator rewound the group: go back to this offset, once a commit of ours says so.
    Rewind(i64),
    /// Stand still, for a person to decide. The sentence says what is wrong and what to type.
    Stop(String),
}

/// Decides for one partition. The position's row is locked by the caller.
///
/// Postgres decides; the log's committed offset counts only where somebody else wrote it, and only
/// once a first claim has stored a start.
pub fn decide(position: &Position, assigned: &Assigned) -> Decision {
    if let Some(reason) = moved_log(position, assigned) {
        return Decision::Stop(reason);
    }
    let next = position.next_offset;
    match assigned.committed.filter(|committed| !committed.ours) {
        Some(foreign) if foreign.offset != next && position.epoch == 0 => {
            outside_log(next, position, assigned).unwrap_or(Decision::Confirm)
        }
        Some(foreign) if foreign.offset < next => rewind(foreign.offset, position, assigned),
        Some(foreign) if foreign.offset > next => Decision::Stop(format!(
            "another client committed offset {offset} for this group, ahead of the position {next}; \
             the records between would be skipped. {accept}",
            offset = foreign.offset,
            accept = to_accept(position, &foreign.offset.to_string()),
        )),
        _ => outside_log(next, position, assigned).unwrap_or(Decision::Continue),
    }
}

fn moved_log(position: &Position, assigned: &Assigned) -> Option<String> {
    if let (Some(known), Some(found)) = (&position.cluster_id, &assigned.cluster_id)
        && known != found
    {
        return Some(format!(
            "the position belongs to Kafka cluster {known}, these brokers are cluster {found}. {}",
            to_accept(position, "earliest"),
        ));
    }
    if let (Some(known), Some(found)) = (position.topic_id, assigned.topic_id)
        && known != found
    {
        return Some(format!(
            "the topic was deleted and created again: the position belongs to topic id {known}, \
             it is now {found}. {}",
            to_accept(position, "earliest"),
        ));
    }
    None
}

fn rewind(offset: i64, position: &Position, assigned: &Assigned) -> Decision {
    if offset < position.horizon {
        return Decision::Stop(format!(
            "the group was rewound to offset {offset}, behind the horizon {}: ids before it are \
             forgotten, and their events would be applied again. {}",
            position.horizon,
            to_accept(position, &position.horizon.to_string()),
        ));
    }
    outside_log(offset, position, assigned).unwrap_or(Decision::Rewind(offset))
}

fn outside_log(offset: i64, position: &Position, assigned: &Assigned) -> Option<Decision> {
    let Assigned { low, high, .. } = *assigned;
    let (reason, place) = if offset < low {
        let reason = format!(
            "the position {offset} lies before the start of the log {low}: the records between \
             were deleted before they were read"
        );
        (reason, low.to_string())
    } else if offset > high {
        let reason = format!(
            "the position {offset} lies behind the end of the log {high}: the log is shorter than \
             what was read of it"
        );
        (reason, "latest".to_owned())
    } else {
        return None;
    };
    Some(Decision::Stop(format!(
        "{reason}. {}",
        to_accept(position, &place)
    )))
}

fn to_accept(position: &Position, place: &str) -> String {
    format!(
        "To go on from another place: onceonly position set --topic {} --partition {} --to {place}",
        position.at.topic, position.at.partition,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::TopicPartition;
    use crate::source::Committed;
    use uuid::Uuid;

    fn position() -> Position {
        Position {
            at: TopicPartition::new("orders", 7),
            epoch: 3,
            next_offset: 100,
            high_water: 120,
            horizon: 40,
            topic_id: Some(Uuid::from_u128(1)),
            cluster_id: Some("one".into()),
            stopped: None,
        }
    }

    fn assigned(committed: Option<(i64, bool)>) -> Assigned {
        Assigned {
            at: TopicPartition::new("orders", 7),
            topic_id: Some(Uuid::from_u128(1)),
            cluster_id: Some("one".into()),
            committed: committed.map(|(offset, ours)| Committed { offset, ours }),
            low: 10,
            high: 200,
        }
    }

    fn stopped(decision: Decision) -> String {
        match decision {
            Decision::Stop(reason) => reason,
            other => panic!("expected a stop, got {other:?}"),
        }
    }

    #[test]
    fn postgres_decides_whatever_we_committed_ourselves() {
        for committed in [None, Some((100, true)), Some((50, true)), Some((150, true))] {
            assert_eq!(
                decide(&position(), &assigned(committed)),
                Decision::Continue
            );
        }
        assert_eq!(
            decide(&position(), &assigned(Some((100, false)))),
            Decision::Continue
        );
    }

    #[test]
    fn a_foreign_commit_behind_is_a_rewind_within_the_horizon() {
        assert_eq!(
            decide(&position(), &assigned(Some((40, false)))),
            Decision::Rewind(40)
        );
        let reason = stopped(decide(&position(), &assigned(Some((39, false)))));
        assert!(reason.contains("behind the horizon 40"), "{reason}");
        assert!(
            reason.contains("onceonly position set --topic orders --partition 7"),
            "{reason}"
        );
    }

    #[test]
    fn a_foreign_commit_ahead_stops_with_the_command_to_type() {
        let reason = stopped(decide(&position(), &assigned(Some((101, false)))));
        assert!(reason.contains("ahead of the position 100"), "{reason}");
        assert!(reason.ends_with("--to 101"), "{reason}");
    }

    #[test]
    fn a_first_claim_ignores_what_others_committed_but_confirms_its_own_start() {
        let first = Position {
            epoch: 0,
            ..position()
        };
        for offset in [50, 150] {
            assert_eq!(
                decide(&first, &assigned(Some((offset, false)))),
                Decision::Confirm
            );
        }
        assert_eq!(
            decide(&first, &assigned(Some((100, false)))),
            Decision::Continue
        );
        assert_eq!(decide(&first, &assigned(None)), Decision::Continue);
    }

    #[test]
    fn a_topic_made_again_and_another_cluster_stop() {
        let other = Assigned {
            topic_id: Some(Uuid::from_u128(2)),
            ..assigned(None)
        };
        assert!(stopped(decide(&position(), &other)).contains("created again"));
        let other = Assigned {
            cluster_id: Some("two".into()),
            ..assigned(None)
        };
        assert!(stopped(decide(&position(), &other)).contains("cluster two"));
        let untold = Assigned {
            topic_id: None,
            cluster_id: None,
            ..assigned(None)
        };
        assert_eq!(
            decide(&position(), &untold),
            Decision::Continue,
            "unknown is not compared"
        );
    }

    #[test]
    fn a_position_outside_the_log_stops_and_its_edges_do_not() {
        for (low, high, fine) in [
            (100, 200, true),
            (101, 200, false),
            (0, 100, true),
            (0, 99, false),
        ] {
            let decision = decide(
                &position(),
                &Assigned {
                    low,
                    high,
                    ..assigned(None)
                },
            );
            assert_eq!(
                decision == Decision::Continue,
                fine,
                "{low}..{high}: {decision:?}"
            );
        }
        let rewound = Assigned {
            low: 60,
            ..assigned(Some((50, false)))
        };
        let reason = stopped(decide(&position(), &rewound));
        assert!(
            reason.contains("50 lies before the start of the log 60"),
            "{reason}"
        );
    }
}
