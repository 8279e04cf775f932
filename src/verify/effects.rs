//! Ids compared with the effects that a query lists.

use super::Verification;
use crate::error::Error;
use crate::identity::{EventKey, Scope};
use crate::ledger::id_state::State;
use crate::ledger::postgres::comparison::{Noted, Suspect};

impl Verification {
    /// Compares the ids that were read with the effects. Whatever does not agree with the state that
    /// was noted is looked at again, state and effects in one snapshot.
    pub(super) async fn compare_effects(&mut self) -> Result<(), Error> {
        self.comparison.compare_effects().await?;
        let forgets = self.forgets().await?;
        loop {
            let suspects = self.comparison.suspects().await?;
            if suspects.is_empty() {
                return Ok(());
            }
            let ids: Vec<(EventKey, String)> = suspects
                .iter()
                .map(|suspect| (suspect.key, suspect.id.clone()))
                .collect();
            let looks = self.comparison.states_and_effects(&ids).await?;
            let mut states = Vec::with_capacity(suspects.len());
            for (Suspect { key, state, .. }, (known, effects)) in suspects.into_iter().zip(looks) {
                let now = State::of(known).with_effects(effects, self.observed);
                let was_known = !matches!(state, State::Missing | State::Forgotten);
                let now = match now {
                    // Forgotten since it was looked up, or long before.
                    State::Missing | State::Unclaimed if was_known => State::Forgotten,
                    State::Unclaimed if forgets => State::Forgotten,
                    now => now,
                };
                states.push((key, now));
            }
            self.comparison.renote(&states).await?;
        }
    }

    /// Looks for effects of ids that no record of the range has, and that the ledger does not know.
    ///
    /// Where ids were forgotten such an effect may be one of theirs: it is counted, and no finding.
    pub(super) async fn find_strangers(&mut self) -> Result<(), Error> {
        self.comparison.find_strangers().await?;
        let mut unknown_effects = 0;
        loop {
            let texts = self.comparison.strangers().await?;
            if texts.is_empty() {
                break;
            }
            let unknown = self.unknown(texts).await?;
            if unknown.is_empty() {
                continue;
            }
            if self.forgets().await? {
                unknown_effects += unknown.len();
                continue;
            }
            let looks = self.comparison.states_and_effects(&unknown).await?;
            let strangers = unknown.into_iter().zip(looks);
            let strangers = strangers.filter(|(_, (known, effects))| {
                State::of(*known) == State::Missing && *effects > 0
            });
            let noted: Vec<Noted> = strangers
                .map(|((key, id), _)| Noted {
                    key,
                    id,
                    record: None,
                    state: State::Stranger,
                })
                .collect();
            self.comparison.note(&noted).await?;
        }
        if unknown_effects > 0 {
            self.report.notes.push(format!(
                "{unknown_effects} ids with an effect are unknown to the ledger. It has forgotten \
                 ids, theirs may be among them: they are not counted as extra."
            ));
        }
        Ok(())
    }

    /// Those ids that the ledger does not know under any key they may have.
    async fn unknown(&mut self, texts: Vec<String>) -> Result<Vec<(EventKey, String)>, Error> {
        let mut keys = Vec::with_capacity(texts.len());
        let mut ends = Vec::with_capacity(texts.len());
        for text in &texts {
            keys.extend(self.keys_of(text));
            ends.push(keys.len());
        }
        let known = self.comparison.states(&keys).await?;
        let mut unknown = Vec::new();
        let mut start = 0;
        for (text, end) in texts.into_iter().zip(ends) {
            let is_unknown = |index: usize| {
                let known = known.get(index).copied().unwrap_or_default();
                State::of(known) == State::Missing
            };
            if (start..end).all(is_unknown)
                && let Some(key) = keys.get(start)
            {
                unknown.push((*key, text));
            }
            start = end;
        }
        Ok(unknown)
    }

    /// The keys that an id may have, by its text alone: one in each topic that counts, and that of
    /// a record's place where the text is written as one.
    fn keys_of(&self, text: &str) -> Vec<EventKey> {
        let identity = self.identity();
        let mut keys: Vec<EventKey> = match identity.scope {
            Scope::Pipeline => vec![identity.key_of(text, "")],
            Scope::Topic => {
                let topics = self.plan.topics.iter();
                topics.map(|topic| identity.key_of(text, topic)).collect()
            }
        };
        let mut parts = text.rsplitn(3, '/');
        let place = (parts.next(), parts.next(), parts.next());
        if let (Some(offset), Some(partition), Some(topic)) = place
            && let (Ok(offset), Ok(partition)) = (offset.parse(), partition.parse())
        {
            let topic_id = self.plan.topic_id_of(topic, partition);
            keys.push(EventKey::of_position(topic_id, topic, partition, offset));
        }
        keys
    }
}
