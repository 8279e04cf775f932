//! Measures scenario after scenario, the product and its baselines in turn.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use indicatif::{HumanBytes, HumanCount};
use onceonly::config::{Batch, Limits};

use super::baseline::{self, Work};
use super::database::Database;
use super::duplicates;
use super::events::{Event, PARTITIONS, Sum};
use super::finding::{Against, Finding, Unit};
use super::measured::Measured;
use super::product::Line;
use super::report::Report;
use super::scenario::Scenario;
use super::stage::{Stage, records_of};
use super::{latency, machine, memory};
use crate::cli::progress::Progress;

/// What to measure.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// In this order.
    pub(super) scenarios: Vec<Scenario>,
    /// Events of each.
    pub(super) events: u32,
    /// How often.
    pub(super) rounds: u32,
    /// How long Postgres stalls.
    pub(super) stall: Duration,
}

impl Plan {
    fn name(&self, scenario: Scenario, round: u32) -> String {
        format!("{} {round}/{}", scenario.name(), self.rounds)
    }

    fn steps(&self) -> u64 {
        let each = |scenario: &Scenario| 1 + scenario.baselines().len() as u64;
        self.scenarios.iter().map(each).sum::<u64>() * u64::from(self.rounds)
    }
}

/// Measures all.
pub(super) async fn measure(
    stage: &mut Stage,
    plan: &Plan,
    progress: &mut Progress,
) -> anyhow::Result<Report> {
    let mut database = stage.connect_postgres().await?;
    let server = database.server().await?;
    let (machine, servers) = machine::look(stage, &server).await?;
    stage.servers = servers;
    let works = Works::load(stage, plan, progress).await?;
    progress.begin(plan.steps());
    let mut bench = Bench {
        stage,
        database,
        works,
        progress,
        done: 0,
        again: None,
    };
    let mut findings = Vec::new();
    for scenario in &plan.scenarios {
        findings.extend(match scenario {
            Scenario::Latency => bench.latency(plan).await?,
            Scenario::Memory => bench.memory(plan).await?,
            Scenario::Efficiency => bench.efficiency(plan).await?,
            scenario => bench.rates(plan, *scenario).await?,
        });
    }
    Ok(Report { machine, findings })
}

/// The topics, and what is in them.
struct Works {
    /// Each event once.
    once: Work,
    /// Each event twice; half as many events.
    twice: Option<Work>,
}

impl Works {
    async fn load(stage: &mut Stage, plan: &Plan, progress: &Progress) -> anyhow::Result<Self> {
        let records = u64::from(plan.events);
        progress.say(&format!(
            "Sending {} events to topic {}-events at {}.",
            HumanCount(records),
            stage.name,
            stage.brokers
        ));
        let events: Arc<Vec<Event>> = Arc::new((0..plan.events).map(Event::new).collect());
        let topic = (stage.load_topic("events", records, records_of(&events))).await?;
        let once = Work {
            events,
            topic,
            records,
            workers: Limits::default().workers,
            batch: Batch::default().max_events,
        };
        let mut twice = None;
        if plan.scenarios.contains(&Scenario::Mixed) {
            let half = (0..plan.events / 2).map(Event::new).collect();
            let (events, records) = (Arc::new(half), u64::from(plan.events / 2) * 2);
            let copies = duplicates::records(&events);
            twice = Some(Work {
                topic: stage.load_topic("copies", records, copies).await?,
                events,
                records,
                ..once.clone()
            });
        }
        Ok(Self { once, twice })
    }

    fn of(&self, scenario: Scenario) -> &Work {
        match (scenario, &self.twice) {
            (Scenario::Mixed, Some(twice)) => twice,
            _ => &self.once,
        }
    }
}

/// What all rounds use.
struct Bench<'a> {
    stage: &'a mut Stage,
    database: Database,
    works: Works,
    progress: &'a mut Progress,
    done: u64,
    /// What has applied its whole topic, and in which scenario.
    again: Option<(Scenario, Line)>,
}

/// The product and what it is compared with, measured one after the other.
struct Round {
    product: Measured,
    baselines: Vec<Measured>,
}

