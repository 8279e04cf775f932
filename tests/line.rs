//! Scenarios of the line over a log, a filter and a database in memory, each with its right value.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use onceonly::backoff::{Backoff, Jitter};
use onceonly::config::OnTombstone;
use onceonly::error::Error;
use onceonly::event::TopicPartition;
use onceonly::filter::MarkOrder;
use onceonly::filter::memory::MemoryFilter;
use onceonly::handler::{Handler, NewEvents};
use onceonly::identity::{IdSource, Identity, OnMissing, Scope};
use onceonly::ledger::Position;
use onceonly::ledger::memory::{MemoryDatabase, NoFaults, Row, Tables};
use onceonly::outcome::{Layer, Outcome, Tally};
use onceonly::pipeline::{Health, Settings, Worker};
use onceonly::retry::RetryPolicy;
use onceonly::source::memory::{MemoryLog, MemoryRecord};
use uuid::Uuid;

struct Effects;

impl Handler<Tables> for Effects {
    fn name(&self) -> &str {
        "effects"
    }

    async fn handle(&self, tables: &mut Tables, events: &NewEvents<'_>) -> Result<(), Error> {
        for event in events.iter() {
            if event.id.starts_with("poison") {
                return Err(Error::rejected("not this one"));
            }
            *tables.effects.entry(event.id.to_owned()).or_insert(0) += 1;
        }
        Ok(())
    }
}

fn settings() -> Settings {
    let backoff = Backoff {
        base: Duration::from_millis(10),
        cap: Duration::from_millis(100),
        jitter: Jitter::None,
    };
    Settings {
        owner: Uuid::from_u128(1),
        identity: Identity {
            from: IdSource::Header("id".to_owned()),
            scope: Scope::Pipeline,
            on_missing: OnMissing::DeadLetter,
        },
        on_tombstone: OnTombstone::Skip,
        retry: RetryPolicy {
            max_attempts: 1,
            backoff,
        },
        max_dead_in_a_row: 3,
        detect_conflicts: false,
        observe: false,
        recent_ids: 100,
        reconnect: backoff,
        rate: None,
    }
}

/// One partition, and whoever reads it.
struct Bench {
    log: MemoryLog,
    database: MemoryDatabase,
    filter: MemoryFilter,
    at: TopicPartition,
    settings: Arc<Settings>,
}

impl Bench {
    fn new(settings: Settings) -> Self {
        Self {
            log: MemoryLog::new(),
            database: MemoryDatabase::new(),
            filter: MemoryFilter::new("line", MarkOrder::After),
            at: TopicPartition::new("orders", 0),
            settings: Arc::new(settings),
        }
    }

    fn produce(&self, ids: &[&str]) {
        for id in ids {
            let headers = vec![("id".to_owned(), Some(id.as_bytes().to_vec()))];
            let payload = Some(b"{}".to_vec());
            let record = MemoryRecord {
                headers,
                payload,
                ..MemoryRecord::default()
            };
            self.log.append(&self.at, record, 0);
        }
    }

    /// A member that has the partition from now on.
    fn member(&self) -> tokio::task::JoinHandle<Result<(), Error>> {
        let source = self.log.join(100);
        let number = source.member();
        let worker = Worker::new(
            source,
            self.filter.clone(),
            self.database.ledger(NoFaults),
            Arc::new(Effects),
            Arc::clone(&self.settings),
            Arc::new(Health::default()),
        );
        self.log.steal(&self.at, number);
        tokio::spawn(worker.run())
    }

