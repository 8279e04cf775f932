//! Memory stays bounded while Postgres stalls and events wait.

use std::time::{Duration, Instant};

use crate::scene::{Scene, eventually};

const IN_FLIGHT_BYTES: u64 = 8 << 20;

/// What a stalled process may hold beside what it held before: events in flight, what the client
/// fetched ahead, and each batch's copy in the connection's buffer.
const GROWTH_MAX_KB: u64 = 6 * IN_FLIGHT_BYTES / 1024;

/// Several times of what may be in flight waits in the topic while nothing can be applied.
async fn stalled(event_bytes: usize, events: usize) {
    let mut scene = Scene::set(4).await;
    scene.more = "[batch]\nmax_bytes = \"2MiB\"\n[limits]\nin_flight_bytes = \"8MiB\"\n".to_owned();
    let member = scene.member();
    scene.produce_with_repeats("small", 200);
    scene.until_consumed().await;
    let mut held = scene.database.connection().await;
    sqlx::raw_sql("begin; lock table onceonly.position in access exclusive mode")
        .execute(&mut held)
        .await
        .expect("a lock on the positions");
    let before_kb = member.memory_kb("VmHWM");
    let body = format!(r#"{{"text": "{}"}}"#, "x".repeat(event_bytes));
    for n in 0..events {
        scene.produce_body(n as i32 % 4, &format!("event-{n}"), &body);
        if n % 100 == 0 {
            scene.flush();
        }
    }
    scene.flush();
    let grown_kb = settled(|| member.memory_kb("VmHWM") - before_kb).await;
    assert!(
        grown_kb > IN_FLIGHT_BYTES / 1024 / 2,
        "only {grown_kb} kB: nothing was stalled"
    );
    assert!(grown_kb < GROWTH_MAX_KB, "{grown_kb} kB");
    assert_eq!(member.status("/live"), 200);
    sqlx::raw_sql("rollback")
        .execute(&mut held)
        .await
        .expect("the lock's end");
    let outcomes = scene.until_consumed().await;
    assert_eq!(outcomes["dead"] + outcomes["retrying"], 0, "{outcomes:?}");
    scene.assert_effects_once().await;
    let grown_kb = member.memory_kb("VmHWM") - before_kb;
    assert!(grown_kb < GROWTH_MAX_KB, "{grown_kb} kB in the end");
    eventually("the member is ready", async || {
        member.status("/ready") == 200
    })
    .await;
}

/// Waits until a value has not grown for two seconds.
async fn settled(mut value: impl FnMut() -> u64) -> u64 {
    let (mut last, mut since) = (value(), Instant::now());
    let mut changed = async || {
        let now = value();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(2)
    };
    eventually("memory has settled", &mut changed).await;
    value()
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_bounded_while_small_events_wait_for_postgres() {
    stalled(1_000, 40_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_stays_bounded_while_large_events_wait_for_postgres() {
    stalled(100_000, 500).await;
}
