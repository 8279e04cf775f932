//! How the demo went, as a table for people or as JSON.

use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::HumanCount;
use onceonly::outcome::{Layer, Outcome, Tally};
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

use super::verdict::Comparison;

/// Every layer, with what it means that a duplicate met it.
const LAYERS: [(Layer, &str); 7] = [
    (Layer::Batch, "the same id earlier in the same batch"),
    (Layer::Position, "read before: below the committed position"),
    (Layer::Recent, "the worker still remembered the id"),
    (Layer::Redis, "a mark in Redis whose proof held"),
    (Layer::Ledger, "Postgres knew the id"),
    (Layer::Waiting, "the id waits for a retry"),
    (Layer::Dead, "the id is a dead letter"),
];

/// How the demo went.
#[derive(Debug)]
pub(super) struct Report {
    /// Records sent.
    pub(super) produced: u64,
    /// What became of them.
    pub(super) outcomes: Tally,
    /// The effects, against what was sent.
    pub(super) comparison: Comparison,
    /// How often a worker was killed and started again.
    pub(super) restarts: u32,
    /// From the start to the verdict.
    pub(super) took: Duration,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    produced: u64,
    distinct: u64,
    consumed: u64,
    effects: u64,
    applied: u64,
    #[serde(serialize_with = "by_layer")]
    duplicates: Tally,
    retrying: u64,
    dead: u64,
    skipped: u64,
    restarts: u32,
    exactly_once: bool,
    seconds: f64,
}

fn by_layer<S: Serializer>(outcomes: &Tally, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(LAYERS.len()))?;
    for (layer, _) in LAYERS {
        map.serialize_entry(&layer, &outcomes.get(Outcome::Duplicate(layer)))?;
    }
    map.end()
}

impl Report {
    /// The verdict.
    pub(super) fn is_exactly_once(&self) -> bool {
        self.comparison.is_exactly_once()
    }

    /// The result as one object.
    pub(super) fn json(&self) -> impl Serialize {
        Summary {
            produced: self.produced,
            distinct: self.comparison.produced,
            consumed: self.outcomes.total(),
            effects: self.comparison.effects,
            applied: self.outcomes.get(Outcome::Applied),
            duplicates: self.outcomes,
            retrying: self.outcomes.get(Outcome::Retrying),
            dead: self.outcomes.get(Outcome::Dead),
            skipped: self.outcomes.get(Outcome::Skipped),
            restarts: self.restarts,
            exactly_once: self.comparison.is_exactly_once(),
            seconds: (self.took.as_secs_f64() * 100.0).round() / 100.0,
        }
    }

    /// The result for people: outcomes by layer, the comparison, the verdict.
    pub(super) fn text(&self) -> String {
        let verdict = if self.comparison.is_exactly_once() {
            "yes"
        } else {
            "no"
        };
        format!(
            "{}\n\n{}workers killed and started again: {}; {:.1} s in all\nexactly once: {verdict}\n",
            self.table(),
            self.comparison.sentence(),
            self.restarts,
            self.took.as_secs_f64(),
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::UTF8_BORDERS_ONLY)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_header(["outcome", "records", ""]);
        let mut row = |name: &str, count: u64, meaning: &str| {
            table.add_row([name, &HumanCount(count).to_string(), meaning]);
        };
        let count = |outcome| self.outcomes.get(outcome);
        row(
            "applied",
            count(Outcome::Applied),
            "new: its effect was committed",
        );
        for (layer, meaning) in LAYERS {
            let outcome = Outcome::Duplicate(layer);
            row(&outcome.name().replace('_', ": "), count(outcome), meaning);
        }
        row(
            "retrying",
            count(Outcome::Retrying),
            "failed, waits for another attempt",
        );
        row("dead", count(Outcome::Dead), "failed for good");
        row(
            "skipped",
            count(Outcome::Skipped),
            "passed over by configuration",
        );
        let consumed = self.outcomes.total();
        let all = if consumed == self.produced {
            "all that were produced"
        } else {
            "not all that were produced"
        };
        row("consumed", consumed, all);
        if let Some(column) = table.column_mut(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(comparison: Comparison) -> Report {
        let outcomes = Tally::from_counts([70_000, 8_000, 0, 12_000, 7_000, 3_000, 0, 0, 0, 0, 0]);
        Report {
            produced: 100_000,
            outcomes,
            comparison,
            restarts: 1,
            took: Duration::from_millis(12_345),
        }
    }

    fn complete() -> Comparison {
        Comparison {
            produced: 70_000,
            effects: 70_000,
            ..Comparison::default()
        }
    }

    #[test]
    fn the_json_has_every_layer_even_at_zero() {
        let json = serde_json::to_string_pretty(&report(complete()).json()).unwrap();
        insta::assert_snapshot!(json, @r#"
        {
          "produced": 100000,
          "distinct": 70000,
          "consumed": 100000,
          "effects": 70000,
          "applied": 70000,
          "duplicates": {
            "batch": 8000,
            "position": 0,
            "recent": 12000,
            "redis": 7000,
            "ledger": 3000,
            "waiting": 0,
            "dead": 0
          },
          "retrying": 0,
          "dead": 0,
          "skipped": 0,
          "restarts": 1,
          "exactly_once": true,
          "seconds": 12.35
        }
        "#);
    }

    #[test]
    fn the_table_fits_eighty_columns_and_ends_with_the_verdict() {
        let text = report(complete()).text();
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        insta::assert_snapshot!(text, @"
        ┌───────────────────────────────────────────────────────────────────────────┐
        │ outcome               records                                             │
        ╞═══════════════════════════════════════════════════════════════════════════╡
        │ applied                70,000   new: its effect was committed             │
        │ duplicate: batch        8,000   the same id earlier in the same batch     │
        │ duplicate: position         0   read before: below the committed position │
        │ duplicate: recent      12,000   the worker still remembered the id        │
        │ duplicate: redis        7,000   a mark in Redis whose proof held          │
        │ duplicate: ledger       3,000   Postgres knew the id                      │
        │ duplicate: waiting          0   the id waits for a retry                  │
        │ duplicate: dead             0   the id is a dead letter                   │
        │ retrying                    0   failed, waits for another attempt         │
        │ dead                        0   failed for good                           │
        │ skipped                     0   passed over by configuration              │
        │ consumed              100,000   all that were produced                    │
        └───────────────────────────────────────────────────────────────────────────┘

        effects in Postgres: 70,000 for 70,000 events; missing 0, repeated 0, extra 0
        workers killed and started again: 1; 12.3 s in all
        exactly once: yes
        ");
    }

    #[test]
    fn one_difference_turns_the_verdict() {
        let repeated = Comparison {
            effects: 70_001,
            repeated: 1,
            ..complete()
        };
        let missing = Comparison {
            effects: 69_999,
            missing: 1,
            ..complete()
        };
        let extra = Comparison {
            effects: 70_001,
            extra: 1,
            ..complete()
        };
        let balanced = Comparison {
            missing: 1,
            repeated: 1,
            ..complete()
        };
        let nothing = Comparison::default();
        for comparison in [repeated, missing, extra, balanced, nothing] {
            assert!(!comparison.is_exactly_once(), "{comparison:?}");
            assert!(report(comparison).text().ends_with("exactly once: no\n"));
        }
        assert!(complete().is_exactly_once());
    }
}
