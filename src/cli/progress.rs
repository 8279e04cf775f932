//! What long commands say on standard error while they run.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

const STYLE: &str = "  {bar:30} {human_pos:>9} / {human_len}  {msg}";

/// Says in words what happens, above a bar that shows how far it is.
pub(super) struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Without a bar as yet.
    pub(super) fn new() -> Self {
        Self { bar: None }
    }

    /// Says a sentence.
    pub(super) fn say(&self, sentence: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{sentence}")),
            None => eprintln!("{sentence}"),
        }
    }

    /// Shows a bar up to so much.
    pub(super) fn begin(&mut self, all: u64) {
        let bar = ProgressBar::new(all);
        // The template is ours and has no mistake; without it the bar is only plainer.
        if let Ok(style) = ProgressStyle::with_template(STYLE) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(100));
        self.bar = Some(bar);
    }

    /// Moves the bar, with a few words beside it.
    pub(super) fn set(&self, done: u64, words: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(done);
            bar.set_message(words.to_owned());
        }
    }

    /// Leaves the bar as it is, or takes it away where the terminal is needed for something else.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}
