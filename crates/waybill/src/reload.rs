//! Follows the providers file, so that a change of it needs no restart (WK-10).
//!
//! The text is compared, not the time of the file: a mounted ConfigMap changes by a symbolic link, and some file systems have coarse times.

use std::{fs, time::Duration};

use anyhow::anyhow;
use waybill_tool::service::Tools;
use waybill_worker::model::Models;

use crate::command::worker::Reached;

/// How often the file is read.
const LOOK: Duration = Duration::from_secs(1);

/// The providers file as a process has read it.
#[derive(Debug)]
pub(crate) struct Followed {
    pub(crate) reached: Reached,
    pub(crate) text: String,
}

impl Followed {
    /// Gives models and tools what the file says, whenever it has changed. A file with a mistake is reported, and what it said before stays in use.
    pub(crate) fn follow(self, models: Models, tools: Option<Tools>) {
        if self.reached.providers.is_some() {
            tokio::spawn(self.run(models, tools));
        }
    }

    async fn run(mut self, models: Models, tools: Option<Tools>) {
        let Some(file) = self.reached.providers.clone() else { return };
        // A pipe can be read once.
        if !fs::metadata(&file).is_ok_and(|found| found.is_file()) {
            return;
        }
        let (mut seen, mut trouble) = (self.text.clone(), None);
        loop {
            tokio::time::sleep(LOOK).await;
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) => {
                    let said = error.to_string();
                    if trouble.as_ref() != Some(&said) {
                        tracing::warn!(file = %file.display(), error = said, "the providers file cannot be read: what it said before stays in use");
                        trouble = Some(said);
                    }
                    continue;
                }
            };
            trouble = None;
            // A program may be in the middle of writing it: two looks must agree.
            if text != seen || text == self.text {
                seen = text;
                continue;
            }
            let parsed = match text.trim() {
                // A program that writes it may have emptied it first.
                "" => Err(anyhow!("it is empty")),
                _ => self.reached.parse(Some(&text)),
            };
            match parsed {
                Ok(installation) => {
                    installation.renew(&models, tools.as_ref());
                    tracing::info!(file = %file.display(), "the providers file has changed, and is in use");
                }
                Err(error) => {
                    tracing::warn!(
                        file = %file.display(),
                        error = format!("{error:#}"),
                        "the providers file has changed and has a mistake: what it said before stays in use"
                    );
                }
            }
            self.text = text;
        }
    }
}
