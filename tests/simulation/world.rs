//! A log, a filter, a database and the members of one group, and what must be true of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use onceonly::backoff::{Backoff, Jitter};
use onceonly::config::OnTombstone;
use onceonly::error::Error;
use onceonly::event::TopicPartition;
use onceonly::filter::MarkOrder;
use onceonly::filter::memory::MemoryFilter;
use onceonly::handler::{Handler, NewEvents};
use onceonly::identity::{EventKey, IdSource, Identity, OnMissing, Scope};
use onceonly::ledger::memory::{MemoryDatabase, Tables};
use onceonly::outcome::{Layer, Outcome, Tally};
use onceonly::pipeline::{Health, Retrier, Settings, Worker};
use onceonly::retry::RetryPolicy;
use onceonly::source::memory::{MemoryLog, MemoryRecord};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::plan::{MemberFaults, Plan};

/// How many turns a run takes before it is left in peace.
const TURNS: usize = 40;

/// What an id does to its handler.
fn temper(id: &str) -> &str {
    id.split('-').next().unwrap_or_default()
}

/// Writes one effect per event, and fails as the ids say.
struct Effects {
    plan: Plan,
    refused: Mutex<BTreeMap<String, u32>>,
}

impl Handler<Tables> for Effects {
    fn name(&self) -> &str {
        "effects"
    }

    async fn handle(&self, tables: &mut Tables, events: &NewEvents<'_>) -> Result<(), Error> {
        if self.plan.strikes("handler transient", 100) {
            return Err(Error::transient("handler: try again"));
        }
        for event in events.iter() {
            let flaky = temper(event.id) == "flaky" && self.refuse(event.id) < 2;
            if flaky || temper(event.id) == "poison" {
                self.plan.note("handler rejects");
                return Err(Error::rejected("handler: not this one"));
            }
            *tables.effects.entry(event.id.to_owned()).or_insert(0) += 1;
        }
        Ok(())
    }
}

impl Effects {
    fn refuse(&self, id: &str) -> u32 {
        let mut refused = self
            .refused
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner());
        let count = refused.entry(id.to_owned()).or_insert(0);
        *count += 1;
        *count - 1
    }
}

struct Member {
    number: usize,
    crashed: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<Result<(), Error>>>,
    alive: bool,
}

impl Member {
    fn kill(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
        self.alive = false;
    }
}

pub struct World {
    plan: Plan,
    log: MemoryLog,
    database: MemoryDatabase,
    filter: MemoryFilter,
    handler: Arc<Effects>,
    settings: Arc<Settings>,
    partitions: Vec<TopicPartition>,
    members: Vec<Member>,
    produced: BTreeMap<String, u32>,
    records: BTreeMap<TopicPartition, u64>,
    history: Vec<Arc<Tables>>,
    rewound: bool,
}

impl World {
    pub fn new(seed: u64) -> Self {
        let plan = Plan::new(seed);
        let filter = match plan.below(4) {
            0 | 1 => MemoryFilter::new("sim", MarkOrder::Before),
            2 => MemoryFilter::new("sim", MarkOrder::After),
            _ => MemoryFilter::new("sim", MarkOrder::After).that_always_overwrites(),
        };
        let partitions = (0..1 + plan.below(3) as i32).map(|p| TopicPartition::new("orders", p));
        let mut world = Self {
            log: MemoryLog::new(),
            database: MemoryDatabase::new(),
            filter,
            handler: Arc::new(Effects {
                plan: plan.clone(),
                refused: Mutex::default(),
            }),
            settings: Arc::new(settings()),
            partitions: partitions.collect(),
            members: Vec::new(),
            produced: BTreeMap::new(),
            records: BTreeMap::new(),
            history: Vec::new(),
            rewound: false,
            plan,
        };
        for at in world.partitions.clone() {
            world.produce(&at);
        }
        for _ in 0..1 + world.plan.below(2) {
            world.join();
        }
        for at in world.partitions.clone() {
            world.log.assign(&at, world.someone());
        }
        world
    }

    /// Takes turns at producing, and at whatever may go wrong.
    pub async fn live(&mut self) {
        for _ in 0..TURNS {
            let at = self.partitions[self.plan.below(self.partitions.len())].clone();
            self.produce(&at);
            self.turn(&at);
            self.replace_crashed();
            let pause = Duration::from_millis(self.plan.below(3_000) as u64);
            tokio::time::sleep(pause).await;
        }
    }

