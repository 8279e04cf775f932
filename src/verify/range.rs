//! Which records of a partition can be compared.

use serde::Serialize;

use crate::event::TopicPartition;

/// What was asked for, as offsets; `None` where nothing was said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) from: Option<i64>,
    pub(super) to: Option<i64>,
}

/// What there is of a partition: its log, and what the pipeline did with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The first offset of the log.
    pub(super) low: i64,
    /// The offset behind its last record.
    pub(super) high: i64,
    /// Where the pipeline began.
    pub(super) start: i64,
    /// Ids of records before it may be forgotten.
    pub(super) horizon: i64,
    /// The next offset to process.
    pub(super) next_offset: i64,
}

/// The range of a partition that is compared, and how many offsets of what was asked for are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Range {
    /// The topic.
    pub topic: String,
    /// The partition.
    pub partition: i32,
    /// The first offset that is compared.
    pub from: i64,
    /// The offset behind the last one.
    pub to: i64,
    /// Records found between them.
    pub read: u64,
    /// Offsets that the log does not hold any more.
    pub before_log_start: u64,
    /// Offsets before the place where the pipeline began: it never read them.
    pub before_start: u64,
    /// Offsets before the horizon, behind which ids may be forgotten.
    pub before_horizon: u64,
    /// Offsets that the pipeline has not processed yet.
    pub not_consumed: u64,
}

impl Range {
    /// Without an end the range ends at the position, without a beginning it begins with the log.
    pub(super) fn new(at: &TopicPartition, asked: Asked, standing: Standing) -> Self {
        let Standing {
            low,
            high,
            start,
            horizon,
            next_offset,
        } = standing;
        let consumed = next_offset.min(high);
        let asked_from = asked.from.unwrap_or(low);
        let asked_to = asked.to.unwrap_or(consumed).max(asked_from);
        let to = asked_to.min(consumed);
        let mut from = asked_from;
        let mut pass = |until: i64| {
            let passed = (until.min(to) - from).max(0);
            from += passed;
            passed.unsigned_abs()
        };
        Self {
            topic: at.topic.to_string(),
            partition: at.partition,
            before_log_start: pass(low),
            before_start: pass(start),
            before_horizon: pass(horizon),
            not_consumed: (asked_to - consumed.max(asked_from)).max(0).unsigned_abs(),
            from,
            to: to.max(from),
            read: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDING: Standing = Standing {
        low: 10,
        high: 100,
        start: 0,
        horizon: 0,
        next_offset: 80,
    };

    fn range(from: Option<i64>, to: Option<i64>, standing: Standing) -> [i64; 6] {
        let at = TopicPartition::new("orders", 7);
        let range = Range::new(&at, Asked { from, to }, standing);
        [
            range.from,
            range.to,
            range.before_log_start as i64,
            range.before_start as i64,
            range.before_horizon as i64,
            range.not_consumed as i64,
        ]
    }

    #[test]
    fn without_a_word_everything_is_compared_that_the_log_holds_and_the_pipeline_did() {
        assert_eq!(range(None, None, STANDING), [10, 80, 0, 0, 0, 0]);
        let all_read = Standing {
            next_offset: 100,
            ..STANDING
        };
        assert_eq!(range(None, None, all_read), [10, 100, 0, 0, 0, 0]);
        let shorter_log = Standing {
            next_offset: 120,
            ..STANDING
        };
        assert_eq!(range(None, None, shorter_log), [10, 100, 0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_compared_is_counted_by_the_first_reason() {
        let forgotten = Standing {
            start: 20,
            horizon: 50,
            ..STANDING
        };
        assert_eq!(range(None, None, forgotten), [50, 80, 0, 10, 30, 0]);
        assert_eq!(
            range(Some(0), Some(100), forgotten),
            [50, 80, 10, 10, 30, 20]
        );
        assert_eq!(range(Some(60), Some(70), forgotten), [60, 70, 0, 0, 0, 0]);
    }

    #[test]
    fn a_range_outside_of_what_can_be_compared_is_empty() {
        let forgotten = Standing {
            horizon: 50,
            ..STANDING
        };
        assert_eq!(range(Some(20), Some(40), forgotten), [40, 40, 0, 0, 20, 0]);
        assert_eq!(range(Some(0), Some(5), STANDING), [5, 5, 5, 0, 0, 0]);
        assert_eq!(range(Some(90), Some(95), STANDING), [90, 90, 0, 0, 0, 5]);
        assert_eq!(range(Some(90), None, STANDING), [90, 90, 0, 0, 0, 0]);
        assert_eq!(range(Some(70), Some(60), STANDING), [70, 70, 0, 0, 0, 0]);
    }
}
