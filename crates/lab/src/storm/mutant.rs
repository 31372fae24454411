//! Databases that are broken on purpose. A storm that does not detect them proves nothing.

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection};
use waybill_kernel::{check, migrate};

/// One fault in the functions of the database: texts and their replacements.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    pub name: &'static str,
    pub says: &'static str,
    /// The trial that must detect it.
    pub trial: Trial,
    /// The figures of which at least one must miss its bar. No two mutants share a figure.
    pub shows: &'static [&'static str],
    changes: &'static [(&'static str, &'static str)],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trial {
    Storm,
    /// Trees of agents under a limit.
    Budgets,
}

pub const MUTANTS: [Mutant; 11] = [
    Mutant {
        name: "no-fence",
        says: "a worker that once had the turn may write while it runs",
        trial: Trial::Storm,
        shows: &[
            "claims that two had under one token",
            "steps taken twice",
            "steps written under an older claim than the step before",
        ],
        changes: &[
            (
                "and h.turn_epoch = p_fence.turn_epoch and h.claim_token = p_fence.claim_token and h.status = 'running'",
                "and h.status = 'running'",
            ),
            (
                "and h.turn_epoch = p_end.turn_epoch and h.claim_token = p_end.claim_token and h.status = 'running'",
                "and h.status = 'running'",
            ),
            (
                "and h.turn_epoch = v_end.turn_epoch and h.claim_token = v_end.claim_token and h.status = 'running'",
                "and h.status = 'running'",
            ),
        ],
    },
    Mutant {
        name: "result-twice",
        says: "an answer is applied although the call was answered before",
        trial: Trial::Storm,
        shows: &["results applied twice"],
        changes: &[
            ("    return query select 'dropped'::text, v_turn, null::text;\n    return;\n  end if;", "  end if;"),
            (
                "'response', v_turn, v_agent, v_head.turn_epoch, (p_cards[1]).card_id, p_status);",
                "'response', v_turn, v_agent, v_head.turn_epoch, (p_cards[1]).card_id, p_status) on conflict do nothing;",
            ),
        ],
    },
    Mutant {
        name: "lost-turn",
        says: "a turn that is taken from a dead worker is not armed again",
        trial: Trial::Storm,
        shows: &["turns that have not ended"],
        changes: &[(
            "     set status = case when v_waits then 'deferred' else 'pending' end, inbox_seq = state.place_of_begun(),\n         next_retry_at",
            "     set status = 'deferred',\n         next_retry_at",
        )],
    },
    Mutant {
        name: "hasty-mark",
        says: "the mark of a queue does not wait for transactions that drew an earlier place",
        trial: Trial::Storm,
        shows: &["turns that were ready before the mark of their queue"],
        changes: &[
            ("not coalesce(bool_or(o.pid is null or o.virtualtransaction = any (v_mark.open_then)), false)", "true"),
            ("if v_mark.drawn_seq > v_drawn - 500 then", "if v_mark.drawn_seq > v_drawn - 50 then"),
        ],
    },
    Mutant {
        name: "late-lease",
        says: "a lease lapses twenty seconds after its time",
        trial: Trial::Storm,
        shows: &["kill to resumed, p99"],
        changes: &[(
            "where l.expires_at < clock_timestamp() and l.expires_at > '-infinity'",
            "where l.expires_at < clock_timestamp() - interval '20 seconds' and l.expires_at > '-infinity'",
        )],
    },
    Mutant {
        name: "free-tokens",
        says: "tokens are not taken from a budget",
        trial: Trial::Budgets,
        shows: &["largest overshoot of tokens in a tree"],
        changes: &[(
            "tokens_left = b.tokens_left - (p_usage ->> 'input_tokens')::bigint - (p_usage ->> 'output_tokens')::bigint",
            "tokens_left = b.tokens_left",
        )],
    },
    Mutant {
        name: "newest-first",
        says: "a relay publishes the newest events first",
        trial: Trial::Storm,
        shows: &["events behind a later one of their agent"],
        changes: &[(
            "   where s.worker_id = p_worker\n   order by o.outbox_seq\n",
            "   where s.worker_id = p_worker\n   order by o.outbox_seq desc\n",
        )],
    },
    Mutant {
        name: "double-count",
        says: "a task of a batch is counted twice",
        trial: Trial::Storm,
        shows: &["batches that did not report exactly once"],
        changes: &[("set remaining = s.remaining - v_slot.n", "set remaining = s.remaining - v_slot.n * 2")],
    },
    Mutant {
        name: "blind-prune",
        says: "retention does not heed events that are not published yet",
        trial: Trial::Storm,
        shows: &["live turns and unpublished events that a prune would have dropped"],
        changes: &[(
            "where o.published_at is null and exists (select from state.relay_shards s",
            "where false and exists (select from state.relay_shards s",
        )],
    },
    Mutant {
        name: "mute-step",
        says: "a step that goes on tells no event",
        trial: Trial::Storm,
        shows: &["steps without their event"],
        changes: &[(
            "values (p_fence.project_id, p_fence.agent_turn_id, 'step', v_step, p_fence.agent_id, v_outcome, p_fence.turn_epoch, v_step);",
            "select p_fence.project_id, p_fence.agent_turn_id, 'step', v_step, p_fence.agent_id, v_outcome, p_fence.turn_epoch, v_step where v_outcome = 'suspended';",
        )],
    },
    Mutant {
        name: "silent-claim",
        says: "a claim tells no state event",
        trial: Trial::Storm,
        shows: &["turns that asked for state events and got none of their beginning"],
        changes: &[
            (
                "    if v_emit then\n      v_told := state.tell(v_project,",
                "    if false then\n      v_told := state.tell(v_project,",
            ),
            (
                "'running', t.turn_epoch\n      from turn t\n     where t.emit_state_event",
                "'running', t.turn_epoch\n      from turn t\n     where false",
            ),
        ],
    },
];