    fn turn(&mut self, at: &TopicPartition) {
        if self.plan.strikes("move", 6) {
            self.log.assign(at, self.someone());
        }
        if self.plan.strikes("steal", 8) {
            self.log.steal(at, self.someone());
        }
        if self.plan.strikes("member joins", 15) {
            self.join();
        }
        if self.plan.strikes("duplicate delivery", 8) {
            self.log
                .deliver_again(at, self.plan.below(self.log.end(at) as usize) as i64);
        }
        if self.plan.strikes("failover to an older history", 25) {
            self.fail_over();
        }
        if self.plan.strikes("rewind", 25) {
            self.rewind(at);
        }
        if self.plan.below(4) == 0 {
            self.history.push(self.database.tables());
        }
        if self.plan.below(4) == 0 {
            self.tell_lost();
        }
        self.trouble_the_filter();
    }

    fn tell_lost(&self) {
        let alive = self.members.iter().filter(|member| member.alive);
        alive.for_each(|member| self.log.tell_lost(member.number));
    }

    fn trouble_the_filter(&self) {
        if self.plan.strikes("filter forgets", 10) {
            self.filter.forget(|_| self.plan.below(2) == 0);
        }
        if self.plan.strikes("filter recalls", 10) {
            self.filter.recall();
        }
        if self.plan.strikes("filter down", 10) {
            self.filter.fail_probes(1 + self.plan.below(5) as u32);
        }
        if self.plan.strikes("filter answers lost", 10) {
            self.filter.lose_answers(1 + self.plan.below(5) as u32);
        }
        if self.plan.strikes("filter marks lost", 10) {
            self.filter.lose_marks(1 + self.plan.below(5) as u32);
        }
    }

    fn fail_over(&mut self) {
        let Some(index) = self.history.len().checked_sub(1 + self.plan.below(3)) else {
            return;
        };
        self.history.truncate(index + 1);
        self.database.restore(self.history[index].clone());
    }

    /// As an operator does: commit behind the position, then have the partition claimed anew.
    fn rewind(&mut self, at: &TopicPartition) {
        let position = self
            .database
            .tables()
            .positions
            .get(at)
            .map_or(0, |r| r.position.next_offset);
        self.log
            .commit_foreign(at, self.plan.below(position.max(1) as usize) as i64);
        self.log.steal(at, self.someone());
        self.rewound = true;
    }

    fn produce(&mut self, at: &TopicPartition) {
        for _ in 0..self.plan.below(6) {
            let temper =
                ["good", "good", "good", "good", "good", "flaky", "poison"][self.plan.below(7)];
            let id = format!("{temper}-{}", self.plan.below(60));
            *self.produced.entry(id.clone()).or_insert(0) += 1;
            *self.records.entry(at.clone()).or_insert(0) += 1;
            let headers = vec![("id".to_owned(), Some(id.into_bytes()))];
            let record = MemoryRecord {
                headers,
                payload: Some(b"{}".to_vec()),
                ..Default::default()
            };
            let gap = if self.plan.below(5) == 0 {
                self.plan.below(4) as i64
            } else {
                0
            };
            self.log.append(at, record, gap);
        }
        if self.plan.below(10) == 0 {
            self.log.append_gap(at, 2);
        }
    }

    fn join(&mut self) -> usize {
        let crashed = Arc::new(AtomicBool::new(false));
        let faults = MemberFaults {
            plan: self.plan.clone(),
            crashed: crashed.clone(),
        };
        let source = self.log.join(1 + self.plan.below(8));
        let number = source.member();
        let (handler, settings) = (self.handler.clone(), self.settings.clone());
        let health = Arc::new(Health::default());
        let worker = Worker::new(
            source,
            self.filter.clone(),
            self.database.ledger(faults.clone()),
            handler.clone(),
            settings.clone(),
            health.clone(),
        );
        let retrier = Retrier::new(self.database.ledger(faults), handler, settings, health);
        let tasks = vec![
            tokio::spawn(worker.run()),
            tokio::spawn(retrier.run(CancellationToken::new())),
        ];
        self.members.push(Member {
            number,
            crashed,
            tasks,
            alive: true,
        });
        number
    }

    /// A living member.
    fn someone(&self) -> usize {
        let alive: Vec<_> = self.members.iter().filter(|member| member.alive).collect();
        alive[self.plan.below(alive.len())].number
    }