    async fn until_position(&self, offset: i64) {
        for _ in 0..1_000 {
            let tables = self.database.tables();
            let row = tables.positions.get(&self.at);
            if row.is_some_and(|row| row.position.next_offset == offset) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!(
            "the position does not reach {offset}: {:?}",
            self.database.tables().positions
        );
    }

    fn effects(&self) -> BTreeMap<String, u32> {
        self.database.tables().effects.clone()
    }

    fn tally(&self) -> Tally {
        self.database.tables().positions[&self.at].tally
    }
}

fn once(ids: &[&str]) -> BTreeMap<String, u32> {
    ids.iter().map(|id| ((*id).to_owned(), 1)).collect()
}

#[tokio::test(start_paused = true)]
async fn a_position_set_forward_proves_nothing_about_marks_from_before() {
    let bench = Bench::new(settings());
    let _member = bench.member();
    bench.produce(&["a"]);
    bench.until_position(1).await;
    let before = bench.database.tables();
    bench.produce(&["b", "c"]);
    bench.until_position(3).await;
    // A failover loses the last commit; its marks stand. An operator gives the tail up.
    bench.database.restore(before);
    bench.database.alter(|tables| {
        let position = &mut tables.positions.get_mut(&bench.at).expect("a row").position;
        (position.next_offset, position.high_water) = (3, 3);
        position.epoch += 1;
        tables.mark_namespace += 1;
    });
    bench.produce(&["b"]);
    bench.until_position(4).await;
    assert_eq!(bench.effects(), once(&["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn a_mark_of_a_lost_history_is_believed_only_once_its_record_was_read_again() {
    let bench = Bench::new(settings());
    let _member = bench.member();
    bench.produce(&["a"]);
    bench.until_position(1).await;
    let before = bench.database.tables();
    bench.produce(&["b", "c"]);
    bench.until_position(3).await;
    bench.database.restore(before);
    bench.until_position(3).await;
    assert_eq!(bench.effects(), once(&["a", "b", "c"]));
    bench.produce(&["c"]);
    bench.until_position(4).await;
    assert_eq!(bench.effects(), once(&["a", "b", "c"]));
}

#[tokio::test(start_paused = true)]
async fn a_mark_set_by_hand_cannot_make_an_event_vanish() {
    let bench = Bench::new(settings());
    bench.filter.put(b"event:line:a", b"1");
    bench.filter.put(b"event:line:b", b"d/unknown/0/1");
    let _member = bench.member();
    bench.produce(&["a", "b"]);
    bench.until_position(2).await;
    assert_eq!(bench.effects(), once(&["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn a_culprit_is_found_and_its_neighbours_are_applied() {
    let bench = Bench::new(settings());
    bench.produce(&["a", "b", "poison-1", "c", "poison-2", "d", "a"]);
    let _member = bench.member();
    bench.until_position(7).await;
    assert_eq!(bench.effects(), once(&["a", "b", "c", "d"]));
    let tally = bench.tally();
    assert_eq!(tally.get(Outcome::Applied), 4);
    assert_eq!(tally.get(Outcome::Dead), 2);
    assert_eq!(tally.duplicates(), 1);
}

#[tokio::test(start_paused = true)]
async fn culprits_in_a_row_stop_the_partition_and_position_set_sets_it_going_again() {
    let bench = Bench::new(settings());
    bench.produce(&["a", "poison-1", "poison-2", "poison-3", "poison-4", "b"]);
    let _member = bench.member();
    bench.until_position(4).await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    bench.until_position(4).await;
    assert_eq!(bench.effects(), once(&["a"]));
    let stopped = bench.database.tables().positions[&bench.at]
        .position
        .stopped
        .clone();
    let reason = stopped.expect("a reason");
    assert!(reason.contains("3 events in a row failed"), "{reason}");
    bench.database.alter(|tables| {
        let position = &mut tables.positions.get_mut(&bench.at).expect("a row").position;
        (position.next_offset, position.high_water) = (5, 5);
        position.epoch += 1;
        position.stopped = None;
    });
    bench.until_position(6).await;
    assert_eq!(bench.effects(), once(&["a", "b"]));
}

#[tokio::test(start_paused = true)]
async fn an_operators_rewind_is_honoured_once_and_applies_nothing_again() {
    let bench = Bench::new(settings());
    bench.produce(&["a", "b", "c"]);
    let member = bench.member();
    bench.until_position(3).await;
    member.abort();
    bench.log.commit_foreign(&bench.at, 0);
    let _member = bench.member();
    bench.produce(&["d"]);
    bench.until_position(4).await;
    assert_eq!(bench.effects(), once(&["a", "b", "c", "d"]));
    assert_eq!(bench.tally().total(), 7, "three records were read again");
    assert_eq!(bench.tally().get(Outcome::Duplicate(Layer::Position)), 0);
    let committed = bench.log.committed(&bench.at).expect("a commit");
    assert_eq!((committed.offset, committed.ours), (4, true));
}

#[tokio::test(start_paused = true)]
async fn observing_counts_repeats_and_handles_them_all_the_same() {
    let bench = Bench::new(Settings {
        observe: true,
        ..settings()
    });
    bench.produce(&["a", "a", "b"]);
    let _member = bench.member();
    bench.until_position(3).await;
    bench.produce(&["b"]);
    bench.until_position(4).await;
    let effects = bench.effects();
    assert_eq!((effects["a"], effects["b"]), (2, 2));
    assert_eq!(bench.tally().duplicates(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_mark_of_another_database_proves_nothing_in_this_one() {
    let bench = Bench::new(settings());
    let member = bench.member();
    bench.produce(&["a", "b", "c"]);
    bench.until_position(3).await;
    member.abort();
    // The schema is made anew, and the topic read from its end; Redis keeps its marks.
    let other = Bench {
        database: MemoryDatabase::new(),
        ..bench
    };
    other.database.alter(|tables| {
        let row = bench_row(&other.at, 3);
        tables.positions.insert(other.at.clone(), row);
    });
    let _member = other.member();
    other.produce(&["b"]);
    other.until_position(4).await;
    assert_eq!(other.effects(), once(&["b"]));
}

fn bench_row(at: &TopicPartition, offset: i64) -> Row {
    let position = Position {
        at: at.clone(),
        epoch: 0,
        next_offset: offset,
        high_water: offset,
        horizon: 0,
        topic_id: None,
        cluster_id: None,
        stopped: None,
    };
    Row {
        position,
        owner: None,
        tally: Tally::default(),
        conflicts: 0,
    }
}
