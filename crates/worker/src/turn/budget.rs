//! What a turn may still spend: steps, tokens, money and time.

use std::time::Duration;

use futures::future::OptionFuture;
use tokio::time::Instant;
use waybill_core::turn::{Budget, Limit, Limits, Usage};

use super::Turn;

/// The model gets a warning when this many steps are left.
const FEW_STEPS: i64 = 2;

impl Turn<'_> {
    /// Takes over what the database says is left. `None` changes nothing.
    pub(super) fn set_budget(&mut self, budget: Option<Budget>) {
        if let Some(seconds) = budget.and_then(|budget| budget.seconds) {
            self.expires = Some(Instant::now() + Duration::from_secs_f64(seconds.max(0.0)));
        }
        self.budget = budget.or(self.budget);
    }

    /// Returns a limit that is used up.
    pub(super) fn exhausted(&self) -> Option<Limit> {
        if self.expires.is_some_and(|at| at <= Instant::now()) {
            return Some(Limit::Seconds);
        }
        if let Some(exhausted) = self.budget.and_then(|budget| budget.exhausted()) {
            return Some(exhausted);
        }
        // The budget sets no such limit: the project's settings apply.
        let unsaid = |said: fn(&Budget) -> bool| !self.budget.as_ref().is_some_and(said);
        let Limits { steps, tokens, .. } = self.default;
        if unsaid(|budget| budget.steps.is_some()) && steps.is_some_and(|most| self.n_steps >= i64::from(most)) {
            return Some(Limit::Steps);
        }
        let over = |most: u32| self.n_tokens >= i64::from(most);
        (unsaid(|budget| budget.tokens.is_some()) && tokens.is_some_and(over)).then_some(Limit::Tokens)
    }

    /// Returns what is left of all limits, those of the project's settings included.
    pub(super) fn left(&self) -> Budget {
        let Budget { steps, tokens, microdollars, .. } = self.budget.unwrap_or_default();
        let rest = |most: Option<u32>, used: i64| most.map(|most| i64::from(most) - used);
        let seconds = self.expires.map(|at| at.saturating_duration_since(Instant::now()).as_secs_f64());
        Budget {
            steps: steps.or(rest(self.default.steps, self.n_steps)),
            tokens: tokens.or(rest(self.default.tokens, self.n_tokens)),
            microdollars,
            seconds,
        }
    }

    /// Returns an error if money is limited and one of the models has no known price: the limit could never end the turn.
    pub(super) fn without_price(&self) -> Option<String> {
        self.budget?.microdollars?;
        let summarisers =
            self.summariser.iter().flat_map(|(llms, _)| llms).filter(|_| self.memory.compaction.is_some());
        let llm = self.llms.iter().chain(summarisers).find(|llm| !self.worker.models().has_price(llm))?;
        Some(format!(
            "the turn has a cost limit, but the providers file has no price for model `{}` of provider `{}`: add one, or 0 if the model is free",
            llm.model, llm.provider
        ))
    }

    /// Waits until the turn's time is over.
    pub(super) fn out_of_time(&self) -> OptionFuture<tokio::time::Sleep> {
        self.expires.map(tokio::time::sleep_until).into()
    }

    /// Returns a warning that little of a limit is left. It is given once, with the step that made it little.
    pub(super) fn warning(&self, usage: &Usage) -> Option<String> {
        let budget = self.budget?;
        if budget.steps == Some(FEW_STEPS + 1) {
            return Some(format!("You have {FEW_STEPS} steps left. Bring your work to its end now."));
        }
        let used = i64::from(usage.input_tokens) + i64::from(usage.output_tokens);
        // What is left is not enough for two more steps like this one.
        let runs_out = |left: Option<i64>, used: i64| {
            left.is_some_and(|left| left - used < 2 * used && left >= 2 * used && used > 0)
        };
        let what = if runs_out(budget.tokens, used) {
            "tokens"
        } else if runs_out(budget.microdollars, i64::try_from(usage.microdollars).unwrap_or_default()) {
            "money"
        } else {
            return None;
        };
        Some(format!("You have little {what} left: enough for a step or two. Bring your work to its end now."))
    }
}
