//! Measures scenario after scenario, the product and its baselines in turn.

use std::sync::Arc;

use anyhow::Context as _;
use indicatif::HumanCount;
use onceonly::config::{Batch, Limits};

use super::baseline::{self, Work};
use super::database::Database;
use super::duplicates;
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

impl Bench<'_> {
    async fn round(&mut self, scenario: Scenario, name: &str) -> anyhow::Result<Round> {
        self.progress.set(self.done, &format!("{name}: onceonly"));
        let product = self.product(scenario).await.context(name.to_owned())?;
        self.tell(name, "onceonly", &product);
        let mut baselines = Vec::new();
        for (baseline, _) in scenario.baselines() {
            let what = baseline.name();
            self.progress.set(self.done, &format!("{name}: {what}"));
            let work = self.works.of(scenario);
            let measured = baseline::measure(*baseline, self.stage, &mut self.database, work).await;
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
        let mut line = Line {
            pipeline: self.stage.new_pipeline(),
            topic: self.works.of(scenario).topic.clone(),
            records: self.works.of(scenario).records,
            redis: scenario.has_redis(),
            variables: Vec::new(),
        };
        if scenario == Scenario::Buckets {
            let layout = ("ONCEONLY_REDIS__LAYOUT", "buckets".to_owned());
            line.variables.push(layout);
        }
        if scenario == Scenario::Sql {
            let statement = self.database.user_statement();
            let statement = ("ONCEONLY_HANDLER__STATEMENTS", statement);
            line.variables.push(statement);
        }
        let program = line.program(self.stage)?;
        (self.stage.renew_schema(&mut self.database, &program)).await?;
        if scenario == Scenario::Sql {
            self.database.create_orders().await?;
        }
        if scenario.is_again() {
            line.measure(self.stage, &mut self.database).await?;
            self.check(scenario).await?;
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
