//! Measures scenario after scenario, the product and its baselines in turn.

use std::sync::Arc;

use anyhow::Context as _;
use indicatif::HumanCount;
use onceonly::config::{Batch, Limits};

use super::baseline::{self, Work};
use super::database::Database;
use super::events::{Event, Sum};
use super::finding::{Finding, Round};
use super::machine;
use super::measured::Measured;
use super::product::Line;
use super::report::Report;
use super::scenario::Scenario;
use super::stage::{Stage, records_of};
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
}

impl Plan {
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
    let events: Vec<Event> = (0..plan.events).map(Event::new).collect();
    let events = Arc::new(events);
    progress.say(&format!(
        "Sending {} events to topic {}-events at {}.",
        HumanCount(plan.events.into()),
        stage.name,
        stage.brokers
    ));
    let records = events.len() as u64;
    let topic = stage
        .load_topic("events", records, records_of(&events))
        .await?;
    let work = Work {
        events,
        topic,
        records,
        workers: Limits::default().workers,
        batch: Batch::default().max_events,
    };
    progress.begin(plan.steps());
    let mut bench = Bench {
        stage,
        database,
        work,
        progress,
        done: 0,
    };
    let mut findings = Vec::new();
    for scenario in &plan.scenarios {
        let mut rounds = Vec::new();
        for number in 1..=plan.rounds {
            let name = format!("{} {number}/{}", scenario.name(), plan.rounds);
            rounds.push(bench.round(*scenario, &name).await?);
        }
        let compared: Vec<_> = (scenario.baselines().iter())
            .map(|(baseline, goal)| (baseline.name(), *goal))
            .collect();
        findings.extend(Finding::of(scenario.name(), &compared, &rounds));
    }
    Ok(Report { machine, findings })
}

/// What all rounds use.
struct Bench<'a> {
    stage: &'a mut Stage,
    database: Database,
    work: Work,
    progress: &'a mut Progress,
    done: u64,
}

impl Bench<'_> {
    async fn round(&mut self, scenario: Scenario, name: &str) -> anyhow::Result<Round> {
        self.progress.set(self.done, &format!("{name}: onceonly"));
        let product = self.product(scenario).await.context(name.to_owned())?;
        self.tell(name, "onceonly", &product);
        let mut baselines = Vec::new();
        for (baseline, _) in scenario.baselines() {
            let what = baseline.name();
            self.progress.set(self.done, &format!("{name}: {what}"));
            let measured =
                baseline::measure(*baseline, self.stage, &mut self.database, &self.work).await;
            let measured = measured.with_context(|| format!("{name}, baseline {what}"))?;
            self.tell(name, what, &measured);
            baselines.push(measured);
        }
        Ok(Round { product, baselines })
    }

    fn tell(&mut self, name: &str, what: &str, measured: &Measured) {
        self.done += 1;
        self.progress.set(self.done, name);
        self.progress.say(&format!(
            "{name}: {what} {} events/s",
            HumanCount(measured.rate() as u64)
        ));
    }

    /// The product over a fresh schema; every event's effect is checked.
    async fn product(&mut self, scenario: Scenario) -> anyhow::Result<Measured> {
        let line = Line {
            pipeline: self.stage.new_pipeline(),
            topic: self.work.topic.clone(),
            records: self.work.records,
            redis: scenario.has_redis(),
            variables: Vec::new(),
        };
        let program = line.program(self.stage)?;
        self.stage
            .renew_schema(&mut self.database, &program)
            .await?;
        self.database.checkpoint().await;
        let measured = line.measure(self.stage, &mut self.database).await?;
        let expected = Sum::of(0..self.work.events.len() as u32);
        self.database.effects().await?.check(expected)?;
        if line.redis {
            self.stage.delete_keys(&line.pipeline).await?;
        }
        Ok(measured)
    }
}
