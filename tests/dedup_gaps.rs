//! The example that compares onceonly with the usual consumer, gap by gap.

#![cfg(feature = "cli")]

#[allow(dead_code)] // its main function
#[path = "../examples/dedup_gaps/main.rs"]
mod dedup_gaps;

#[tokio::test(flavor = "multi_thread")]
async fn a_key_beside_the_effect_loses_and_repeats_where_onceonly_does_neither() {
    let rows = dedup_gaps::rows().await.expect("both consumers at an end");
    let counts: Vec<_> = rows
        .iter()
        .map(|(_, consumer, effects)| (*consumer, effects.lost, effects.twice, effects.once))
        .collect();
    assert_eq!(
        counts,
        [
            ("SET NX EX", 0, 10, 0),
            ("onceonly", 0, 0, 10),
            ("SET NX EX", 1, 0, 9),
            ("onceonly", 0, 0, 10),
            ("SET NX EX", 0, 1, 9),
            ("onceonly", 0, 0, 10),
            ("SET NX EX", 0, 10, 0),
            ("onceonly", 0, 0, 10),
        ]
    );
}