impl Bench<'_> {
    async fn rounds(&mut self, plan: &Plan, scenario: Scenario) -> anyhow::Result<Vec<Round>> {
        let mut rounds = Vec::new();
        for number in 1..=plan.rounds {
            let name = plan.name(scenario, number);
            rounds.push(self.round(scenario, &name).await?);
        }
        Ok(rounds)
    }

    /// A scenario that compares events a second.
    async fn rates(&mut self, plan: &Plan, scenario: Scenario) -> anyhow::Result<Option<Finding>> {
        let rounds = self.rounds(plan, scenario).await?;
        let products: Vec<Measured> = rounds.iter().map(|round| round.product).collect();
        let own: Vec<f64> = products.iter().map(Measured::rate).collect();
        let against = (0..)
            .zip(scenario.baselines())
            .map(|(at, (baseline, goal))| Against::rates(baseline.name(), *goal, nth(&rounds, at)));
        let (name, unit) = (scenario.name(), Unit::EventsPerSecond);
        Ok(Finding::of(name, unit, &products, &own, against.collect()))
    }

    /// Processor time of the parts, by that of the whole.
    async fn efficiency(&mut self, plan: &Plan) -> anyhow::Result<Option<Finding>> {
        let scenario = Scenario::Efficiency;
        let rounds = self.rounds(plan, scenario).await?;
        let products: Vec<Measured> = rounds.iter().map(|round| round.product).collect();
        let own: Vec<f64> = products.iter().map(Measured::all_cpu_us).collect();
        let parts = rounds.iter().map(|round| {
            let parts = round.baselines.iter();
            parts.map(Measured::all_cpu_us).sum()
        });
        let mut against = vec![Against {
            is_dividend: true,
            ..Against::values("parts", scenario.own_goal(), parts.collect())
        }];
        for (at, (baseline, _)) in (0..).zip(scenario.baselines()) {
            let values = nth(&rounds, at).map(Measured::all_cpu_us).collect();
            against.push(Against {
                is_dividend: true,
                cpu_us: Against::rates("", None, nth(&rounds, at)).cpu_us,
                ..Against::values(baseline.name(), None, values)
            });
        }
        let (name, unit) = (scenario.name(), Unit::Microseconds);
        Ok(Finding::of(name, unit, &products, &own, against))
    }

    /// From producer to commit.
    async fn latency(&mut self, plan: &Plan) -> anyhow::Result<Option<Finding>> {
        let scenario = Scenario::Latency;
        let (mut products, mut own) = (Vec::new(), Vec::new());
        let (mut sums, mut consumed, mut committed) = (Vec::new(), Vec::new(), Vec::new());
        for number in 1..=plan.rounds {
            let name = plan.name(scenario, number);
            self.progress.set(self.done, &format!("{name}: onceonly"));
            let work = self.paced(&format!("paced-{number}")).await?;
            let line = self.fresh_line(scenario, &work).await?;
            let (database, stage) = (&mut self.database, &mut *self.stage);
            let (product, p99_ms) = latency::product(stage, database, &line, &work.events).await?;
            let all = work.events.len() + usize::from(PARTITIONS);
            database.effects().await?.check(Sum::of(0..all as u32))?;
            stage.delete_keys(&line.pipeline).await?;
            let bare = self.paced(&format!("paced-bare-{number}")).await?;
            self.progress.set(self.done, &format!("{name}: consume"));
            let consume_ms = latency::bare(self.stage, &bare).await?;
            let commit_ms = latency::commit(&mut self.database, &bare).await?;
            self.tell(&format!(
                "{name}: p99 {p99_ms:.1} ms; consume {consume_ms:.1} ms, commit {commit_ms:.1} ms"
            ));
            products.push(product);
            own.push(p99_ms);
            sums.push(consume_ms + commit_ms);
            consumed.push(consume_ms);
            committed.push(commit_ms);
        }
        let against = vec![
            Against::values("consume+commit", scenario.own_goal(), sums),
            Against::values("consume", None, consumed),
            Against::values("commit", None, committed),
        ];
        let (name, unit) = (scenario.name(), Unit::Milliseconds);
        Ok(Finding::of(name, unit, &products, &own, against))
    }

    /// The most memory.
    async fn memory(&mut self, plan: &Plan) -> anyhow::Result<Option<Finding>> {
        let scenario = Scenario::Memory;
        let (mut products, mut own) = (Vec::new(), Vec::new());
        for number in 1..=plan.rounds {
            let name = plan.name(scenario, number);
            self.progress.set(self.done, &name);
            let work = self.works.once.clone();
            let line = self.fresh_line(scenario, &work).await?;
            let (database, stage) = (&mut self.database, &mut *self.stage);
            let product = memory::measure(stage, database, &line, plan.stall).await?;
            self.check(scenario).await?;
            self.stage.delete_keys(&line.pipeline).await?;
            let peak = product.peak_rss_bytes.context("Linux tells no memory")?;
            self.tell(&format!("{name}: {}", HumanBytes(peak)));
            products.push(product);
            own.push(peak as f64);
        }
        let limits = vec![memory::LIMIT_BYTES; own.len()];
        let against = vec![Against::values("limit", scenario.own_goal(), limits)];
        let (name, unit) = (scenario.name(), Unit::Bytes);
        Ok(Finding::of(name, unit, &products, &own, against))
    }

    /// A topic with one record in each partition, and the events that are to follow.
    async fn paced(&mut self, name: &str) -> anyhow::Result<Work> {
        let once = &self.works.once;
        let first = usize::from(PARTITIONS);
        let rest = once.events.iter().skip(first).take(latency::EVENTS_MAX);
        let events: Arc<Vec<Event>> = Arc::new(rest.cloned().collect());
        let warm = Arc::new(once.events.iter().take(first).cloned().collect());
        let records = PARTITIONS.into();
        let loading = self.stage.load_topic(name, records, records_of(&warm));
        Ok(Work {
            topic: loading.await?,
            records: records + events.len() as u64,
            events,
            ..once.clone()
        })
    }

    async fn round(&mut self, scenario: Scenario, name: &str) -> anyhow::Result<Round> {
        self.progress.set(self.done, &format!("{name}: onceonly"));
        let product = self.product(scenario).await.context(name.to_owned())?;
        self.tell_rate(name, "onceonly", &product);
        let mut baselines = Vec::new();
        for (baseline, _) in scenario.baselines() {
            let what = baseline.name();
            self.progress.set(self.done, &format!("{name}: {what}"));
            let work = self.works.of(scenario);
            let measured = baseline::measure(*baseline, self.stage, &mut self.database, work).await;
            let measured = measured.with_context(|| format!("{name}, baseline {what}"))?;
            self.tell_rate(name, what, &measured);
            baselines.push(measured);
        }
        Ok(Round { product, baselines })
    }

    fn tell_rate(&mut self, name: &str, what: &str, measured: &Measured) {
        let rate = HumanCount(measured.rate() as u64);
        self.tell(&format!("{name}: {what} {rate} events/s"));
    }

    fn tell(&mut self, sentence: &str) {
        self.done += 1;
        self.progress.set(self.done, "");
        self.progress.say(sentence);
    }

    /// The product; every event's effect is checked.
    async fn product(&mut self, scenario: Scenario) -> anyhow::Result<Measured> {
        let again = self.again.take().filter(|(of, _)| *of == scenario);
        let line = match again {
            Some((_, line)) => line,
            None => self.fresh(scenario).await?,
        };
        if scenario.is_again() {
            line.rewind(self.stage).await?;
        }
        self.database.checkpoint().await;
        let measured = line.measure(self.stage, &mut self.database).await?;
        self.check(scenario).await?;
        if scenario.is_again() {
            self.again = Some((scenario, line));
        } else if line.redis {
            self.stage.delete_keys(&line.pipeline).await?;
        }
        Ok(measured)
    }

    /// The product in a fresh schema; where it is to meet everything again, it has met it.
    async fn fresh(&mut self, scenario: Scenario) -> anyhow::Result<Line> {
        let work = self.works.of(scenario).clone();
        let line = self.fresh_line(scenario, &work).await?;
        if scenario.is_again() {
            line.measure(self.stage, &mut self.database).await?;
            self.check(scenario).await?;
        }
        Ok(line)
    }

    async fn fresh_line(&mut self, scenario: Scenario, work: &Work) -> anyhow::Result<Line> {
        let mut variables = Vec::new();
        if scenario == Scenario::Buckets {
            variables.push(("ONCEONLY_REDIS__LAYOUT", "buckets".to_owned()));
        }
        if scenario == Scenario::Sql {
            let statement = self.database.user_statement();
            variables.push(("ONCEONLY_HANDLER__STATEMENTS", statement));
        }
        let line = Line {
            pipeline: self.stage.new_pipeline(),
            topic: work.topic.clone(),
            records: work.records,
            redis: scenario.has_redis(),
            variables,
        };
        let program = line.program(self.stage)?;
        (self.stage.renew_schema(&mut self.database, &program)).await?;
        if scenario == Scenario::Sql {
            self.database.create_orders().await?;
        }
        Ok(line)
    }

    async fn check(&mut self, scenario: Scenario) -> anyhow::Result<()> {
        let events = self.works.of(scenario).events.len() as u32;
        let found = match scenario {
            Scenario::Sql => self.database.orders().await?,
            _ => self.database.effects().await?,
        };
        found.check(Sum::of(0..events))
    }
}

/// One baseline in all rounds.
fn nth(rounds: &[Round], at: usize) -> impl Iterator<Item = &Measured> + Clone {
    rounds
        .iter()
        .filter_map(move |round| round.baselines.get(at))
}