    fn replace_crashed(&mut self) {
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if !member.alive || !member.crashed.load(Ordering::Relaxed) {
                continue;
            }
            member.kill();
            self.join();
        }
        for at in self.partitions.clone() {
            if self
                .log
                .owner(&at)
                .is_none_or(|owner| !self.members[owner].alive)
            {
                self.log.steal(&at, self.someone());
            }
        }
    }

    /// Lets everything that was begun come to its end.
    pub async fn heal(&mut self) {
        self.plan.calm_down();
        for _ in 0..400 {
            self.replace_crashed();
            self.tell_lost();
            self.unstop();
            tokio::time::sleep(Duration::from_secs(5)).await;
            if self.is_done() {
                return;
            }
        }
        panic!(
            "the group stands still: {:?}\n{:?}",
            self.database.tables().positions,
            self.log
        );
    }

    /// An operator's answer to a commit that a failover left ahead of the position.
    fn unstop(&mut self) {
        for (at, row) in &self.database.tables().positions {
            if row.position.stopped.is_some() {
                self.log.commit_foreign(at, row.position.next_offset);
                self.log.steal(at, self.someone());
                self.rewound = true;
            }
        }
    }

    fn is_done(&self) -> bool {
        let tables = self.database.tables();
        let read = |at: &TopicPartition| {
            tables
                .positions
                .get(at)
                .is_some_and(|row| row.position.next_offset == self.log.end(at))
        };
        self.partitions.iter().all(read) && tables.waiting.is_empty()
    }

    /// One effect per id, nothing lost, no id in two states, and outcomes that add up.
    pub fn check(&self) {
        for task in self.members.iter().flat_map(|member| &member.tasks) {
            assert!(
                !task.is_finished() || !self.ended_alive(task),
                "a task ended"
            );
        }
        let tables = self.database.tables();
        for id in self.produced.keys() {
            let expected = if temper(id) == "poison" { 0 } else { 1 };
            let effects = tables.effects.get(id).copied().unwrap_or(0);
            let key = EventKey::in_pipeline(id);
            let dead = tables.dead.get(&key);
            let known = tables.ledger.contains_key(&key);
            assert_eq!(
                effects,
                expected,
                "effects of {id}, known: {known}, dead: {dead:?}, {:?}",
                self.struck()
            );
            let dead = tables.dead.contains_key(&EventKey::in_pipeline(id));
            assert_eq!(dead, temper(id) == "poison", "dead letter of {id}");
        }
        assert_eq!(
            tables.ledger.len(),
            self.produced.len(),
            "every known id has a ledger row"
        );
        let unknown: Vec<_> = tables
            .effects
            .keys()
            .filter(|id| !self.produced.contains_key(*id))
            .collect();
        assert_eq!(unknown, Vec::<&String>::new(), "effects of nothing");
        if !self.rewound {
            self.check_tallies(&tables);
        }
    }

    fn ended_alive(&self, task: &JoinHandle<Result<(), Error>>) -> bool {
        self.members
            .iter()
            .any(|m| m.alive && m.tasks.iter().any(|t| std::ptr::eq(t, task)))
    }

    fn check_tallies(&self, tables: &Tables) {
        let mut total = Tally::default();
        for (at, row) in &tables.positions {
            let again = row.tally.get(Outcome::Duplicate(Layer::Position));
            let records = self.records.get(at).copied().unwrap_or(0);
            assert_eq!(
                row.tally.total() - again,
                records,
                "outcomes of {at}: {:?}",
                row.tally
            );
            total.merge(&row.tally);
        }
        let ended =
            total.get(Outcome::Applied) + total.get(Outcome::Dead) + total.get(Outcome::Retrying);
        assert_eq!(ended, self.produced.len() as u64, "first copies: {total:?}");
    }

    pub fn struck(&self) -> BTreeMap<&'static str, u64> {
        self.plan.struck()
    }
}

fn settings() -> Settings {
    let backoff = |base_ms, cap_ms| Backoff {
        base: Duration::from_millis(base_ms),
        cap: Duration::from_millis(cap_ms),
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
            max_attempts: 4,
            backoff: backoff(1_000, 10_000),
        },
        max_dead_in_a_row: 1_000,
        detect_conflicts: false,
        observe: false,
        recent_ids: 40,
        reconnect: backoff(50, 1_000),
        rate: None,
    }
}