/// Returns two mutants, chosen by a text. Over many texts, every mutant is chosen.
pub fn rotate(by: &str) -> [Mutant; 2] {
    let seed = by.bytes().fold(0_usize, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    let (first, n) = (seed % MUTANTS.len(), MUTANTS.len());
    [MUTANTS[first], MUTANTS[(first + 1 + seed / n % (n - 1)) % n]]
}

impl Mutant {
    pub fn find(name: &str) -> Option<Mutant> {
        MUTANTS.into_iter().find(|mutant| mutant.name == name)
    }

    /// Returns the functions of the database with the fault.
    pub fn functions(&self) -> Result<String> {
        let mut functions = migrate::FUNCTIONS.concat();
        for (good, bad) in self.changes {
            ensure!(functions.contains(good), "mutant {}: there is no {good:?} to change", self.name);
            functions = functions.replace(good, bad);
        }
        Ok(functions)
    }

    pub async fn install(&self, owner: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(self.functions()?)).execute(&mut *owner).await?;
        // Raises the version, so that processes that verify the schema take the database for a newer version's.
        let walls = check::walls(&mut *owner).await?;
        let newer = "update waybill.schema set version = version + 1, walls = $1";
        sqlx::query(newer).bind(walls).execute(owner).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_finds_what_it_breaks() {
        for mutant in MUTANTS {
            assert_ne!(mutant.functions().unwrap(), migrate::FUNCTIONS.concat(), "{}", mutant.name);
        }
    }

    #[test]
    fn every_mutant_has_its_turn_and_no_pair_is_one_twice() {
        let mut seen = std::collections::HashSet::new();
        for n in 0..200 {
            let [one, other] = rotate(&format!("{n:040x}"));
            assert_ne!(one.name, other.name);
            seen.extend([one.name, other.name]);
        }
        assert_eq!(seen.len(), MUTANTS.len());
    }

    #[test]
    fn a_figure_shows_one_mutant() {
        let mut shows: Vec<&str> = MUTANTS.iter().flat_map(|mutant| mutant.shows).copied().collect();
        let all = shows.len();
        shows.sort_unstable();
        shows.dedup();
        assert_eq!(shows.len(), all);
    }
}
