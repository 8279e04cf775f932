//! What happens to Redis in the middle of the work, however marks are made and kept.

use std::time::Duration;

use crate::process::Process;
use crate::scene::{Scene, eventually};
use crate::support::proxy::{Fault, Proxy};
use crate::support::redis_server::{RedisServer, run};

/// How long a share of the events may take whatever Redis does: many times what it takes.
const SHARE: Duration = Duration::from_secs(20);

pub const EVENTS: usize = 1_200;

/// `redis.timeout` where only the fault of the test may exceed it, on a busy machine too.
pub const PATIENT_MS: u32 = 400;

/// How marks are made and kept.
pub struct Marks {
    order: &'static str,
    layout: &'static str,
}

pub const AFTER: Marks = Marks {
    order: "after",
    layout: "keys",
};
pub const BEFORE: Marks = Marks {
    order: "before",
    layout: "keys",
};
pub const IN_BUCKETS: Marks = Marks {
    order: "after",
    layout: "buckets",
};

impl Marks {
    /// The section `[redis]` stands last so far.
    pub fn configure(&self, scene: &mut Scene) {
        let Self { order, layout } = self;
        scene.redis += &format!("layout = \"{layout}\"\n");
        scene.more += &format!("[dedup]\nmark = \"{order}\"\n");
    }
}

/// Everything so far is consumed in time, and no batch asked for a person.
pub async fn flows(scene: &Scene) {
    scene.until_consumed_within(SHARE).await;
}

/// The end of every test here.
pub async fn ends_well(scene: &Scene, member: &Process) {
    let outcomes = scene.until_consumed_within(SHARE).await;
    scene.assert_effects_once().await;
    assert_eq!(
        outcomes["dead"] + outcomes["retrying"] + outcomes["skipped"],
        0
    );
    eventually("the member is ready", async || {
        member.status("/ready") == 200
    })
    .await;
    assert_eq!(member.status("/live"), 200);
}

pub fn open(member: &Process, breaker: &str) -> bool {
    let name = format!("onceonly_redis_breaker_open{{breaker=\"{breaker}\"}}");
    member.metric(&name) == Some(1.0)
}

pub async fn gone_in_the_middle(marks: Marks) {
    let mut redis = RedisServer::start(&[]).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&redis.url(), PATIENT_MS);
    marks.configure(&mut scene);
    let member = scene.member();
    scene.produce_with_repeats("before", EVENTS);
    let load = scene.load("load");
    scene.until_consumed_at_least(1_000).await;
    redis.kill();
    eventually("it is noticed", async || {
        member.said("Redis does not answer") == 1
    })
    .await;
    scene.produce_with_repeats("during", EVENTS);
    scene.produce_with_repeats("before", EVENTS);
    scene.until_consumed_at_least(3_500).await;
    redis.up().await;
    eventually("it is used again", async || {
        member.said("Redis answers again") == 1
    })
    .await;
    scene.end(load).await;
    scene.produce_with_repeats("before", EVENTS);
    scene.produce_with_repeats("after", EVENTS);
    ends_well(&scene, &member).await;
    assert_eq!(member.said("Redis does not answer"), 1, "said once");
    assert_eq!(member.warnings(), 1, "{}", member.log());
}

/// Answers that come after the timeout belong to nobody: with claims made before the effects, an
/// answer taken for another request's would make an event the duplicate of another.
pub async fn answering_late(marks: Marks) {
    let redis = RedisServer::start(&[]).await;
    let proxy = Proxy::start(redis.address()).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&format!("redis://{}", proxy.address()), 50);
    marks.configure(&mut scene);
    let member = scene.member();
    let load = scene.load("load");
    for round in 0..5 {
        proxy.set(Fault::Delay(Duration::from_millis(70)));
        scene.produce_with_repeats(&format!("late-{round}"), 300);
        flows_on(&scene, 300).await;
        proxy.set(Fault::None);
        scene.produce_with_repeats(&format!("late-{round}"), 300);
        flows_on(&scene, 300).await;
    }
    scene.end(load).await;
    ends_well(&scene, &member).await;
    assert!(
        member.metric("onceonly_redis_errors_total{kind=\"timeout\"}") >= Some(1.0),
        "no answer was late"
    );
}

async fn flows_on(scene: &Scene, records: u64) {
    let consumed = scene.consumed().await;
    scene.until_consumed_at_least(consumed + records).await;
}

pub async fn full(marks: Marks) {
    let redis = RedisServer::start(&["--maxmemory-policy", "noeviction"]).await;
    let mut scene = Scene::set(4).await;
    scene.with_redis(&redis.url(), PATIENT_MS);
    marks.configure(&mut scene);
    let member = scene.member();
    scene.produce_with_repeats("room", EVENTS);
    flows(&scene).await;
    let mut admin = redis.admin().await;
    let _: () = run(&mut admin, &["CONFIG", "SET", "maxmemory", "1"]).await;
    scene.produce_with_repeats("full", EVENTS);
    scene.produce_with_repeats("room", EVENTS);
    flows(&scene).await;
    eventually("the breaker is shown", async || open(&member, "writes")).await;
    assert_eq!(member.said("Redis takes no marks"), 1, "said once");
    let _: () = run(&mut admin, &["CONFIG", "SET", "maxmemory", "0"]).await;
    let load = scene.load("load");
    eventually("it is used again", async || {
        member.said("Redis takes marks again") == 1
    })
    .await;
    scene.end(load).await;
    scene.produce_with_repeats("full", EVENTS);
    ends_well(&scene, &member).await;
    assert_eq!(member.warnings(), 1, "{}", member.log());
}
